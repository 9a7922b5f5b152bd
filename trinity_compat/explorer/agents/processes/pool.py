"""Pool of ``rollout.agent.num_workers`` processes of agent loops, or of plugins' workflows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from omegaconf import DictConfig

from trinity_compat.common.user_output import LOOP, WORKFLOW
from trinity_compat.explorer.agents.processes import child
from trinity_compat.explorer.agents.processes.process import AgentProcess
from trinity_compat.explorer.agents.processes.wire import AgentLoopFailed, AgentProcessSetup
from trinity_compat.explorer.engine.inflight_requests import AnsweringEngine
from trinity_compat.explorer.engine.trajectory import RolloutTask, Trajectory
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.pool import ProcessPool
from trinity_compat.explorer.sandbox.process import ProcessDied, StartFailed, warm
from trinity_compat.trinity.workflows.plugins import VARIABLE


class AgentProcessPool:
    """Pool in which a process that ends costs one group at most."""

    def __init__(
        self,
        config: DictConfig,
        engine: AnsweringEngine,
        *,
        size: int,
        limit_s: float | None = None,
        workflows: bool = False,
        auxiliary: Sequence[str] = (),
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the fork server; ``limit_s``, ``workflows`` and ``auxiliary`` as in AgentProcessSetup.

        ``loaded``: called when a process has loaded its files; raises FilesEdited where they were edited.
        """
        warm(["verl.experimental.agent_loop.agent_loop", child.__name__])
        setup = AgentProcessSetup(config, limit_s, workflows, os.environ.get(VARIABLE, ""), tuple(auxiliary))
        printed = RateLimitedOutput(WORKFLOW if workflows else LOOP)
        self._pool = ProcessPool(lambda out: AgentProcess(out, setup, engine), size, printed, loaded)
        self._what = "workflow" if workflows else "agent loop"

    async def run(
        self, job: RolloutTask, version: int = 0, ended: Callable[[], None] = lambda: None
    ) -> list[Trajectory]:
        """Return n trajectories, then the baseline; ``ended`` as in AgentProcess.run.

        Raises AgentLoopFailed with what the loop or a tool raised, or how it ended its process; EngineDied,
        FilesEdited.
        """
        try:
            return await self._pool.run(lambda process: process.run(job, version, ended))
        except StartFailed as error:
            raise AgentLoopFailed(error.of("a process of agent loops")) from error
        except ProcessDied as error:
            how = f"the {self._what} ended its process ({error})" if str(error) else "its process ended"
            raise AgentLoopFailed(how) from error

    def close(self) -> None:
        """Kill all processes."""
        self._pool.close()
