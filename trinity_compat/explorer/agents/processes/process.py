"""The engine's end of one process of agent loops: groups go in, requests to the engine come out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trinity_compat.explorer.agents.processes import child
from trinity_compat.explorer.agents.processes.wire import (
    AgentLoopFailed,
    AgentProcessReady,
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
from trinity_compat.explorer.sandbox import wire
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.process import Process

_names = itertools.count()  # each process counts its requests from 1
GRACE_S = END_S + 5.0  # a process ends a loop itself; one that cannot is killed so much later


class AgentProcessDied(Exception):
    """The process ended. ``crowd``: groups that were under way in it."""

    def __init__(self, how: str, crowd: int) -> None:
        super().__init__(how)
        self.crowd = crowd


@dataclass(slots=True, eq=False)
class _Group:
    made: asyncio.Future[list[Trajectory]]
    ended: Callable[[], None]
    own: AgentTime = field(default_factory=AgentTime)


class AgentProcess(Process):
    """Runs groups. ``engine`` answers for its loops. ``spoilt``: it takes no more, and ends with its last."""

    def __init__(
        self,
        printed: RateLimitedOutput,
        engine: AnsweringEngine,
        gone: Callable[[AgentProcess], None],
        *,
        limit_s: float | None,
    ) -> None:
        super().__init__(printed, gone)
        self._engine = engine
        self._limit_s = None if limit_s is None else limit_s + GRACE_S
        self._numbers, self._name = itertools.count(), f"loops-{next(_names)}"
        self._groups: dict[int, _Group] = {}
        self._asked: dict[int, asyncio.Task[None]] = {}
        self.ready = self.spoilt = False
        self._crowd = 0

    async def start(self, setup: AgentProcessSetup) -> None:
        """Until it can run groups. Raises LoopFailed, or asyncio.IncompleteReadError when it ended before."""
        ready: AgentProcessReady = await self.begin(child.main, setup)
        if ready.broken:
            raise AgentLoopFailed(ready.broken)
        self.ready = True

    async def run(
        self, job: RolloutTask, version: int = 0, ended: Callable[[], None] = lambda: None
    ) -> list[Trajectory]:
        """The group's trajectories; ``ended`` is called as each is there.

        Raises LoopFailed, EngineDied; LoopDied where the process ended, or let more time pass than a loop may
        take, without a question to the engine, and was killed.
        """
        if self.dead:
            raise AgentProcessDied("", crowd=2)
        number, group = next(self._numbers), _Group(asyncio.get_running_loop().create_future(), ended)
        self._groups[number] = group
        self.say(wire.packed(MakeGroup(number, job, version)))
        try:
            return await limited(_of(group.made), self._limit_s, group.own)
        except AgentTimeout as error:
            self.kill()
            raise AgentProcessDied(
                f"it computed for {self._limit_s:g} s without an end", self._crowd
            ) from error
        finally:
            del self._groups[number]
            self.say(wire.packed(StopGroup(number)))
            if self.spoilt and not self._groups:
                self.kill()

    def hear(self, message: GroupMade | AnswerEnded | EngineRequest | CancelRequest) -> None:
        """See Process."""
        if isinstance(message, EngineRequest):
            self._asked[message.number] = asyncio.ensure_future(self._answer(message))
        elif isinstance(message, CancelRequest):
            if asked := self._asked.get(message.number):
                asked.cancel()
        elif isinstance(message, AnswerEnded):
            if message.number in self._groups:
                self._groups[message.number].ended()
        elif (group := self._groups.get(message.number)) and not group.made.done():
            self.spoilt = self.spoilt or message.spoilt
            if message.error:
                group.made.set_exception(AgentLoopFailed(message.error))
            else:
                group.made.set_result(list(message.parts))

    async def _answer(self, ask: EngineRequest) -> None:
        group = self._groups.get(ask.run)
        try:
            if group:
                with group.own.waiting():
                    self.say(wire.packed(await self._answered(ask)))
        except EngineDied as error:
            if group and not group.made.done():
                group.made.set_exception(error)
        finally:
            self._asked.pop(ask.number, None)

    async def _answered(self, ask: EngineRequest) -> EngineAnswer:
        try:
            named = replace(ask.request, request_id=f"{self._name}-{ask.request.request_id}")
            (answer,) = await self._engine.submit([named])
            return EngineAnswer(ask.number, await answer)
        except EngineDied:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # nobody waits for it; else weights have changed
                raise
            return EngineAnswer(ask.number)
        except Exception as error:
            return EngineAnswer(ask.number, error=f"{type(error).__name__}: {error}")

    def died(self, last_words: str) -> None:
        """See Process."""
        self._crowd = len(self._groups)  # now: those that it blocked run out of time one after the other
        for asked in list(self._asked.values()):
            asked.cancel()
        for group in self._groups.values():
            if not group.made.done():
                group.made.set_exception(AgentProcessDied(last_words, self._crowd))


async def _of(made: asyncio.Future[list[Trajectory]]) -> list[Trajectory]:
    return await made
