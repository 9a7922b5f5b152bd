"""The explorer's side of the weight-sync check (synchronizer/weight_sync_check.py), with the first update."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from trinity_compat.buffer.api import Buffer
from trinity_compat.synchronizer import weight_sync_check

_log = logging.getLogger(__name__)


class ScoringEngine(Protocol):
    """Engines that score a text."""

    async def score(self, token_ids: Sequence[int]) -> list[list[float]]:
        """Return, for each engine, the log-probability of every token after the first, at temperature 1."""


class WeightSyncCheck:
    """Compares the engines' log-probabilities with the trainer's, once.

    ``bound``: of the mean difference, in nats a token; 0 disables the check.
    """

    def __init__(self, buffer: Buffer, engines: ScoringEngine, bound: float) -> None:
        self._buffer, self._engines, self._bound = buffer, engines, bound

    async def check(self, version: int) -> None:
        """Check a version that was loaded. Raises RunError when an engine holds other weights."""
        if (
            not self._bound
            or not version
            or (sample := weight_sync_check.find(self._buffer, version)) is None
        ):
            return
        bound, self._bound = self._bound, 0.0
        scored = await self._engines.score([*sample.prompt_ids, *sample.response_ids])
        for logprobs in scored:
            result = sample.check(logprobs[-len(sample.logprobs) :], bound)
            _log.info("self-test of the handover: %s", result)
