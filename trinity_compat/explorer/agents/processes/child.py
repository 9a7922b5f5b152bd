"""Body of a process of agent loops: veRL's, or the workflows of plugins, with an engine at the other end of a
socket."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from multiprocessing.connection import Connection
from typing import Any

from trinity_compat.common.user_frames import place_of
from trinity_compat.explorer.agents.processes.wire import (
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
from trinity_compat.explorer.agents.time_limit import AgentTimeout, limited
from trinity_compat.explorer.agents.user_workflows import UserWorkflows
from trinity_compat.explorer.agents.verl_loops import AgentLoops
from trinity_compat.explorer.engine.trajectory import RolloutTask, Trajectory
from trinity_compat.explorer.engine.vllm import Completion, GenerationRequest
from trinity_compat.explorer.sandbox.child_setup import Hear, Say, serve, settle
from trinity_compat.trinity.workflows.plugins import VARIABLE

_run: ContextVar[int] = ContextVar("run")  # of which group a loop, and all that it starts, is


class EngineFailed(Exception):
    """The engine refused a request, for the reason that it gave."""


def main(channel: socket.socket, output: Connection, setup: AgentProcessSetup) -> None:
    """Run groups until the engine's process is gone."""
    settle(output, setup.cwd, setup.ray)
    serve(channel, lambda say: _begun(setup, say), lambda why: AgentProcessReady(broken=why))


def _begun(setup: AgentProcessSetup, say: Say) -> Hear:
    loops = _Loops(setup, say)
    say(AgentProcessReady())
    return loops.hear


class _Loops:
    """The groups under way."""

    def __init__(self, setup: AgentProcessSetup, say: Say) -> None:
        from verl.utils.config import omega_conf_to_dataclass

        self._say, self._engine = say, EngineProxy(say)
        model = omega_conf_to_dataclass(setup.config.actor_rollout_ref.model)
        if setup.workflows:
            self._made = _of_workflows(setup, self._engine, model)
        else:
            self._made = _of_loops(setup, self._engine, model)
        self._running: dict[int, asyncio.Task[None]] = {}

    def hear(self, message: MakeGroup | StopGroup | EngineAnswer) -> None:
        """What the engine's process says."""
        if isinstance(message, MakeGroup):
            self._running[message.number] = asyncio.ensure_future(self._group(message))
        elif isinstance(message, EngineAnswer):
            self._engine.answered(message)
        elif running := self._running.get(message.number):
            running.cancel()

    async def _group(self, run: MakeGroup) -> None:
        _run.set(number := run.number)
        try:
            made = GroupMade(
                number, await self._made(run.job, run.version, lambda: self._say(AnswerEnded(number)))
            )
        except EngineFailed as error:
            made = GroupMade(number, error=str(error))
        except AgentTimeout as error:
            made = GroupMade(number, error=str(error), spoilt=True)
        except Exception as error:
            made = GroupMade(number, error=f"{type(error).__name__}: {error}{place_of(error)}")
        finally:
            del self._running[number]
        self._say(made)


Make = Callable[[RolloutTask, int, Callable[[], None]], Awaitable[list[Trajectory]]]


def _of_loops(setup: AgentProcessSetup, engine: EngineProxy, model: Any) -> Make:
    loops = AgentLoops(setup.config, engine, model.processor, limit_s=setup.limit_s)
    return lambda job, version, ended: loops.run(job, ended)


def _of_workflows(setup: AgentProcessSetup, engine: EngineProxy, model: Any) -> Make:
    os.environ[VARIABLE] = setup.plugins  # the process that it was forked from may be older
    workflows = UserWorkflows(setup.config, model, engine, setup.auxiliary)
    return lambda job, version, ended: limited(workflows.run(job, version, ended), setup.limit_s)


class EngineProxy:
    """Stands for ``interruption.Asked``: the engine's process has the real one."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[list[Completion]]] = {}

    async def submit(self, requests: Sequence[GenerationRequest]) -> list[asyncio.Future[list[Completion]]]:
        """As ``Engine.submit``."""
        return [self._asked(request) for request in requests]

    def _asked(self, request: GenerationRequest) -> asyncio.Future[list[Completion]]:
        number = next(self._numbers)
        answer: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._left(number))
        self._say(EngineRequest(number, _run.get(), request))
        return answer

    def _left(self, number: int) -> None:
        if self._waiting.pop(number, None):
            self._say(CancelRequest(number))

    def answered(self, message: EngineAnswer) -> None:
        """Hand the answer to who waits for it."""
        answer = self._waiting.pop(message.number, None)
        if answer is None or answer.done():
            return
        if message.error:
            answer.set_exception(EngineFailed(message.error))
        elif message.parts is None:
            answer.cancel()
        else:
            answer.set_result(list(message.parts))

    async def again(self) -> None:
        """As ``Asked.again``; the engine's process waits until it may be asked."""
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise asyncio.CancelledError
