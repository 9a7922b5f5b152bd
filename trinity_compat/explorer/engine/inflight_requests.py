"""Answers in flight while the weights change: they continue, or start again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from trinity_compat.explorer.engine.vllm import Completion, GenerationRequest


class AnsweringEngine(Protocol):
    """The part of an engine that answers requests."""

    async def submit(self, requests: Sequence[GenerationRequest]) -> list[asyncio.Future[list[Completion]]]:
        """Submit requests; see ``Engine.submit``."""


class GenerationClient(AnsweringEngine, Protocol):
    """``InflightRequests``, or its proxy in another process."""

    async def again(self) -> None:
        """Wait until a cancelled request may be sent again; see ``InflightRequests``."""


class InflightRequests:
    """Requests in flight on an engine.

    Without ``partial`` (veRL's ``async_training.partial_rollout``) no answer outlives the weights that began
    it: a change cancels it, which makes vLLM abort the request, and its caller sends it again after
    ``again``.
    """

    def __init__(self, engine: AnsweringEngine, *, partial: bool = True) -> None:
        self._engine, self._partial = engine, partial
        self._in_flight: set[asyncio.Future[list[Completion]]] = set()
        self._settled = asyncio.Event()
        self._settled.set()
        self.interrupted = 0  # answers that were restarted

    @property
    def changes(self) -> bool:
        """Return whether the weights are being replaced, or will be."""
        return not self._settled.is_set()

    async def submit(self, requests: Sequence[GenerationRequest]) -> list[asyncio.Future[list[Completion]]]:
        """Submit requests once no change of weights is going on; see ``Engine.submit``."""
        await self._settled.wait()
        answers = await self._engine.submit(requests)
        self._in_flight.update(answers)
        for answer in answers:
            answer.add_done_callback(self._in_flight.discard)
        return answers

    def hold(self) -> None:
        """Submit no more before the next change of weights is over."""
        self._settled.clear()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Context of a change of weights."""
        ending = [] if self._partial else [*self._in_flight]
        self._settled.clear()
        try:
            for answer in ending:
                answer.cancel()
            if ending:
                await asyncio.wait(ending)
            self.interrupted += len(ending)
            yield
        finally:
            self._settled.set()

    async def again(self) -> None:
        """Wait, after an answer was cancelled, until its request may be sent again.

        Raises CancelledError where the caller was cancelled, not the answer.
        """
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise asyncio.CancelledError
        await self._settled.wait()
