"""Servers of a model: their placement on machines, their start, and their state."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from trinity_compat.common.errors import RunError
from trinity_compat.explorer.await_with_checks import await_with_checks
from trinity_compat.explorer.engine.arguments import START_S, worker_env
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.served.server import ServerActor, ServerState
from trinity_compat.job import placement
from trinity_compat.job.gpus import engine_count, engine_width
from trinity_compat.job.run_spec import RunSpec

LOOK_S = 1.0


class ModelServers(ABC):
    """``count`` servers of one model.

    ``beside``: (engines, GPUs of each) of other models that are placed already.
    """

    model: str  # in messages
    module: ClassVar[str]  # of a server's process; see ServerActor
    secrets: Mapping[str, str] = MappingProxyType({})  # in the environment of the servers alone

    def __init__(self, spec: RunSpec, count: int, beside: Sequence[tuple[int, int]] = ()) -> None:
        self._spec, self._count, self._beside = spec, count, beside
        self._actors: list[Any] = []

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of a server's GPUs."""

    async def start_servers(
        self, arguments: Sequence[Mapping[str, Any]], ports: Sequence[int], heart: Heartbeat
    ) -> list[str]:
        """Start a server with each of ``arguments``; return their addresses once all answer.

        ``ports``: used where they are free; 0 for any. Raises RunError with a server's reason.
        """
        options = await asyncio.to_thread(lambda: list(self._options()))
        starting = []
        for each, given, port in zip(options, arguments, ports, strict=True):
            self._actors.append(self._actor(each))
            starting.append(self._actors[-1].start.remote(given, self._spec.device, port, self.secrets))
        limit_s = max(self._spec.sync.timeout_s, START_S)
        with placement.report_when_pending(placement.ENGINES, heart.note):
            ready = self._until_ready(starting)
            late = RunError(
                f"{self.model}'s servers have not started in {limit_s:g} s",
                hint=f"for a limit above {START_S:g} s, raise synchronizer.sync_timeout",
            )
            return await await_with_checks(ready, heart.check, limit_s=limit_s, late=lambda: late)

    async def _until_ready(self, starting: Sequence[Any]) -> list[str]:
        addresses = [await each for each in starting]
        while not all(state.ready for state in await self.states()):
            await asyncio.sleep(LOOK_S)
        return addresses

    async def states(self) -> list[ServerState]:
        """Return the state of each server. Raises RunError for one that has ended."""
        states = [await self._answer(actor.state.remote()) for actor in self._actors]
        for state in states:
            if state.code is not None:
                why = f": {state.why}" if state.why else ""
                raise RunError(f"{self.model}'s server ended with exit code {state.code}{why}")
        return states

    def _options(self) -> list[dict[str, Any]]:
        """Return Ray's options of each server's actor."""
        env = {"num_cpus": 0, "runtime_env": {"env_vars": worker_env(self._spec.device, self._spec.env)}}
        if self._spec.device == "cpu":
            return [{**env, "num_gpus": 0} for _ in range(self._count)]
        return [{**env, **each} for each in self._placements()]

    def _placements(self) -> list[dict[str, Any]]:
        """Place each server on one machine, on those that trainer and engines leave."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        nodes = _nodes(self._spec, self._count, self.width, self._beside)
        groups = [placement.place_engine(self.width, node) for node in nodes]
        return [
            {"num_gpus": self.width, "scheduling_strategy": PlacementGroupSchedulingStrategy(group)}
            for group in groups
        ]

    def _actor(self, options: Mapping[str, Any]) -> Any:
        import ray

        return ray.remote(ServerActor).options(**options).remote(self.module)

    async def _answer(self, reference: Any) -> Any:
        import ray

        try:
            return await reference
        except ray.exceptions.RayActorError as error:
            raise RunError(f"the process around {self.model}'s server died: {error}") from error


def _nodes(spec: RunSpec, count: int, width: int, beside: Sequence[tuple[int, int]]) -> list[str | None]:
    """Return a machine for each server (None: any), of those that the engines and the trainer leave."""
    room, placed = placement.gpus_by_node()
    sizes = spec.verl["trainer"]
    trainer = (0, 0) if placed or spec.mode != "both" else (sizes["nnodes"], sizes["n_gpus_per_node"])
    rollout = spec.verl["actor_rollout_ref"]["rollout"]
    engines, tp = engine_count(rollout, spec.device) * spec.explorers, engine_width(rollout, spec.device)
    for number, gpus in ((engines, tp), *beside):
        for node in placement.engine_nodes(room, trainer, number, gpus) or ():
            room[node] -= gpus
    chosen = placement.engine_nodes(room, trainer, count, width)
    return [*chosen] if chosen else [None] * count
