"""The explorer's side of the weight-sync check (synchronizer/weight_sync_check.py), with the first update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trinity_compat.buffer.api import Buffer
from trinity_compat.synchronizer import weight_sync_check


class ScoringEngine(Protocol):
    """Engines that tell what they think of a text."""

    async def score(self, token_ids: Sequence[int]) -> list[list[float]]:
        """For each engine the log-probability of every token after the first, at temperature 1."""


class HandoverTest:
    """``bound``: nats a token, in the mean; 0 leaves the test out."""

    def __init__(self, buffer: Buffer, engines: ScoringEngine, bound: float) -> None:
        self._buffer, self._engines, self._bound = buffer, engines, bound

    async def check(self, version: int) -> None:
        """Call when ``version`` is in place. Raises RunError when an engine holds other weights."""
        if not self._bound or not version or (left := weight_sync_check.find(self._buffer, version)) is None:
            return
        bound, self._bound = self._bound, 0.0
        scored = await self._engines.score([*left.prompt_ids, *left.response_ids])
        for answered in scored:
            print(
                f"self-test of the handover: {left.check(answered[-len(left.logprobs) :], bound)}", flush=True
            )
