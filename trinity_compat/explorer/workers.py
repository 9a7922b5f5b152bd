"""The explorer's engines as Ray actors: the same weights in each, jobs spread over them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.errors import RunError
from trinity_compat.explorer.attend import attended
from trinity_compat.explorer.engine_arguments import engine_environment
from trinity_compat.explorer.rollout import Job, Rollout, RolloutWorker
from trinity_compat.gpus import engine_count, engine_width
from trinity_compat.synchronizer.collective import HandoverFailed, Meeting
from trinity_compat.synchronizer.files import WeightFile, WeightsDamaged

START_S = 600.0  # a model of some size takes minutes to load and to compile, however short weights may take

_CPU_ENV = {
    # One process and no compilation: 2 s instead of 40 s until the first token.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


class Workers:
    """As many rollout workers as the configuration has room for, each with one engine."""

    def __init__(
        self, verl: Mapping[str, Any], device: str, env: Mapping[str, str], *, shared: bool = False
    ) -> None:
        """``shared``: the trainer uses the same device, in turns."""
        self._verl, self._device, self._env, self._shared = verl, device, env, shared
        self._actors: list[Any] = []
        self._width = engine_width(verl["actor_rollout_ref"]["rollout"], device)

    async def start(self, check: Callable[[], None] = lambda: None, *, timeout_s: float = START_S) -> None:
        """Start the actors and their engines, within ``timeout_s`` or START_S, whichever is longer. Raises
        RunError with vLLM's reason, or when Ray or vLLM does not come to it; and what ``check`` raises."""
        import ray

        rollout = self._verl["actor_rollout_ref"]["rollout"]
        # Ray gives a shared device to the trainer; the engine finds it by the environment.
        gpus = 0 if self._device == "cpu" or self._shared else self._width
        env = worker_env(self._device, self._env) | (_shared_env() if self._shared else {})
        for index in range(engine_count(rollout, self._device)):
            own = {"env_vars": env | engine_environment(self._verl, self._device, index)}
            actor = ray.remote(RolloutWorker).options(num_cpus=0, num_gpus=gpus, runtime_env=own)
            self._actors.append(actor.remote(dict(self._verl), self._device, index, shared=self._shared))
        limit_s = max(timeout_s, START_S)
        starting = _all(self._actors, "start")
        await attended(starting, check, limit_s=limit_s, late=lambda: self._not_started(limit_s))

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
        return f": they want {self.ranks} GPUs, and of Ray's {have:g} are {free:g} free now"

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

    async def sleep(self) -> None:
        """Free the device everywhere, weights kept aside."""
        await _all(self._actors, "sleep")

    async def wake(self) -> None:
        """Back to what ``sleep`` found."""
        await _all(self._actors, "wake")

    async def run(self, jobs: Sequence[Job]) -> AsyncIterator[Rollout]:
        """Rollouts of all jobs, as they finish. Raises RunError when an engine died."""
        queue: asyncio.Queue[Rollout | Exception] = asyncio.Queue()
        shares = [jobs[i :: len(self._actors)] for i in range(len(self._actors))]
        pumps = [
            asyncio.ensure_future(_pump(actor, share, queue))
            for actor, share in zip(self._actors, shares, strict=True)
            if share
        ]
        try:
            for _ in jobs:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            for pump in pumps:
                pump.cancel()

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()


def worker_env(device: str, env: Mapping[str, str]) -> dict[str, str]:
    """Environment of an engine's process: ours on a CPU, then this process's, then the run's own."""
    base = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    if device == "cpu":
        base |= _CPU_ENV | {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    kept = {name: os.environ[name] for name in base if name in os.environ and name != "OMP_NUM_THREADS"}
    return {**base, **kept, **env, **({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if device == "cpu" else {})}


def _taken(version: int, answers: Sequence[Mapping[str, Any]]) -> WeightVersion:
    for answer in answers:
        if "damaged" in answer:
            raise WeightsDamaged(answer["damaged"])
    for answer in answers:
        if "failed" in answer:
            raise HandoverFailed(answer["failed"])
    return WeightVersion(version, "", answers[0]["digest"], answers[0]["nbytes"], "nccl")


def _shared_env() -> dict[str, str]:
    """An actor without GPUs of its own sees the first of this process's."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or "0"
    return {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "CUDA_VISIBLE_DEVICES": seen.split(",")[0]}


async def _all(actors: Sequence[Any], method: str, *args: Any) -> None:
    try:
        await asyncio.gather(*(getattr(actor, method).remote(*args) for actor in actors))
    except Exception as error:
        raise engine_failed(error) from error


async def _pump(actor: Any, jobs: Sequence[Job], queue: asyncio.Queue[Rollout | Exception]) -> None:
    try:
        async for reference in actor.run.options(num_returns="streaming").remote(jobs):
            await queue.put(await reference)
    except Exception as error:
        await queue.put(engine_failed(error))


def engine_failed(error: Exception) -> RunError:
    """What happened in the engine's process, in its own words."""
    cause = getattr(error, "cause", None) or error
    lines = [line for line in str(cause).splitlines() if line.strip()] or [repr(cause)]
    return RunError(f"the explorer's engine failed: {lines[-1].strip()}", hint="its log has the whole story")
