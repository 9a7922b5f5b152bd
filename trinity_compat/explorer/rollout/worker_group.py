"""The explorer's engines as Ray actors, with the same weights and jobs spread over them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.common.hung_process import HungProcess, describe, kill, suspect
from trinity_compat.common.watchdog import Activity, Watchdog
from trinity_compat.explorer.await_with_checks import await_with_checks
from trinity_compat.explorer.engine import trainer_devices
from trinity_compat.explorer.engine.arguments import START_S, engine_environment, worker_env
from trinity_compat.explorer.engine.trainer_devices import Devices
from trinity_compat.explorer.engine.trajectory import RolloutResult, RolloutTask
from trinity_compat.explorer.engine.vllm import EngineDied
from trinity_compat.explorer.rollout.routing import EngineLoads
from trinity_compat.explorer.rollout.worker import RolloutWorker, slots_of
from trinity_compat.job import machines, placement
from trinity_compat.job.fingerprint import FilesEdited, check
from trinity_compat.job.gpus import engine_count, engine_width
from trinity_compat.job.run_spec import Fingerprint, RunSpec
from trinity_compat.synchronizer.engine_dtypes import Dtypes, merged
from trinity_compat.synchronizer.transports.files import WeightFile, WeightsDamaged
from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed

if TYPE_CHECKING:
    from trinity_compat.trinity.workflows.model import GeneratedAnswer

_log = logging.getLogger(__name__)

SLOWEST_LOAD = 100e6  # bytes of weights per second: this time is added to the watchdog's limit


@dataclass(frozen=True, slots=True)
class EnginePlacement:
    """Placement of an explorer's engines beside the trainer's and other explorers'.

    ``trainer``: its nodes and the GPUs of each, (0, 0) for none on this Ray; this is number ``index`` of
    ``explorers``, each of which places as many engines. ``tag``: of the trainer's placement group, where the
    engines look up its devices.
    """

    trainer: tuple[int, int] = (0, 0)
    explorers: int = 1
    index: int = 0
    tag: str = ""

    @classmethod
    def of(cls, spec: RunSpec, index: int) -> Self:
        """Placement of a run's explorer; each command of a split run has a separate Ray."""
        trainer = spec.verl["trainer"]
        sizes = int(trainer["nnodes"]), int(trainer["n_gpus_per_node"])
        if placement.follows_trainer(spec):
            return cls(sizes, tag=placement.tag_of(spec.job_dir))
        return cls(sizes, spec.explorers, index) if spec.mode == "both" else cls()


class RolloutWorkers:
    """Rollout workers, as many as the configuration has room for, each with one engine.

    An engine that dies is started again where that is allowed, and gets the version in place and the jobs
    that it had not answered. The others go on meanwhile.
    """

    def __init__(
        self,
        verl: Mapping[str, Any],
        device: str,
        env: Mapping[str, str],
        *,
        shared: bool = False,
        place: EnginePlacement | None = None,
        by_load: bool = False,
        partial: bool = True,
        stale_cache: bool = False,
        agent_timeout_s: float | None = None,
        fingerprint: Fingerprint | None = None,
        watchdog: Watchdog | None = None,
        restarts: int = 0,
        note: Callable[[str], None] = lambda _: None,
        arrived: Callable[[WeightVersion, int, Sequence[Mapping[str, Any]]], None] = lambda *_: None,
    ) -> None:
        """Configure the workers.

        ``shared``: the trainer uses the same device, in turns. ``place``: None for the only user of Ray.
        ``by_load``: a job goes to the engine with the fewest outstanding tokens, else to each in turn.
        ``partial``, ``stale_cache``, ``agent_timeout_s``, ``fingerprint``: as ``RolloutWorker``'s.
        ``watchdog`` observes the requests to the engines. ``restarts``: number of dead engines that are
        started again; ``note`` is told of each. ``arrived`` gets what each engine says of a version that it
        has loaded, and may raise.
        """
        self._watchdog = watchdog or Watchdog()
        self._processes: dict[int, HungProcess] = {}  # by engine
        self._nodes: dict[int, str] = {}
        self._late: Collection[int] = ()
        self._started = set[int]()
        self._answering: dict[int, Activity] = {}
        self._owed: Counter[int] = Counter()  # answers, by engine
        self._names = itertools.count()
        self._own: dict[str, Any] = {"shared": shared, "partial": partial, "fingerprint": fingerprint}
        self._own |= {"stale_cache": stale_cache, "agent_timeout_s": agent_timeout_s}
        self._verl, self._device, self._env, self._shared = verl, device, env, shared
        self._place = place or EnginePlacement()
        self._actors: list[Any] = []
        self._groups: dict[int, Any] = {}
        rollout = verl["actor_rollout_ref"]["rollout"]
        self._own["agent_workers"] = _agent_workers(rollout, engine_count(rollout, device))
        self._width = engine_width(rollout, device)
        self._loads = EngineLoads(engine_count(rollout, device), slots_of(rollout), by_load=by_load)
        self._watches: list[asyncio.Task[None]] = []
        self._restarts, self._note, self._arrived = restarts, note, arrived
        self._restarting: dict[int, asyncio.Task[None]] = {}  # by engine; one that failed stays
        self._actor_options: list[dict[str, Any]] = []
        self._limit_s = START_S
        self._auxiliary: Sequence[str] = ()
        self._version: WeightVersion | None = None  # in place, or being loaded; None: the model path's
        self._ready = asyncio.Event()  # awake, with a version in place
        self._ready.set()
        self._writing: Counter[int] = Counter()  # answers that ``write`` waits for, by engine

    async def start(self, check: Callable[[], None] = lambda: None, *, timeout_s: float = START_S) -> None:
        """Start the actors and their engines, within ``timeout_s`` or START_S, whichever is longer.

        Raises RunError with vLLM's reason, or when the time is up; and what ``check`` raises.
        """
        count = engine_count(self._verl["actor_rollout_ref"]["rollout"], self._device)
        self._limit_s = limit_s = max(timeout_s, START_S)
        devices: list[Devices] = []
        if tag := self._place.tag:  # the engines share the devices that Ray gives a trainer
            nodes, each = self._place.trainer
            machines = await trainer_devices.wait_for_devices(tag, nodes * each, check, limit_s=limit_s)
            devices = trainer_devices.engines_on(machines, self._width)
        self._actor_options = await asyncio.to_thread(lambda: list(self._options(count, devices)))
        self._actors = [self._actor(index) for index in range(count)]
        starting = self._start_all()
        await await_with_checks(starting, check, limit_s=limit_s, late=lambda: self._not_started(limit_s))
        for index in range(count):
            self._observe(index)

    async def _start_all(self) -> None:
        with self._watchdog.doing("starting the engines", times=None):  # the caller sets the limit
            try:
                await asyncio.gather(*(self._start(*pair) for pair in enumerate(self._actors)))
            except Exception as error:
                raise engine_failed(error) from error

    async def _start(self, index: int, actor: Any) -> None:
        import ray

        process, node = await actor.identity.remote(), ray.get_runtime_context().get_node_id()
        self._nodes[index] = str(process["node"])
        self._processes[index] = suspect(f"engine {index}", process, node=node, kill=lambda: ray.kill(actor))
        await actor.start.remote()
        self._started.add(index)

    def _observe(self, index: int) -> None:
        reports = self._watch(index, self._actors[index]), self._follow(index, self._actors[index])
        self._watches += [asyncio.ensure_future(each) for each in reports]

    def _restart(self, index: int, actor: Any, error: Exception) -> None:
        """Start an engine again whose ``actor`` has died with ``error``; no-op where that is done already.

        Raises ``error`` where it is another fault or no restart is left, where the weights in place have no
        file, and where the watchdog has killed the engine and ends this process. On another machine Ray has
        to say first what died.
        """
        if self._actors[index] is not actor or index in self._restarting:
            return
        elsewhere = bool(self._processes[index].host)
        if not (_is_death(error) and (self._restarts or elsewhere)) or self._watchdog.found_a_stall:
            raise error
        died = f"engine {index} (pid {self._processes[index].pid}) died"
        _log.warning("%s: %s", died, engine_failed(error).args[0])
        if self._version and not self._version.path:
            way = "handover device" if self._shared else "sync_method nccl"
            self._note(f"{died}; not started again, since {way} keeps no file of the weights")
            raise error
        if not elsewhere:
            self._count_restart(died)
        self._restarting[index] = asyncio.ensure_future(self._start_again(index, died, error))

    def _count_restart(self, died: str) -> None:
        self._restarts -= 1
        self._note(f"{died}; started again ({self._restarts} restarts of an engine left)")

    async def _leave_machine(self, index: int, died: str, error: Exception) -> None:
        """Give an engine whose machine is lost a new place, else count its restart.

        Raises ``error`` where no restart is left, and where the engine follows the trainer, whose devices
        will be others too.
        """
        import ray

        lost = await asyncio.to_thread(machines.lost, [self._nodes[index]], error)
        if self._place.tag if lost else not self._restarts:
            raise error
        if not lost:
            self._count_restart(died)
            return
        self._note(f"{lost}; {died}; started again elsewhere")
        if self._groups:  # its place is on that machine, or waits for it
            ray.util.remove_placement_group(self._groups[index])
            self._actor_options[index] |= await asyncio.to_thread(self._gpus, index, len(self._actors))

    async def _start_again(self, index: int, died: str, error: Exception) -> None:
        """Replace an engine's actor by another one with the same weights, in the explorer's turn."""
        import ray

        if self._processes[index].host:
            await self._leave_machine(index, died, error)
        kill(self._processes[index])  # what is left of it
        await self._ready.wait()
        self._started.discard(index)
        actor, limit_s, loaded = self._actor(index), self._limit_s, None
        starting, what = self._start(index, actor), f"starting engine {index} again"
        suspects = partial(self._suspects, [index])
        try:
            with (
                self._watchdog.doing(what, times=None, suspects=suspects) as activity,
                placement.report_when_pending(placement.ENGINES, self._note),
            ):
                await await_with_checks(
                    starting, lambda: None, limit_s=limit_s, late=lambda: self._not_started(limit_s)
                )
                await asyncio.to_thread(check, self._own["fingerprint"])  # it has read the model's files
                await actor.set_auxiliary_models.remote(self._auxiliary)
                while (version := self._version) and version is not loaded:
                    activity.now(what, extra_s=version.nbytes / SLOWEST_LOAD)
                    self._arrived(version, index, await actor.load.remote(_file_of(version), version.version))
                    loaded = version
        except BaseException:
            ray.kill(actor)
            raise
        self._actors[index] = actor
        self._loads.restart(index)
        self._observe(index)
        del self._restarting[index]

    async def _running(self, index: int) -> Any:
        """Return an engine's actor, if it is started again as soon as it has started."""
        if restarting := self._restarting.get(index):
            await asyncio.shield(restarting)
        return self._actors[index]

    async def _follow(self, index: int, actor: Any) -> None:
        with contextlib.suppress(Exception):  # as in _watch
            async for reference in actor.progress.options(num_returns="streaming").remote():
                await reference
                if activity := self._answering.get(index):
                    activity.progress()

    @contextlib.contextmanager
    def _answers_of(self, index: int, answers: int) -> Iterator[None]:
        """Observe an engine while it has answers to make: its progress is what it reports (``progress``)."""
        if not self._owed[index]:
            self._answering[index] = self._watchdog.begin(
                lambda: f"engine {index} has {self._owed[index]} answers to make and returns no token",
                suspects=lambda: self._suspects([index]),
            )
        self._owed[index] += answers
        try:
            yield
        finally:
            self._owed[index] -= answers
            if not self._owed[index]:
                self._watchdog.end(self._answering.pop(index))

    def _suspects(self, engines: Collection[int]) -> list[HungProcess]:
        return [self._processes[index] for index in sorted(engines) if index in self._processes]

    async def _watch(self, index: int, actor: Any) -> None:
        with contextlib.suppress(Exception):  # requests to a dead engine raise the error
            async for reference in actor.ended.options(num_returns="streaming").remote():
                self._loads.ended(index, await reference)

    def room(self) -> int:
        """Return the number of answers that the engines could begin now."""
        return self._loads.room()

    def _options(self, count: int, devices: Sequence[Devices]) -> Iterator[dict[str, Any]]:
        """Yield Ray's options for each engine's actor.

        Ray counts a shared device as the trainer's: the engine finds it by its environment. ``devices``: of
        each engine, where they are not this machine's.
        """
        env = worker_env(self._device, self._env)
        for index in range(count):
            own = _shared_env(index, self._width) if self._shared else {}
            where = devices[index].options() if devices else self._gpus(index, count)
            own |= trainer_devices.environment(devices[index].numbers) if devices else {}
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
        self._groups[index] = placement.place_engine(self._width, node)
        strategy = PlacementGroupSchedulingStrategy(self._groups[index])
        return {"num_gpus": self._width, "scheduling_strategy": strategy}

    def _actor(self, index: int) -> Any:
        import ray

        # A call for each answer at most, those that wait for a slot too; what else is asked finds room.
        calls = 2 * slots_of(self._verl["actor_rollout_ref"]["rollout"])
        actor = ray.remote(RolloutWorker).options(max_concurrency=calls, **self._actor_options[index])
        return actor.remote(dict(self._verl), self._device, index, **self._own)

    def _not_started(self, limit_s: float) -> RunError:
        slow = self._suspects(set(range(len(self._actors))) - self._started)
        named = f" ({'; '.join(map(describe, slow))})" if slow else ""
        return RunError(
            f"the explorer's engines have not started in {limit_s:g} s{named}{self._gpu_shortage()}",
            hint=f"see log/explorer.log; for a limit above {START_S:g} s, raise synchronizer.sync_timeout",
        )

    def _gpu_shortage(self) -> str:
        """Describe the GPUs that the engines wait for: on a shared cluster others may use them."""
        import ray

        if self._device != "cuda" or self._shared:
            return ""
        total, free = (each.get("GPU", 0.0) for each in (ray.cluster_resources(), ray.available_resources()))
        pending = placement.waiting(placement.ENGINES)
        numbers = f"they need {self.ranks} GPUs, and {free:g} of Ray's {total:g} are free"
        return f": {numbers}{f' (one {pending})' if pending else ''}"

    async def set_auxiliary_models(self, auxiliary: Sequence[str]) -> None:
        """Send the auxiliary models' addresses (host:port) to all engines."""
        self._auxiliary = auxiliary
        await self._all("set_auxiliary_models", "sending the engines the other models' addresses", auxiliary)

    async def load(self, version: WeightVersion) -> None:
        """Load a version into every engine; one that is started again loads it then."""
        what, extra_s = f"loading version {version.version} of the weights", version.nbytes / SLOWEST_LOAD
        before, self._version = self._version, version
        try:
            parts = await self._all(
                "load", what, _file_of(version), version.version, await_restarts=False, extra_s=extra_s
            )
            self._tell_arrived(version, parts)
        except BaseException:
            self._version = before
            raise
        self._ready.set()

    async def dtypes(self) -> Dtypes:
        """Return the dtypes in which the engines hold what they have loaded; see ``engine_dtypes.py``."""
        return merged(await self._all("dtypes", "asking the engines for their dtypes"))

    @property
    def restarts_an_engine(self) -> bool:
        """Return whether an engine that has died is not back yet."""
        return bool(self._restarting)

    @property
    def ranks(self) -> int:
        """Number of workers of all engines: the ranks that a transfer of weights needs."""
        return len(self._actors) * self._width

    async def receive(self, meeting: Rendezvous, first_rank: int) -> WeightVersion:
        """Receive a version in every engine.

        Raises TransferFailed (some engine may then hold a mixture of versions), WeightsDamaged, RunError.
        """
        ranks = [first_rank + index * self._width for index in range(len(self._actors))]
        what = f"receiving version {meeting.version} of the weights"
        arguments = [(asdict(meeting), rank) for rank in ranks]
        method = "device" if meeting.on_devices else "nccl"
        self._version = WeightVersion(meeting.version, "", "", 0, method)
        parts = await self._each("receive", what, arguments, times=None)  # the rendezvous sets the limits
        version = _received_version(self._version, [answer for part in parts for answer in part])
        self._tell_arrived(version, parts)
        return version

    def _tell_arrived(
        self, version: WeightVersion, parts: Sequence[Sequence[Mapping[str, Any]] | None]
    ) -> None:
        for index, answers in enumerate(parts):
            self._arrived(version, index, answers or ())

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """Answer a prompt by the engine with the fewest such requests.

        Raises ValueError for what cannot be answered, RunError when the engine died.
        """
        index = min(range(len(self._actors)), key=self._writing.__getitem__)
        self._writing[index] += 1
        try:
            with self._answers_of(index, 1):
                return list(await self._actors[index].write.remote(list(prompt_ids), dict(sampling)))
        except ValueError as error:
            raise ValueError(str(getattr(error, "cause", error))) from error
        except Exception as error:
            raise engine_failed(error) from error
        finally:
            self._writing[index] -= 1

    async def score(self, token_ids: Sequence[int]) -> list[list[float]]:
        """Return, for each engine, the log-probability of every token after the first."""
        return await self._all("score", "scoring an answer by the engines", list(token_ids))

    async def sleep(self) -> None:
        """Free every device. The weights are lost; answers in flight go on when others are loaded."""
        # Without a version no engine has begun to start again.
        await self._all("sleep", "taking the engines off the device", await_restarts=self._ready.is_set())
        self._ready.clear()

    async def wake(self) -> None:
        """Return to every device. A version has to be loaded next."""
        await self._all("wake", "bringing the engines back to the device", await_restarts=False)

    async def resume(self) -> None:
        """Take the rest of every device's memory, after weights were received."""
        await self._all("resume", "giving the engines their caches")
        self._ready.set()

    async def _all(self, method: str, what: str, *args: Any, **how: Any) -> list[Any]:
        """Call a method of all engines; return their answers. ``how``: as ``_each``'s."""
        return await self._each(method, what, [args] * len(self._actors), **how)

    async def _each(
        self,
        method: str,
        what: str,
        args: Sequence[tuple[Any, ...]],
        *,
        await_restarts: bool = True,
        **limit: Any,
    ) -> list[Any]:
        """Call a method of each engine with its arguments; return their answers.

        One that is started again is asked when it has started; without ``await_restarts`` it is not
        asked, and None stands for its answer. The watchdog names the engines that have not answered;
        ``limit`` as in ``Watchdog.begin``.
        """
        answers: list[Any] = [None] * len(self._actors)
        self._late = waiting = set(range(len(self._actors)))

        async def call(index: int) -> None:
            actor = self._actors[index]
            try:
                answers[index] = await getattr(actor, method).remote(*args[index])
            except Exception as error:
                self._restart(index, actor, error)
            else:
                waiting.discard(index)
                activity.progress()

        suspects = partial(self._suspects, waiting)
        try:
            while waiting:
                if await_restarts:
                    await asyncio.gather(*map(self._running, waiting))
                with self._watchdog.doing(what, suspects=suspects, **limit) as activity:
                    await asyncio.gather(*map(call, waiting - self._restarting.keys()))
                if not await_restarts:
                    waiting.difference_update(self._restarting)
        except Exception as error:
            raise engine_failed(error) from error
        return answers

    def late(self) -> list[HungProcess]:
        """Return the engines that have not answered the latest call of all engines."""
        return self._suspects(self._late)

    async def run(self, jobs: Sequence[RolloutTask]) -> AsyncIterator[RolloutResult]:
        """Yield the rollouts of all jobs as they finish.

        Raises RunError when an engine fails for good. Closing the iterator makes the engines drop the rest.
        """
        queue: asyncio.Queue[RolloutResult | Exception] = asyncio.Queue()
        shares = enumerate(self._loads.share(jobs))
        name, busy = next(self._names), [(index, share) for index, share in shares if share]
        pumps = [
            asyncio.ensure_future(self._pump(index, self._actors[index], share, name, queue))
            for index, share in busy
        ]
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
                for index, _ in busy:
                    self._actors[index].abort.remote(name)

    async def _pump(
        self,
        index: int,
        actor: Any,
        jobs: Sequence[RolloutTask],
        name: int,
        queue: asyncio.Queue[RolloutResult | Exception],
    ) -> None:
        """Have an engine answer ``jobs``, which count as in flight on its ``actor``, or on later ones."""
        left = {job.task_no: job for job in jobs}
        try:
            while left:
                running = await self._running(index)
                if running is not actor:
                    actor = running
                    self._loads.add(index, left.values())
                run = actor.run.options(num_returns="streaming")
                try:
                    with self._answers_of(index, sum(job.answers for job in left.values())):
                        async for reference in run.remote([*left.values()], name):
                            rollout = await reference
                            del left[rollout.task_no]
                            await queue.put(rollout)
                    return  # aborted, where some are left
                except Exception as error:
                    self._restart(index, actor, error)
        except Exception as error:
            await queue.put(engine_failed(error))

    def close(self) -> None:
        """End the actors."""
        import ray

        for task in [*self._watches, *self._restarting.values()]:
            task.cancel()
        for actor in self._actors:
            ray.kill(actor)
        for group in self._groups.values():
            ray.util.remove_placement_group(group)
        self._actors, self._groups = [], {}


def _agent_workers(rollout: Mapping[str, Any], engines: int) -> int:
    """Return an engine's share of ``rollout.agent.num_workers`` processes of agent loops, at least 1."""
    workers = int((rollout.get("agent") or {}).get("num_workers") or 1)
    return max(1, -(-workers // engines))


def _received_version(version: WeightVersion, answers: Sequence[Mapping[str, Any]]) -> WeightVersion:
    for answer in answers:
        if "damaged" in answer:
            raise WeightsDamaged(answer["damaged"])
    for answer in answers:
        if "unloadable" in answer:
            raise RunError(f"vLLM could not load the weights: {answer['unloadable']}")
    for answer in answers:
        if "failed" in answer:
            raise TransferFailed(answer["failed"])
    return replace(version, digest=answers[0]["digest"], nbytes=answers[0]["nbytes"])


def _shared_env(index: int, width: int) -> dict[str, str]:
    """Show ``width`` of this process's GPUs to the actor of engine ``index``, which has none by Ray."""
    first = index * width
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(first + width)]
    return trainer_devices.environment(devices[first : first + width])


def _file_of(version: WeightVersion) -> WeightFile:
    return WeightFile(version.path, version.digest, version.nbytes)


def _is_death(error: Exception) -> bool:
    """Return whether an engine's process has ended, or vLLM's own below it."""
    from ray.exceptions import RayActorError

    return isinstance(error, RayActorError) or isinstance(getattr(error, "cause", None), EngineDied)


def engine_failed(error: Exception) -> RunError | FilesEdited:
    """Return the error of the engine's process, by its last line; FilesEdited unchanged."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, FilesEdited):
        return cause
    lines = [line for line in str(cause).splitlines() if line.strip()] or [repr(cause)]
    failed = RunError(
        f"the explorer's engine failed: {lines[-1].strip()}", hint="its log has the whole error"
    )
    failed.__cause__ = error
    return failed
