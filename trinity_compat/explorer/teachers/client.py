"""Requests of an explorer to its run's teachers: which teacher, which of its servers, and what fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import aiohttp
import numpy as np

from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError
from trinity_compat.common.watchdog import Activity, Watchdog
from trinity_compat.explorer.engine.arguments import START_S
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.scoring import name_task
from trinity_compat.explorer.teachers.address import key, load_addresses, wait_for_addresses
from trinity_compat.explorer.teachers.arguments import Distillation, Teacher, distillation
from trinity_compat.explorer.teachers.media import PromptMedia, PromptReader
from trinity_compat.explorer.teachers.wire import ScoreRequest, TeacherRows

_PAUSE_S = 1.0
_BUSY = 503  # its engine has died: the server ends

# Addresses (host:port) of a teacher's servers, by its place among the teachers.
Addresses = Callable[[int], Sequence[str]]


class TeacherClient:
    """Requests rows of log-probabilities; close it after the last one.

    ``addresses`` is called again when a server does not answer: after a restart it may have another one.
    ``key``: that of the servers (``address``). ``reader``: reads the media of prompts; None where tasks have
    none. ``retry_s``: the limit for a server that is started again, which loads its model first.
    ``watchdog`` observes requests: one that a server holds without an answer would wait without end.
    """

    def __init__(
        self,
        distillation: Distillation,
        addresses: Addresses,
        *,
        key: str,
        reader: PromptReader | None = None,
        retry_s: float = START_S,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._distillation = distillation
        self._servers = {
            teacher.key: _Servers(teacher, place, addresses, retry_s, watchdog or Watchdog())
            for place, teacher in enumerate(distillation.teachers)
        }
        self._reader = reader
        self._headers = {"Authorization": f"Bearer {key}"}
        self._session: aiohttp.ClientSession | None = None

    async def media(self, task: Mapping[str, Any]) -> PromptMedia | None:
        """Return the media of a task's prompt, for the requests about all its answers."""
        return await self._reader.read(task) if self._reader else None

    async def score(
        self, task: Mapping[str, Any], part: Trajectory, media: PromptMedia | None = None
    ) -> TeacherRows:
        """Return the rows of an answer's response, by the teacher of its task.

        ``media``: those of the task. Raises RunError for a task without a teacher, for a request that the
        teacher refuses, and where it does not answer for ``retry_s`` seconds.
        """
        servers = self._servers[self._key_of(task)]
        ids = np.concatenate([np.asarray(each, np.int32) for each in (part.prompt_ids, part.response_ids)])
        request = ScoreRequest(ids, len(part.response_ids), self._distillation.top, media)
        if self._session is None:
            # Bounded by the servers' own limit, not by aiohttp's of 100 connections and 5 minutes.
            whole = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=whole, connector=connector, headers=self._headers)
        body = await servers.post(self._session, request, name_task(task))
        try:
            rows = TeacherRows.decode(body)
        except ValueError as error:
            raise RunError(f"{servers.name} returned what cannot be read: {error}") from error
        shape = (request.rows, max(request.top, 1))
        if rows.logprobs.shape != shape or (rows.ids is None) != (request.top == 0):
            raise RunError(f"{servers.name} returned rows of shape {rows.logprobs.shape} instead of {shape}")
        return rows

    def _key_of(self, task: Mapping[str, Any]) -> str:
        """Return the key of a task's teacher (verl 0.9.1, teacher_manager.py, ``_resolve_teacher_key``)."""
        if len(self._servers) == 1:
            return next(iter(self._servers))
        value = task.get(self._distillation.column)
        key = value.item() if isinstance(value, np.generic | np.ndarray) else value
        if key is None:
            raise RunError(
                f"{name_task(task)}: Routing key is required for multi-teacher distillation (configured via"
                f" distillation.teacher_key={self._distillation.column!r})."
            )
        if key not in self._servers:
            raise RunError(
                f"{name_task(task)}: No teacher configured for routing key {key!r}. Configured teachers:"
                f" {sorted(self._servers)}."
            )
        return str(key)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


@contextlib.asynccontextmanager
async def connected(
    verl: Mapping[str, Any],
    buffer: Buffer,
    check: Callable[[], None],
    *,
    timeout_s: float,
    reader: PromptReader | None = None,
    watchdog: Watchdog | None = None,
) -> AsyncIterator[TeacherClient | None]:
    """Yield a client of the launch's teachers once all are served; None without distillation.

    Raises as ``ServedRole.wait`` does.
    """
    found = distillation(verl)
    if found is None:
        yield None
        return
    await wait_for_addresses(buffer, check, timeout_s=timeout_s, teachers=len(found.teachers))
    known = partial(load_addresses, buffer)
    client = TeacherClient(found, known, key=key(), reader=reader, retry_s=timeout_s, watchdog=watchdog)
    try:
        yield client
    finally:
        await client.close()


class _Servers:
    """One teacher's servers: each request goes to the one with the fewest under way."""

    def __init__(
        self, teacher: Teacher, place: int, addresses: Addresses, retry_s: float, watchdog: Watchdog
    ) -> None:
        self.name = f"the teacher {teacher.key!r} ({teacher.path})"
        self._place, self._addresses, self._retry_s = place, addresses, retry_s
        self._watchdog = watchdog
        self._waiting = 0  # requests
        self._activity: Activity | None = None  # while there are any
        self._known: Sequence[str] = addresses(place)
        self._under_way: Counter[str] = Counter()
        self._room = asyncio.Semaphore(int(teacher.inference["max_num_seqs"]) * teacher.servers)

    async def post(self, session: aiohttp.ClientSession, request: ScoreRequest, what: str) -> bytes:
        """Return the reply to a request about ``what``; see ``TeacherClient.score``."""
        async with self._room, self._observed():
            body = request.encode()  # not before there is room: with images it is large
            until = time.monotonic() + self._retry_s
            while True:
                address = min(self._known, key=self._under_way.__getitem__)
                try:
                    return await self._post_to(address, session, body, what)
                except (TimeoutError, aiohttp.ClientError, OSError) as error:
                    if time.monotonic() > until:
                        late = f"{self.name} did not answer at {address} for {self._retry_s:g} s"
                        raise RunError(f"{late}: {error!r}") from error
                self._progress()  # here ``retry_s`` is the limit
                await asyncio.sleep(_PAUSE_S)
                self._known = self._addresses(self._place) or self._known

    @contextlib.asynccontextmanager
    async def _observed(self) -> AsyncIterator[None]:
        """Keep an activity of the watchdog while requests wait: it progresses with any answer."""
        self._activity = self._activity or self._watchdog.begin(f"the answers of {self.name}")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._watchdog.end(self._activity)
                self._activity = None

    def _progress(self) -> None:
        if self._activity:
            self._activity.progress()

    async def _post_to(self, address: str, session: aiohttp.ClientSession, body: bytes, what: str) -> bytes:
        self._under_way[address] += 1
        try:
            async with session.post(f"http://{address}/score", data=body) as reply:
                if reply.status == _BUSY:
                    reply.raise_for_status()
                if reply.status != 200:
                    why = (await reply.text()).strip()
                    raise RunError(f"{self.name} refused {what}: {why}")
                answer = await reply.read()
                self._progress()
                return answer
        finally:
            self._under_way[address] -= 1
