"""``rollout.agent.num_workers`` processes of agent loops, or of plugins' workflows, and what becomes of
groups whose process ends.

Invariant: a process that ends fails one group at most. Of several that were under way in it nobody knows
which one it was: each is run again in a process of its own, and the one that ends that too has failed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_compat.common.user_output import LOOP, WORKFLOW
from trinity_compat.explorer.agents.processes import child
from trinity_compat.explorer.agents.processes.process import AgentProcess, AgentProcessDied
from trinity_compat.explorer.agents.processes.wire import AgentLoopFailed, AgentProcessSetup
from trinity_compat.explorer.engine.inflight_requests import AnsweringEngine
from trinity_compat.explorer.engine.trajectory import RolloutTask, Trajectory
from trinity_compat.explorer.sandbox import process
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.job.fingerprint import FilesEdited
from trinity_compat.trinity.workflows.plugins import VARIABLE

START_S = 600.0  # for a process: it imports the user's modules


@dataclass(slots=True, eq=False)
class _Place:
    """A process, or one that is starting, and how many groups it was given."""

    process: asyncio.Task[AgentProcess]
    groups: int = 0

    @property
    def usable(self) -> bool:
        if not self.process.done():
            return True
        if self.process.cancelled() or self.process.exception():
            return False
        return not (self.process.result().dead or self.process.result().spoilt)


class AgentProcessPool:
    """At most ``size`` processes, started as they are needed, and as many again for suspects."""

    def __init__(
        self,
        config: Any,
        engine: AnsweringEngine,
        *,
        size: int,
        limit_s: float | None = None,
        workflows: bool = False,
        auxiliary: Sequence[str] = (),
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """``limit_s``, ``workflows`` and ``auxiliary``: as in Setup.

        ``loaded``: called when a process has loaded its files; raises FilesEdited where they were edited.
        """
        process.warm(["verl.experimental.agent_loop.agent_loop", child.__name__])
        plugins = os.environ.get(VARIABLE, "")
        self._setup = AgentProcessSetup(
            config, limit_s, str(Path.cwd()), process.cluster(), workflows, plugins, tuple(auxiliary)
        )
        self._engine, self._size, self._limit_s = engine, size, limit_s
        self._loaded = loaded
        self._printed = RateLimitedOutput(WORKFLOW if workflows else LOOP, lambda data: os.write(1, data))
        self._places: list[_Place] = []
        self._processes: set[AgentProcess] = set()
        self._alone = asyncio.Semaphore(size)

    async def run(
        self, job: RolloutTask, version: int = 0, ended: Callable[[], None] = lambda: None
    ) -> list[Trajectory]:
        """n trajectories, then the baseline; ``ended`` as LoopProcess tells it.

        Raises LoopFailed with what the loop or a tool raised, or how it ended its process; EngineDied,
        FilesEdited.
        """
        place = self._place()
        place.groups += 1
        try:
            return await (await asyncio.shield(place.process)).run(job, version, ended)
        except AgentProcessDied as error:
            if error.crowd == 1:
                raise self._failed(error) from error
        finally:
            place.groups -= 1
        return await self._by_itself(job, version)

    async def _by_itself(self, job: RolloutTask, version: int) -> list[Trajectory]:
        async with self._alone:
            own = await self._started()
            try:
                return await own.run(job, version)
            except AgentProcessDied as error:
                raise self._failed(error) from error
            finally:
                own.kill()

    def _place(self) -> _Place:
        """The one with the fewest groups; another one where all have some."""
        self._places = [place for place in self._places if place.usable]
        if len(self._places) < self._size and all(place.groups for place in self._places):
            self._places.append(_Place(asyncio.ensure_future(self._started())))
        return min(self._places, key=lambda place: place.groups)

    async def _started(self) -> AgentProcess:
        started = AgentProcess(self._printed, self._engine, self._processes.discard, limit_s=self._limit_s)
        self._processes.add(started)
        try:
            async with asyncio.timeout(START_S):
                await started.start(self._setup)
            self._loaded()
        except FilesEdited:
            started.kill()
            raise
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            how = "ended" if isinstance(error, asyncio.IncompleteReadError) else "hung"
            raise AgentLoopFailed(f"a process of agent loops {how} at its start") from error
        finally:
            if not started.ready:
                started.kill()
        return started

    def close(self) -> None:
        """End them all."""
        for place in self._places:
            place.process.cancel()
        for each in list(self._processes):
            each.kill()
        self._printed.told()

    def _failed(self, error: AgentProcessDied) -> AgentLoopFailed:
        what = "workflow" if self._setup.workflows else "agent loop"
        return AgentLoopFailed(
            f"the {what} ended its process ({error})" if str(error) else "its process ended"
        )
