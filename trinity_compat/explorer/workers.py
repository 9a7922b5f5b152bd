"""The explorer's engines as Ray actors: the same weights in each, jobs spread over them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.errors import RunError
from trinity_compat.explorer.rollout import Job, Rollout, RolloutWorker
from trinity_compat.synchronizer.files import WeightFile

_CPU_ENV = {
    # One process and no compilation: 2 s instead of 40 s until the first token.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


class Workers:
    """``count`` rollout workers of ``gpus`` each."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = list(actors)

    @classmethod
    async def start(
        cls, verl: Mapping[str, Any], device: str, env: Mapping[str, str], count: int = 1
    ) -> Workers:
        """Start the actors and their engines. Raises RunError with vLLM's reason."""
        import ray

        gpus = 0 if device == "cpu" else verl["actor_rollout_ref"]["rollout"]["tensor_model_parallel_size"]
        actor = ray.remote(RolloutWorker).options(
            num_cpus=0, num_gpus=gpus, runtime_env={"env_vars": worker_env(device, env)}
        )
        actors = [actor.remote(dict(verl), device, index) for index in range(count)]
        await _all(actors, "start")
        return cls(actors)

    async def load(self, version: WeightVersion) -> None:
        """Put a version in place everywhere."""
        await _all(self._actors, "load", WeightFile(version.path, version.digest, version.nbytes))

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

    async def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)


def worker_env(device: str, env: Mapping[str, str]) -> dict[str, str]:
    """Environment of an engine's process: ours on a CPU, then this process's, then the run's own."""
    base = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    if device == "cpu":
        base |= _CPU_ENV | {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    kept = {name: os.environ[name] for name in base if name in os.environ and name != "OMP_NUM_THREADS"}
    return {**base, **kept, **env, **({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if device == "cpu" else {})}


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
