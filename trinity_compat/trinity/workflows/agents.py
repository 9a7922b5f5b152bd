"""Agents: users' programs that call the model over the OpenAI API, whose calls are trained.

The program is a function, which runs in reused processes, or a command, started for each answer. Each process
has a key of its own; calls with it go to the model of the run that has the process now, and to no other
run's. At most ``places`` run at a time. A process is killed with all that it started when its run ends:
by a time limit, by new weights, by the end of the explorer.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trinity_compat.common import python_command
from trinity_compat.common.parent_watch import die_with_parent
from trinity_compat.common.plain_numbers import is_number
from trinity_compat.common.process_limits import signal_group
from trinity_compat.trinity.workflows.model import WorkflowModel

PLACES = 16  # default of workflow_args.places: agents at a time
_LINE = 2**24  # bytes of a function's answer at most
_CHILD = "trinity_compat.trinity.workflows.agent_child"


class AgentFailed(RuntimeError):
    """The agent raised, or its process ended without an answer."""


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """``function``: FILE.py:NAME; else ``command``: words. It runs in ``directory``."""

    function: str = ""
    command: tuple[str, ...] = ()
    places: int = PLACES
    directory: str = "."

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> AgentProgram:
        """Read ``workflow_args`` of a taskset, as the plan has checked them."""
        command = tuple(map(str, arguments.get("command") or ()))
        places = int(arguments.get("places") or PLACES)
        directory = str(arguments.get("directory") or ".")
        return cls(str(arguments.get("function") or ""), command, places, directory)


@dataclass(slots=True)
class _Process:
    """A process of an agent, and the key of its calls."""

    running: asyncio.subprocess.Process
    key: str

    def kill(self) -> None:
        """Kill the process with all that it started."""
        signal_group(self.running.pid)


@dataclass(slots=True)
class Agents:
    """The agents of one engine's process.

    ``waiting`` is entered while a run waits for a place: that time is not the agent's own.
    """

    waiting: Callable[[], AbstractContextManager[object]] = nullcontext
    _models: dict[str, WorkflowModel] = field(default_factory=dict)
    _idle: dict[AgentProgram, list[_Process]] = field(default_factory=dict)
    _places: dict[AgentProgram, asyncio.Semaphore] = field(default_factory=dict)
    _address: str = ""
    _serving: AsyncExitStack = field(default_factory=AsyncExitStack)
    _starts: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, program: AgentProgram, row: Mapping[str, Any], model: WorkflowModel) -> Any:
        """Run the agent on a row; returns a number, a mapping or a text.

        Its calls are in the model's history. Raises AgentFailed.
        """
        from trinity_compat.trinity.workflows.openai_app import make_app, served

        async with self._starts:
            if not self._address:
                self._address = await self._serving.enter_async_context(served(make_app(self._models.get)))
        model.context = contextvars.copy_context()
        async with self._place(program), self._process(program, model) as process:
            self._models[process.key] = model
            try:
                ask = self._ask_function if program.function else self._ask_command
                return await ask(process, json.dumps(dict(row), default=str))
            finally:
                del self._models[process.key]

    async def close(self) -> None:
        """End the idle processes and the endpoint."""
        for process in (each for idle in self._idle.values() for each in idle):
            process.kill()
            await process.running.wait()
        self._idle.clear()
        await self._serving.aclose()

    @contextlib.asynccontextmanager
    async def _place(self, program: AgentProgram) -> AsyncIterator[None]:
        places = self._places.setdefault(program, asyncio.Semaphore(program.places))
        with self.waiting():
            await places.acquire()
        try:
            yield
        finally:
            places.release()

    @contextlib.asynccontextmanager
    async def _process(self, program: AgentProgram, model: WorkflowModel) -> AsyncIterator[_Process]:
        """Lend a process for the block; one whose run ended without an error serves the next run."""
        idle = self._idle.setdefault(program, [])
        process = idle.pop() if idle else await self._started(program, model)
        try:
            yield process
        except BaseException:
            process.kill()
            await process.running.wait()
            raise
        if process.running.returncode is None:
            idle.append(process)

    async def _started(self, program: AgentProgram, model: WorkflowModel) -> _Process:
        key = secrets.token_urlsafe(32)
        endpoint = {"OPENAI_BASE_URL": self._address, "OPENAI_API_KEY": key, "OPENAI_MODEL": model.model_path}
        words = program.command or python_command.of_module(_CHILD, program.function)
        running = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **endpoint},
            cwd=program.directory,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal.SIGKILL),
            limit=_LINE,
        )
        return _Process(running, key)

    async def _ask_function(self, process: _Process, row: str) -> Any:
        into, out = process.running.stdin, process.running.stdout
        assert into is not None and out is not None
        with contextlib.suppress(ConnectionError):
            into.write(row.encode() + b"\n")
            await into.drain()
        line = await out.readline()
        if not line:
            raise AgentFailed(f"the agent's process ended with exit code {await process.running.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise AgentFailed(answer["error"])
        return answer["value"]

    async def _ask_command(self, process: _Process, row: str) -> Any:
        out, _ = await process.running.communicate(row.encode())
        if process.running.returncode:
            raise AgentFailed(f"the agent's command ended with exit code {process.running.returncode}")
        return returned_value(out.decode(errors="replace"))


def returned_value(output: str) -> Any:
    """Return a command's value: its last line if that is a JSON number or mapping, else all its output."""
    try:
        value = json.loads(output.rstrip().rpartition("\n")[2])
    except ValueError:
        return output.strip()
    return value if is_number(value) or isinstance(value, dict) else output.strip()


def rewarded(
    returned: Any, score: Callable[[str], Mapping[str, float]] | None, answers: Sequence[Any]
) -> tuple[float, dict[str, float]]:
    """Return reward and metrics from an agent's return value. Raises AgentFailed.

    A number is the reward; a mapping has ``reward``, else the sum of its numbers counts; ``score`` computes
    it for a text, and for None from the last answer's text.
    """
    if isinstance(returned, bool | int | float):
        return float(returned), {}
    if isinstance(returned, Mapping):
        parts = _numbers(returned)
        if not parts:
            raise AgentFailed(f"the agent returned {dict(returned)!r}, which has no number")
        return parts.pop("reward") if "reward" in parts else sum(parts.values()), parts
    text = answers[-1].response_text if returned is None and answers else returned
    if not isinstance(text, str):
        raise AgentFailed(f"the agent returned a {type(text).__name__}, not a number, a mapping or a text")
    if score is None:
        raise AgentFailed("the agent returned no reward, and the taskset has no default_reward_fn_type")
    scored = _numbers(score(text))
    return sum(scored.values()), scored


def _numbers(parts: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in parts.items() if isinstance(value, bool | int | float)}
