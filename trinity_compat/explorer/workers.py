"""The explorer's engines as Ray actors: the same weights in each, jobs spread over them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from trinity_compat import extras, placement
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.errors import RunError
from trinity_compat.explorer import trainer_devices
from trinity_compat.explorer.attend import attended
from trinity_compat.explorer.engine_arguments import engine_environment
from trinity_compat.explorer.rollout import RolloutWorker
from trinity_compat.explorer.routing import Loads
from trinity_compat.explorer.trainer_devices import Devices
from trinity_compat.explorer.trajectory import Job, Rollout
from trinity_compat.gpus import engine_count, engine_width
from trinity_compat.settings_fingerprint import FilesEdited
from trinity_compat.spec import Fingerprint, RunSpec
from trinity_compat.synchronizer.collective import HandoverFailed, Meeting
from trinity_compat.synchronizer.files import WeightFile, WeightsDamaged

if TYPE_CHECKING:
    from trinity_compat.workflows.model import Written

SLOTS = 1024  # veRL's rollout.max_num_seqs
START_S = 600.0  # a model of some size takes minutes to load and to compile, however short weights may take

_CPU_ENV = {
    # One process and no compilation: 2 s instead of 40 s until the first token.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


@dataclass(frozen=True, slots=True)
class Place:
    """``trainer``: its nodes and the GPUs of each, (0, 0) for none on this Ray; of ``explorers`` that place
    as many engines each this is number ``index``. ``tag``: that of the trainer's places where the engines are
    on its devices, on several machines."""

    trainer: tuple[int, int] = (0, 0)
    explorers: int = 1
    index: int = 0
    tag: str = ""

    @classmethod
    def of(cls, spec: RunSpec, index: int) -> Self:
        """Of an explorer of a run: each command of a split one has a Ray of its own."""
        trainer = spec.verl["trainer"]
        sizes = int(trainer["nnodes"]), int(trainer["n_gpus_per_node"])
        if spec.mode == "colocate" and spec.device != "cpu" and sizes[0] > 1:
            return cls(sizes, tag=placement.tag_of(spec.job_dir))
        return cls(sizes, spec.explorers, index) if spec.mode == "both" else cls()


class Workers:
    """As many rollout workers as the configuration has room for, each with one engine."""

    def __init__(
        self,
        verl: Mapping[str, Any],
        device: str,
        env: Mapping[str, str],
        *,
        shared: bool = False,
        place: Place | None = None,
        by_load: bool = False,
        partial: bool = True,
        agent_timeout_s: float | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        """``shared``: the trainer uses the same device, in turns. ``place``: among whom the engines are
        placed; None where there is nobody else. ``by_load``: a job goes to the engine with the fewest tokens
        outstanding, else to each in turn. ``partial``, ``agent_timeout_s``, ``fingerprint``: as
        ``RolloutWorker``'s."""
        self._names = itertools.count()
        self._own: dict[str, Any] = {"shared": shared, "partial": partial, "fingerprint": fingerprint}
        self._own["agent_timeout_s"] = agent_timeout_s
        self._verl, self._device, self._env, self._shared = verl, device, env, shared
        self._place = place or Place()
        self._actors: list[Any] = []
        self._groups: list[Any] = []
        rollout = verl["actor_rollout_ref"]["rollout"]
        self._own["agent_workers"] = _share(rollout, engine_count(rollout, device))
        self._width = engine_width(rollout, device)
        slots = int(rollout.get("max_num_seqs") or SLOTS)
        self._loads = Loads(engine_count(rollout, device), slots, by_load=by_load)
        self._watches: list[asyncio.Task[None]] = []
        self._writing: Counter[int] = Counter()  # engine → answers that ``write`` waits for

    async def start(self, check: Callable[[], None] = lambda: None, *, timeout_s: float = START_S) -> None:
        """Start the actors and their engines, within ``timeout_s`` or START_S, whichever is longer. Raises
        RunError with vLLM's reason, or when Ray or vLLM does not come to it; and what ``check`` raises."""
        count = engine_count(self._verl["actor_rollout_ref"]["rollout"], self._device)
        limit_s = max(timeout_s, START_S)
        beside = await self._beside(check, limit_s)
        options = await asyncio.to_thread(lambda: list(self._options(count, beside)))
        self._actors = [self._actor(index, each) for index, each in enumerate(options)]
        starting = _all(self._actors, "start")
        await attended(starting, check, limit_s=limit_s, late=lambda: self._not_started(limit_s))
        self._watches = [asyncio.ensure_future(self._watch(*pair)) for pair in enumerate(self._actors)]

    async def _watch(self, index: int, actor: Any) -> None:
        with contextlib.suppress(Exception):  # an engine that died says so to those who wait for answers
            async for reference in actor.ended.options(num_returns="streaming").remote():
                self._loads.ended(index, await reference)

    def room(self) -> int:
        """Answers that the engines could begin now."""
        return self._loads.room()

    async def _beside(self, check: Callable[[], None], limit_s: float) -> list[Devices]:
        """The devices of each engine, where these are a trainer's on several machines; else none."""
        if not (tag := self._place.tag):
            return []
        nodes, each = self._place.trainer
        machines = await trainer_devices.awaited(tag, nodes * each, check, limit_s=limit_s)
        return trainer_devices.engines_on(machines, self._width)

    def _options(self, count: int, beside: Sequence[Devices]) -> Iterator[dict[str, Any]]:
        """Ray's options for each engine's actor. A shared device is the trainer's as far as Ray knows: the
        engine finds it by its environment. ``beside``: the devices of each, where they are not this
        machine's."""
        env = worker_env(self._device, self._env)
        for index in range(count):
            own = _shared_env(index, self._width) if self._shared else {}
            where = beside[index].options() if beside else self._gpus(index, count)
            own |= trainer_devices.environment(beside[index].numbers) if beside else {}
            own |= engine_environment(self._verl, self._device, index)
            yield {"num_cpus": 0, "runtime_env": {"env_vars": env | own}, **where}

    def _gpus(self, index: int, count: int) -> dict[str, Any]:
        if self._device == "cpu" or self._shared:
            return {"num_gpus": 0}
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place, (room, placed) = self._place, placement.gpus_by_node()
        trainer = (0, 0) if placed else place.trainer
        nodes = placement.engine_nodes(room, trainer, place.explorers * count, self._width)
        node = nodes[place.index * count + index] if nodes else None
        self._groups.append(placement.place_engine(self._width, node))
        strategy = PlacementGroupSchedulingStrategy(self._groups[-1])
        return {"num_gpus": self._width, "scheduling_strategy": strategy}

    def _actor(self, index: int, options: Mapping[str, Any]) -> Any:
        import ray

        actor = ray.remote(RolloutWorker).options(**options)
        return actor.remote(dict(self._verl), self._device, index, **self._own)

    def _not_started(self, limit_s: float) -> RunError:
        return RunError(
            f"the explorer's engines have not started in {limit_s:g} s{self._places()}",
            hint=f"see log/explorer.log; synchronizer.sync_timeout sets the limit above {START_S:g} s",
        )

    def _places(self) -> str:
        """On another's cluster, or beside another explorer, what they wait for may be taken."""
        import ray

        if self._device != "cuda" or self._shared:
            return ""
        have, free = (found.get("GPU", 0.0) for found in (ray.cluster_resources(), ray.available_resources()))
        found = placement.waiting(placement.ENGINES)
        numbers = f"they want {self.ranks} GPUs, and of Ray's {have:g} are {free:g} free now"
        return f": {numbers}{f' (one {found})' if found else ''}"

    async def know(self, auxiliary: Sequence[str]) -> None:
        """Tell all where the auxiliary models answer (host:port)."""
        await _all(self._actors, "know", auxiliary)

    async def load(self, version: WeightVersion) -> None:
        """Put a version in place everywhere."""
        file = WeightFile(version.path, version.digest, version.nbytes)
        await _all(self._actors, "load", file, version.version)

    @property
    def ranks(self) -> int:
        """Workers of all engines together: the places that a handover of weights needs."""
        return len(self._actors) * self._width

    async def receive(self, meeting: Meeting, first_rank: int) -> WeightVersion:
        """Take a version over everywhere. Raises HandoverFailed (some engine may hold a mixture then),
        WeightsDamaged, RunError."""
        ranks = [first_rank + index * self._width for index in range(len(self._actors))]
        pairs = zip(self._actors, ranks, strict=True)
        try:
            parts = await asyncio.gather(
                *(actor.receive.remote(asdict(meeting), rank) for actor, rank in pairs)
            )
        except Exception as error:
            raise engine_failed(error) from error
        return _taken(meeting.version, [answer for part in parts for answer in part])

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[Written]:
        """Answers to a prompt, by the engine that is asked least now. Raises ValueError for what cannot be
        answered, RunError when the engine died."""
        index = min(range(len(self._actors)), key=self._writing.__getitem__)
        self._writing[index] += 1
        try:
            return list(await self._actors[index].write.remote(list(prompt_ids), dict(sampling)))
        except ValueError as error:
            raise ValueError(str(getattr(error, "cause", error))) from error
        except Exception as error:
            raise engine_failed(error) from error
        finally:
            self._writing[index] -= 1

    async def score(self, token_ids: Sequence[int]) -> list[list[float]]:
        """For each engine the log-probability of every token after the first."""
        return await _all(self._actors, "score", list(token_ids))

    async def sleep(self) -> None:
        """Free the device everywhere, weights kept aside."""
        await _all(self._actors, "sleep")

    async def wake(self) -> None:
        """Back to what ``sleep`` found."""
        await _all(self._actors, "wake")

    async def run(self, jobs: Sequence[Job]) -> AsyncIterator[Rollout]:
        """Rollouts of all jobs, as they finish. Raises RunError when an engine died. Whoever wants no more of
        them closes it: the engines then drop the rest."""
        queue: asyncio.Queue[Rollout | Exception] = asyncio.Queue()
        shares = zip(self._actors, self._loads.share(jobs), strict=True)
        name, busy = next(self._names), [(actor, share) for actor, share in shares if share]
        pumps = [asyncio.ensure_future(_pump(actor, share, name, queue)) for actor, share in busy]
        left = len(jobs)
        try:
            while left:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                left -= 1
                self._loads.measured([len(each.response_ids) for each in item.trajectories])
                yield item
        finally:
            for pump in pumps:
                pump.cancel()
            if left:
                for actor, _ in busy:
                    actor.abort.remote(name)

    def close(self) -> None:
        """End the actors."""
        import ray

        for watch in self._watches:
            watch.cancel()
        for actor in self._actors:
            ray.kill(actor)
        for group in self._groups:
            ray.util.remove_placement_group(group)
        self._actors, self._groups = [], []


def _share(rollout: Mapping[str, Any], engines: int) -> int:
    """How many of ``rollout.agent.num_workers`` processes of agent loops an engine has."""
    asked = int((rollout.get("agent") or {}).get("num_workers") or 1)
    return max(1, -(-asked // engines))


def worker_env(device: str, env: Mapping[str, str]) -> dict[str, str]:
    """Environment of an engine's process: ours on a CPU, then this process's, then the run's own."""
    base = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", **extras.vllm_plugins()}
    if device == "cpu":
        base |= _CPU_ENV | {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    kept = {name: os.environ[name] for name in base if name in os.environ and name != "OMP_NUM_THREADS"}
    return {**base, **kept, **env, **({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if device == "cpu" else {})}


def _taken(version: int, answers: Sequence[Mapping[str, Any]]) -> WeightVersion:
    for answer in answers:
        if "damaged" in answer:
            raise WeightsDamaged(answer["damaged"])
    for answer in answers:
        if "unloadable" in answer:
            raise RunError(f"vLLM could not load the weights: {answer['unloadable']}")
    for answer in answers:
        if "failed" in answer:
            raise HandoverFailed(answer["failed"])
    return WeightVersion(version, "", answers[0]["digest"], answers[0]["nbytes"], "nccl")


def _shared_env(index: int, width: int) -> dict[str, str]:
    """An actor without GPUs of its own sees ``width`` of this process's, those of engine ``index``."""
    first = index * width
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = named.split(",") if named else [str(number) for number in range(first + width)]
    return trainer_devices.environment(seen[first : first + width])


async def _all(actors: Sequence[Any], method: str, *args: Any) -> list[Any]:
    try:
        return await asyncio.gather(*(getattr(actor, method).remote(*args) for actor in actors))
    except Exception as error:
        raise engine_failed(error) from error


async def _pump(
    actor: Any, jobs: Sequence[Job], name: int, queue: asyncio.Queue[Rollout | Exception]
) -> None:
    try:
        async for reference in actor.run.options(num_returns="streaming").remote(jobs, name):
            await queue.put(await reference)
    except Exception as error:
        await queue.put(engine_failed(error))


def engine_failed(error: Exception) -> RunError | FilesEdited:
    """What happened in the engine's process, in its own words; FilesEdited as it is."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, FilesEdited):
        return cause
    lines = [line for line in str(cause).splitlines() if line.strip()] or [repr(cause)]
    return RunError(f"the explorer's engine failed: {lines[-1].strip()}", hint="its log has the whole story")
