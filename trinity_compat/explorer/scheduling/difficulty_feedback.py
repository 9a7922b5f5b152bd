"""What came back of the tasks, for an order that depends on it (``difficulty_based``).

Invariant: the rows that a step draws are a function of what earlier steps brought back, and that is kept in
the buffer's state, step by step, before their groups are: an explorer that starts again derives the same
estimates, and a step that is made again draws the same rows. (trinity-rft 0.6.0 saves how many rows were
drawn, not the estimates, which begin anew with each start.)

Source: ``_finish_explore_step`` and ``need_sync`` in explorer/explorer.py of trinity-rft 0.6.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.stream_position import ADOPTED
from trinity_compat.explorer.data.taskset_order import TasksetOrder
from trinity_compat.explorer.scheduling.filtering import FilterDraw
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.synchronizer.policy import explorer_interval


class DifficultyFeedback:
    """Between the buffer and the order of the tasks; idle where the order does not learn."""

    def __init__(self, buffer: Buffer, order: object, sync: SyncSpec) -> None:
        self._buffer, self._sync = buffer, sync
        self._order = order if isinstance(order, TasksetOrder) and order.learns else None
        self._history = self._told = 0  # the steps that the order knows of

    def tell(self, step: int, history: int) -> None:
        """Before tasks of ``step`` are drawn: the order learns what came back of the steps before it.

        Raises RunError for what is about rows that there are not.
        """
        if self._order is None:
            return
        last = known_before(self._sync, step)
        if history != self._history or last < self._told:
            self._order.forget()
            self._history, self._told = history, 0
        for taskset, rows, rates in self._of(range(self._told + 1, last + 1)):
            self._order.learn(taskset, rows, rates)
        self._told = max(self._told, last)

    def _of(self, steps: Sequence[int]) -> Iterator[tuple[int, list[int], list[float]]]:
        # What was kept before the tasks went on from elsewhere is about another run.
        since = (self._buffer.get_state(ADOPTED) or {"history": 0})["history"]
        found: dict[int, Any] = {step: self._buffer.get_state(_key(step)) for step in steps}
        unknown = [step for step, kept in found.items() if not kept or kept["history"] < since]
        if unknown:
            print(
                f"what came back of {len(unknown)} steps up to {unknown[-1]} is not in this database:"
                " rows are drawn as if they had never been",
                flush=True,
            )
        for step in steps:
            yield from () if step in unknown else found[step]["told"]

    def keep(self, draw: FilterDraw, history: int) -> None:
        """What came back of a step's draws. Call before its groups are stored."""
        if self._order is None:
            return
        self._buffer.set_state(_key(draw.step), {"history": history, "told": draw.feedback})
        if draw.step <= self._told:  # made again: later steps have to know
            self._history = 0


def known_before(sync: SyncSpec, step: int) -> int:
    """The last step (from 1; 0: none) whose rewards count when ``step`` draws its tasks.

    As upstream: those up to the last sync; under fully_async, where it feeds back as steps end, all before
    it.
    """
    if sync.style == "fully_async":
        return step - 1
    interval = explorer_interval(sync)
    synced = (step - 1 - sync.offset) // interval
    return sync.offset + synced * interval if synced > 0 else 0


def _key(step: int) -> str:
    return f"feedback/{step}"
