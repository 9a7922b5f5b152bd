"""Which engine answers which job, and how many more answers the engines could begin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trinity_compat.explorer.engine.trajectory import RolloutTask

QUEUED = 1 / 16  # of an engine's slots: answers that may wait in its queue, so that no slot is ever free
CHARACTERS = 4  # of a prompt's text to a token, roughly: it is tokenized where it is answered


@dataclass(slots=True)
class _Load:
    """``answers`` under way on an engine, and the tokens that they will have held in its cache."""

    answers: int = 0
    tokens: float = 0.0
    ended: int = 0  # all that ever have


class EngineLoads:
    """Answers under way by engine: those given to it less those that it says have ended (all that ever have).

    A job goes to the engine with the fewest outstanding tokens: those of the prompts, and for each answer the
    mean of the ended ones. How many more an engine takes is counted in answers: what it lacks is places in
    its batch. ``by_load`` False deals jobs in turn, whatever the load, so that the same jobs make the same
    batches.
    """

    def __init__(self, engines: int, slots: int, *, by_load: bool) -> None:
        """``slots``: answers that an engine decodes at a time (vLLM's max_num_seqs)."""
        self._loads = [_Load() for _ in range(engines)]
        self._limit, self._by_load = math.ceil(slots * (1 + QUEUED)), by_load
        self._measured, self._total = 0, 0

    def share(self, jobs: Sequence[RolloutTask]) -> list[list[RolloutTask]]:
        """Each engine's part of ``jobs``, which are under way from now on."""
        shares: list[list[RolloutTask]] = [[] for _ in self._loads]
        for place, job in enumerate(jobs):
            engine = self._least() if self._by_load else place % len(shares)
            shares[engine].append(job)
            load = self._loads[engine]
            load.answers += job.answers
            load.tokens += job.answers * (prompt_tokens(job) + self.expected)
        return shares

    def _least(self) -> int:
        return min(range(len(self._loads)), key=lambda engine: self._loads[engine].tokens)

    @property
    def expected(self) -> float:
        """Tokens of an answer, as far as is known."""
        return self._total / self._measured if self._measured else 1.0

    def measured(self, lengths: Sequence[int]) -> None:
        """Answers of these lengths have been received."""
        self._measured += len(lengths)
        self._total += sum(lengths)

    def ended(self, engine: int, answers: int) -> None:
        """So many answers of all that this engine was ever given have ended: which ones is not told, so each
        takes an equal part of the tokens with it."""
        load = self._loads[engine]
        left = load.answers - (answers - load.ended)
        load.tokens *= left / load.answers if load.answers else 0.0
        load.answers, load.ended = left, answers

    def room(self) -> int:
        """Answers that could be begun now."""
        return sum(max(0, self._limit - load.answers) for load in self._loads)


def prompt_tokens(job: RolloutTask) -> float:
    """About how many a job's prompt has."""
    messages = job.task.get("raw_prompt") or ()
    return sum(len(str(each.get("content", ""))) for each in messages if isinstance(each, dict)) / CHARACTERS
