"""The engine's end of one process of agent loops: it sends groups, and answers their requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trinity_compat.explorer.agents.processes import child
from trinity_compat.explorer.agents.processes.wire import (
    AgentLoopFailed,
    AgentProcessSetup,
    AnswerEnded,
    CancelRequest,
    EngineAnswer,
    EngineRequest,
    GroupMade,
    MakeGroup,
    StopGroup,
)
from trinity_compat.explorer.agents.time_limit import END_S, AgentTime, AgentTimeout, limited
from trinity_compat.explorer.engine.inflight_requests import AnsweringEngine
from trinity_compat.explorer.engine.trajectory import RolloutTask, Trajectory
from trinity_compat.explorer.engine.vllm import EngineDied
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.process import Process

_names = itertools.count()  # each process counts its requests from 1
GRACE_S = END_S + 5.0  # a process ends a late loop; one that cannot is killed this much later


@dataclass(slots=True, eq=False)
class _Group:
    made: asyncio.Future[list[Trajectory]]
    ended: Callable[[], None]
    clock: AgentTime = field(default_factory=AgentTime)


class AgentProcess(Process):
    """Process that runs groups, for whose loops ``engine`` answers."""

    def __init__(self, printed: RateLimitedOutput, setup: AgentProcessSetup, engine: AnsweringEngine) -> None:
        super().__init__(printed, child.start, setup)
        self._engine, self._name = engine, f"loops-{next(_names)}"
        self._limit_s = None if setup.limit_s is None else setup.limit_s + GRACE_S
        self._groups: dict[int, _Group] = {}
        self._requests: dict[int, asyncio.Task[None]] = {}

    async def run(
        self, job: RolloutTask, version: int = 0, ended: Callable[[], None] = lambda: None
    ) -> list[Trajectory]:
        """Return the group's trajectories; ``ended`` is called as each is finished.

        Raises AgentLoopFailed, EngineDied; ProcessDied where the process ended, or exceeded a loop's time
        limit without a request to the engine, and was killed.
        """
        with self.calling() as (number, made):
            self._groups[number] = group = _Group(made, ended)
            self.send(MakeGroup(number, job, version))
            try:
                return await limited(_result(made), self._limit_s, group.clock)
            except AgentTimeout as error:
                how = f"it computed for {self._limit_s:g} s without an end"
                raise self.kill_late(how) from error
            finally:
                del self._groups[number]
                self.send(StopGroup(number))

    def receive(self, message: GroupMade | AnswerEnded | EngineRequest | CancelRequest) -> None:
        """Process a message of the process."""
        if isinstance(message, EngineRequest):
            self._requests[message.number] = asyncio.ensure_future(self._answer(message))
        elif isinstance(message, CancelRequest):
            if request := self._requests.get(message.number):
                request.cancel()
        elif isinstance(message, AnswerEnded):
            if message.number in self._groups:
                self._groups[message.number].ended()
        elif (group := self._groups.get(message.number)) and not group.made.done():
            self.spoilt = self.spoilt or message.spoilt
            if message.error:
                group.made.set_exception(AgentLoopFailed(message.error))
            else:
                group.made.set_result(list(message.parts))

    async def _answer(self, request: EngineRequest) -> None:
        group = self._groups.get(request.run)
        try:
            if group:
                with group.clock.waiting():
                    self.send(await self._answered(request))
        except EngineDied as error:
            if group and not group.made.done():
                group.made.set_exception(error)
        finally:
            self._requests.pop(request.number, None)

    async def _answered(self, request: EngineRequest) -> EngineAnswer:
        try:
            named = replace(request.request, request_id=f"{self._name}-{request.request.request_id}")
            (answer,) = await self._engine.submit([named])
            return EngineAnswer(request.number, await answer)
        except EngineDied:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the request is cancelled; else the weights have changed
                raise
            return EngineAnswer(request.number)
        except Exception as error:
            return EngineAnswer(request.number, error=f"{type(error).__name__}: {error}")

    def kill(self) -> None:
        """See Process."""
        for request in list(self._requests.values()):
            request.cancel()
        super().kill()


async def _result(made: asyncio.Future[list[Trajectory]]) -> list[Trajectory]:
    return await made
