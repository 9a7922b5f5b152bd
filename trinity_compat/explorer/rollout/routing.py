"""Assignment of jobs to engines, and the number of answers that these could begin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trinity_compat.explorer.engine.trajectory import RolloutTask

QUEUED = 1 / 16  # of an engine's slots: answers that may wait in its queue, so that its slots stay full
CHARACTERS = 4  # of a prompt's text to a token, roughly: it is tokenized where it is answered


@dataclass(slots=True)
class _Load:
    """``answers`` in flight on an engine, and the tokens that they will hold in its cache."""

    answers: int = 0
    tokens: float = 0.0
    ended: int = 0  # in total


class EngineLoads:
    """Answers in flight by engine: those assigned to it less those that it reports as ended, in total.

    A job goes to the engine with the fewest outstanding tokens: those of the prompts, and for each answer the
    mean of the ended ones. An engine's room is counted in answers, since its limit is the slots of its batch.
    Without ``by_load`` jobs are dealt in turn, so that the same jobs make the same batches.
    """

    def __init__(self, engines: int, slots: int, *, by_load: bool) -> None:
        """Set the number of engines; ``slots``: answers that one decodes at a time (vLLM's max_num_seqs)."""
        self._loads = [_Load() for _ in range(engines)]
        self._limit, self._by_load = math.ceil(slots * (1 + QUEUED)), by_load
        self._measured, self._total = 0, 0

    def share(self, jobs: Sequence[RolloutTask]) -> list[list[RolloutTask]]:
        """Assign ``jobs``, which count as in flight from now on; return each engine's part."""
        shares: list[list[RolloutTask]] = [[] for _ in self._loads]
        for place, job in enumerate(jobs):
            engine = place % len(shares)
            if self._by_load:
                engine = min(range(len(self._loads)), key=lambda each: self._loads[each].tokens)
            shares[engine].append(job)
            self.add(engine, [job])
        return shares

    def add(self, engine: int, jobs: Iterable[RolloutTask]) -> None:
        """Count jobs as in flight on an engine."""
        load = self._loads[engine]
        for job in jobs:
            load.answers += job.answers
            load.tokens += job.answers * (prompt_tokens(job) + self.expected)

    def restart(self, engine: int) -> None:
        """Forget the answers in flight on an engine, whose new actor counts ended answers from 0."""
        self._loads[engine] = _Load()

    @property
    def expected(self) -> float:
        """Expected tokens of an answer: the mean so far."""
        return self._total / self._measured if self._measured else 1.0

    def measured(self, lengths: Sequence[int]) -> None:
        """Include received answers of these lengths in the mean."""
        self._measured += len(lengths)
        self._total += sum(lengths)

    def ended(self, engine: int, answers: int) -> None:
        """Set the total number of an engine's ended answers.

        The engine does not report which ones, so each counts for an equal part of the outstanding tokens.
        """
        load = self._loads[engine]
        remaining = load.answers - (answers - load.ended)
        load.tokens *= remaining / load.answers if load.answers else 0.0
        load.answers, load.ended = remaining, answers

    def room(self) -> int:
        """Return the number of answers that could begin now."""
        return sum(max(0, self._limit - load.answers) for load in self._loads)


def prompt_tokens(job: RolloutTask) -> float:
    """Estimate the tokens of a job's prompt."""
    messages = job.task.get("raw_prompt") or ()
    return sum(len(str(each.get("content", ""))) for each in messages if isinstance(each, dict)) / CHARACTERS
