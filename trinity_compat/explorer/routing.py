"""Which engine answers which job, and how many more answers the engines could begin."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trinity_compat.explorer.rollout import Job

QUEUED = 1 / 16  # of an engine's slots: answers that may wait in its queue, so that no slot is ever free


class Loads:
    """Answers under way by engine: those given to it less those that it says have ended (all that ever have).

    Answers count, not tokens: how long one gets is not known before it ends, and what an engine lacks is
    places in its batch. ``by_load`` False deals jobs in turn, whatever the load, so that the same jobs make
    the same batches.
    """

    def __init__(self, engines: int, slots: int, *, by_load: bool) -> None:
        """``slots``: answers that an engine decodes at a time (vLLM's max_num_seqs)."""
        self._given, self._ended = [0] * engines, [0] * engines
        self._limit, self._by_load = math.ceil(slots * (1 + QUEUED)), by_load

    def share(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Each engine's part of ``jobs``, which are under way from now on."""
        shares: list[list[Job]] = [[] for _ in self._given]
        for place, job in enumerate(jobs):
            engine = self._least() if self._by_load else place % len(shares)
            shares[engine].append(job)
            self._given[engine] += job.answers
        return shares

    def _least(self) -> int:
        return min(range(len(self._given)), key=self._under_way)

    def _under_way(self, engine: int) -> int:
        return self._given[engine] - self._ended[engine]

    def ended(self, engine: int, answers: int) -> None:
        """So many answers of all that this engine was ever given have ended."""
        self._ended[engine] = answers

    def room(self) -> int:
        """Answers that could be begun now."""
        return sum(max(0, self._limit - self._under_way(engine)) for engine in range(len(self._given)))
