"""filter_groups among several explorers: they share each draw, and one of them ends it.

The positions of a draw are leased like tasks. Their groups lie in the buffer as kind ``draw:STEP``, where no
trainer looks, until the draw is complete. Then whoever gets the lease for it looks at all of them: enough
differ, and those that are kept become the step's training groups in one transaction; or the next draw is
opened. So what a step keeps is the same as with one explorer, and one that dies loses only what it had under
way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trinity_compat.buffer import HistoryChanged
from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import Group, TaskQuery
from trinity_compat.buffer.stream_position import stream_key
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.scheduling.filtering import FilterDraw, GroupFilter
from trinity_compat.explorer.scheduling.task_allocation import Queue


@dataclass(frozen=True, slots=True)
class Settled:
    """A drawing that this explorer has ended, and the groups that the step keeps."""

    draw: FilterDraw
    kept: Sequence[Group]


def begins(buffer: Buffer, step: int) -> int:
    """Where in the task stream a step's drawing begins. Raises RunError when nobody has said."""
    found = 0 if step == 1 else buffer.get_state(stream_key(step))
    if found is None:
        raise RunError(f"the buffer does not say where in the task stream step {step} begins")
    return int(found)


class SharedFilterDraws:
    """The drawings of a run, one step's at a time."""

    def __init__(self, buffer: Buffer, queue: Queue, filter_: GroupFilter) -> None:
        self._buffer, self._queue, self._filter = buffer, queue, filter_
        self._begun: tuple[object, ...] = ()  # what the positions in _have belong to
        self._have: set[int] = set()

    def kind(self, step: int) -> str:
        """Of the groups that it draws."""
        return f"draw:{step}"

    def needs(self, step: int, history: int) -> bool:
        """Whether this explorer has something to do for it."""
        asked = self._asked(step, history)
        return bool(self._buffer.free_tasks(asked, limit=1)) or self._complete(asked)

    def take(self, step: int, version: int, history: int) -> list[int]:
        """Positions of the task stream to answer now."""
        asked = self._asked(step, history)
        taken = self._queue.lease(asked, asked.upto - asked.first, version, history)
        self._have.update(taken)
        return taken

    def settle(self, step: int, history: int) -> Settled | None:
        """End the drawing if it can be ended, or open the next draw; None when that is not, or not by this
        explorer. Raises RunError when it may draw no more."""
        asked = self._asked(step, history)
        if not self._complete(asked) or not self._is_mine(asked, step, history):
            return None
        draw, groups = FilterDraw(self._filter, step, asked.first), self._buffer.groups(asked.kind)
        while draw.position < asked.upto:
            numbers = {*draw.tasks()}
            draw.add([group for group in groups if group.task_no in numbers])
        print(draw.told, flush=True)
        if draw.full:
            return self._end(draw, asked.kind, history)
        draw.check()
        self._buffer.set_state(_draws(step), {"history": history, "draws": draw.draws + 1})
        return None

    def _end(self, draw: FilterDraw, kind: str, history: int) -> Settled | None:
        kept = draw.groups(history)
        then = {stream_key(draw.step + 1): draw.position}
        try:
            ended = self._buffer.settle_drawing(kept, kind=kind, then=then, history=history)
        except HistoryChanged:
            return None
        return Settled(draw, kept) if ended else None

    def _asked(self, step: int, history: int) -> TaskQuery:
        """All draws that have been opened."""
        noted, first = self._buffer.get_state(_draws(step)), begins(self._buffer, step)
        draws = noted["draws"] if noted and noted["history"] == history else 1
        whole = self._queue.asked(first + draws * self._filter.draw_size, self._under_way(step, history))
        return replace(whole, kind=self.kind(step), first=first)

    def _under_way(self, step: int, history: int) -> set[int]:
        """Positions that this explorer has taken.

        Until their groups are stored their leases alone would give them to it a second time, as they give a
        restarted explorer what its predecessor had.
        """
        begun = self._queue.holder.token, step, history
        if begun != self._begun:
            self._begun, self._have = begun, set()
        return self._have

    def _complete(self, asked: TaskQuery) -> bool:
        return self._buffer.depth(asked.kind)["ready"] >= asked.upto - asked.first

    def _is_mine(self, asked: TaskQuery, step: int, history: int) -> bool:
        """A lease, so that one explorer reads the groups."""
        one = TaskQuery(asked.holder, asked.upto + 1, kind=f"settle:{step}", first=asked.upto)
        return bool(self._queue.lease(one, 1, 0, history))


def _draws(step: int) -> str:
    return f"draws/{step}"
