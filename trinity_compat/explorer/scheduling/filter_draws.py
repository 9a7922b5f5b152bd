"""Draws of filter_groups: by a single explorer, or shared by several, one of which ends each draw.

The positions of a shared draw are leased like tasks. Their groups are stored in the buffer as kind
``draw:STEP``, which no trainer claims, until the draw is complete. Then the holder of the draw's lease reads
them all: if enough differ, those that are kept become the step's training groups in one transaction; else it
opens the next draw. So a step keeps the same groups as with one explorer, and an explorer that dies loses
only its groups in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trinity_compat.buffer import HistoryChanged
from trinity_compat.buffer.model import Group, TaskQuery
from trinity_compat.buffer.store import Buffer
from trinity_compat.buffer.stream_position import FIRST_TASK
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.scheduling.difficulty_feedback import DifficultyFeedback
from trinity_compat.explorer.scheduling.filtering import FilterDraw, GroupFilter
from trinity_compat.explorer.scheduling.task_allocation import LeasedTasks
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.job.state_cell import StateCell

_log = logging.getLogger(__name__)
_OPENED = StateCell[dict[str, int]]("draws")  # a step's number of draws and its history, from the second on


@dataclass(frozen=True, slots=True)
class Settled:
    """A draw that this explorer has ended, and the groups that the step keeps."""

    draw: FilterDraw
    kept: Sequence[Group]


def stream_start(buffer: Buffer, step: int) -> int:
    """Return the position of the task stream at which a step's draw starts.

    Raises RunError when the buffer has none.
    """
    start = 0 if step == 1 else FIRST_TASK.at(step).get(buffer)
    if start is None:
        raise RunError(f"the buffer does not say where in the task stream step {step} begins")
    return start


class SoleFilterDraws:
    """The draws of a run with one explorer."""

    def __init__(self, buffer: Buffer, filter_: GroupFilter, order: object, sync: SyncSpec) -> None:
        self._buffer, self._filter = buffer, filter_
        self._feedback = DifficultyFeedback(buffer, order, sync)

    def start(self, step: int, history: int) -> FilterDraw:
        """Start a step's draw, from the rewards that count by then."""
        self._feedback.update_order(step, history)
        return FilterDraw(self._filter, step, stream_start(self._buffer, step))

    def finish(self, draw: FilterDraw, history: int) -> None:
        """Record where the next step starts.

        Call before the step's groups are stored: a crash between the two makes the step again, from its own
        start.
        """
        self._feedback.save(draw, history)
        FIRST_TASK.at(draw.step + 1).set(self._buffer, draw.position)


class SharedFilterDraws:
    """The draws of a run with several explorers, one step's at a time."""

    def __init__(self, buffer: Buffer, tasks: LeasedTasks, filter_: GroupFilter) -> None:
        self._buffer, self._tasks, self._filter = buffer, tasks, filter_
        self._begun: tuple[object, ...] = ()  # what the positions in _have belong to
        self._have: set[int] = set()

    def kind(self, step: int) -> str:
        """Kind of the groups of a step's draw in the buffer."""
        return f"draw:{step}"

    def needs(self, step: int, history: int) -> bool:
        """Return whether this explorer has something to do for a step."""
        query = self._query(step, history)
        return bool(self._buffer.free_tasks(query, limit=1)) or self._complete(query)

    def take(self, step: int, version: int, history: int) -> list[int]:
        """Lease positions of the task stream that this explorer answers now."""
        query = self._query(step, history)
        taken = self._tasks.lease(query, query.upto - query.first, version, history)
        self._have.update(taken)
        return taken

    def settle(self, step: int, history: int) -> Settled | None:
        """End a step's draw, or open the next one.

        None while it is incomplete, or when another explorer ends it. Raises RunError when it may draw no
        more.
        """
        query = self._query(step, history)
        if not self._complete(query) or not self._is_mine(query, step, history):
            return None
        draw, groups = FilterDraw(self._filter, step, query.first), self._buffer.groups(query.kind)
        while draw.position < query.upto:
            numbers = {*draw.tasks()}
            draw.add([group for group in groups if group.task_no in numbers])
        _log.info(draw.progress)
        if draw.is_full:
            kept = draw.groups(history)
            try:
                ended = self._buffer.settle_drawing(
                    kept, step=draw.step, position=draw.position, history=history
                )
            except HistoryChanged:
                return None
            return Settled(draw, kept) if ended else None
        draw.check()
        _OPENED.at(step).set(self._buffer, {"history": history, "draws": draw.draws + 1})
        return None

    def _query(self, step: int, history: int) -> TaskQuery:
        """Query for the positions of all draws that were opened."""
        noted, first = _OPENED.at(step).get(self._buffer), stream_start(self._buffer, step)
        draws = noted["draws"] if noted and noted["history"] == history else 1
        # Positions that this explorer has taken: until their groups are stored, their leases alone would let
        # it take them a second time, as they let a restarted explorer take its predecessor's.
        begun = self._tasks.holder.token, step, history
        if begun != self._begun:
            self._begun, self._have = begun, set()
        whole = self._tasks.query(first + draws * self._filter.draw_size, self._have)
        return replace(whole, kind=self.kind(step), first=first)

    def _complete(self, query: TaskQuery) -> bool:
        return self._buffer.depth(query.kind)["ready"] >= query.upto - query.first

    def _is_mine(self, query: TaskQuery, step: int, history: int) -> bool:
        """Take the lease that lets one explorer read the groups."""
        one = TaskQuery(query.holder, query.upto + 1, kind=f"settle:{step}", first=query.upto)
        return bool(self._tasks.lease(one, 1, 0, history))
