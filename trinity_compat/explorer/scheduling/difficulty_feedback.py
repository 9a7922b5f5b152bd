"""Feedback of results to a task order that depends on them (``difficulty_based``).

Invariant: the rows that a step draws are a function of earlier steps' results, which are kept in the buffer's
state, step by step, before their groups are stored: a restarted explorer derives the same estimates, and a
repeated step draws the same rows. (trinity-rft 0.6.0 saves how many rows were drawn, not the estimates, which
are lost with each restart.)

Source: ``_finish_explore_step`` and ``need_sync`` in explorer/explorer.py of trinity-rft 0.6.0.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypedDict

from trinity_compat.buffer.store import Buffer
from trinity_compat.buffer.stream_position import ADOPTED, AdoptedPosition
from trinity_compat.explorer.data.taskset_order import TasksetOrder
from trinity_compat.explorer.scheduling.filtering import FilterDraw
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.job.state_cell import StateCell
from trinity_compat.synchronizer.policy import steps_at_sync
from trinity_compat.trinity.pipelines.runner import Feedback

_log = logging.getLogger(__name__)


class _Results(TypedDict):
    history: int
    told: Sequence[Feedback]


_RESULTS = StateCell[_Results]("feedback")  # of a step's draws


class DifficultyFeedback:
    """Passes results from the buffer to the task order; idle where the order does not learn."""

    def __init__(self, buffer: Buffer, order: object, sync: SyncSpec) -> None:
        self._buffer, self._sync = buffer, sync
        self._order = order if isinstance(order, TasksetOrder) and order.learns else None
        self._history = self._learned = 0  # the last step that the order has learned from

    def update_order(self, step: int, history: int) -> None:
        """Pass the results of earlier steps to the order; call before tasks of ``step`` are drawn.

        Raises RunError for results of nonexistent rows.
        """
        if self._order is None:
            return
        last = last_known_step(self._sync, step)
        if history != self._history or last < self._learned:
            self._order.forget()
            self._history, self._learned = history, 0
        for taskset, rows, rates in self._results(range(self._learned + 1, last + 1)):
            self._order.learn(taskset, rows, rates)
        self._learned = max(self._learned, last)

    def _results(self, steps: Sequence[int]) -> list[Feedback]:
        # Results from before the run took over another database's position belong to another run.
        since = (ADOPTED.get(self._buffer) or AdoptedPosition()).history
        found = {step: _RESULTS.at(step).get(self._buffer) for step in steps}
        known = {step: kept["told"] for step, kept in found.items() if kept and kept["history"] >= since}
        unknown = [step for step in steps if step not in known]
        if unknown:
            _log.warning(
                "the results of %d steps up to %d are not in this database: rows are drawn as if those steps"
                " had not been",
                len(unknown),
                unknown[-1],
            )
        return [result for told in known.values() for result in told]

    def save(self, draw: FilterDraw, history: int) -> None:
        """Save the results of a step's draws. Call before its groups are stored."""
        if self._order is None:
            return
        _RESULTS.at(draw.step).set(self._buffer, {"history": history, "told": draw.feedback})
        if draw.step <= self._learned:  # a repeated step: later ones have to learn from it
            self._history = 0


def last_known_step(sync: SyncSpec, step: int) -> int:
    """Return the last step (from 1; 0: none) whose rewards count when ``step`` draws its tasks.

    As upstream: those up to the last sync; under fully_async, where results are fed back as steps end, all
    before it.
    """
    if sync.style == "fully_async":
        return step - 1
    done = steps_at_sync(sync, step)
    return sync.offset + done if done > 0 else 0
