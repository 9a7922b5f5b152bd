"""Finished groups on their way into the buffer: which go now, which wait for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trinity_compat.buffer.model import EvalRequest, Group, PendingTasks
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.scheduling.filtering import FilterDraw
from trinity_compat.explorer.scheduling.report import StepTimes

LINGER_S = 0.2  # a group waits so long for others to share its transaction
BATCH = 64  # groups of one transaction


@dataclass(slots=True, eq=False)
class StepInProgress:
    """A step under way, or an evaluation (``request``).

    ``tasks`` make a group each; ``version`` began it. ``grows``: more of the step may come.
    """

    step: int
    version: int
    tasks: list[int]
    times: StepTimes
    draw: FilterDraw | None = None
    request: EvalRequest | None = None
    kind: str = "train"
    grows: bool = False
    groups: list[Group] = field(default_factory=list)
    stored: int = 0
    ended: int = 0  # how often one of its tasks was ended before it was finished

    @property
    def finished(self) -> bool:
        """Whether all its groups are there."""
        return len(self.groups) == len(self.tasks)

    @property
    def open(self) -> bool:
        """Whether some of its groups are not stored."""
        return self.stored < len(self.tasks)


class StalenessGate:
    """Which finished groups may be stored, where what is too old is dropped.

    A group that was begun with version v is of use to a step up to v + 1 + ``limit``, its deadline; a claim
    takes the earliest tasks that are ready. So as long as a group with deadline d is not stored, fewer groups
    may be than the steps up to d take: else the trainer could pass it. The group with the earliest deadline
    may always go, so nothing waits for ever.
    """

    def __init__(
        self,
        limit: int,
        batch_size: int,
        tasks: int,
        others: Callable[[], PendingTasks | None],
        *,
        explorers: int,
    ) -> None:
        """``tasks``: how many the run has.

        ``others``: what is stored, and what the other ``explorers`` have under way; None where there are
        none.
        """
        self._limit, self._batch, self._tasks = limit, batch_size, tasks
        self._others, self._explorers = others, explorers
        self._deadline: dict[int, int] = {}
        self._open: Counter[int] = Counter()  # groups that are not stored, by deadline
        self._below = 0

    def begin(self, tasks: Sequence[int], version: int) -> None:
        """They are being made, ``version`` being in place."""
        deadline = version + 1 + self._limit
        if not self._below:  # a former start may have stored any task that might begin by now
            self._below = min(deadline * self._batch, self._tasks)
        self._below = max(self._below, *(task + 1 for task in tasks))
        self._deadline |= dict.fromkeys(tasks, deadline)
        self._open[deadline] += len(tasks)

    def began(self, task: int, version: int) -> None:
        """Not with the version that was in place when its turn had not come yet, but with this one."""
        self._close(task)
        self._deadline[task] = version + 1 + self._limit
        self._open[self._deadline[task]] += 1

    def allowed(self, tasks: Iterable[int]) -> Iterator[int]:
        """Of these finished ones those that may be stored now, the earliest deadlines first."""
        finished: dict[int, list[int]] = {}
        for task in sorted(tasks):
            finished.setdefault(self._deadline[task], []).append(task)
        stored, open_ = self._elsewhere()
        upto, left = 0, self._tasks
        for deadline in sorted(open_):
            # What goes counts for the deadlines before; for the others one more is stored and one less open.
            going = finished.get(deadline, [])[: max(0, left)]
            yield from going
            upto += open_[deadline]
            # The others read the same numbers at the same time: each explorer uses its part of what is left.
            spare = (deadline * self._batch - stored - upto) // self._explorers
            left = min(left - len(going), spare)

    def _elsewhere(self) -> tuple[int, Counter[int]]:
        """What is stored, and all that is not but is being made, by deadline."""
        others = self._others()
        if others is None:
            return self._below - self._open.total(), self._open
        theirs = {version + 1 + self._limit: count for version, count in others.others.items()}
        return others.stored, self._open + Counter(theirs)

    def stored(self, task: int) -> None:
        """It is."""
        self._close(task)
        del self._deadline[task]

    def _close(self, task: int) -> None:
        self._open[self._deadline[task]] -= 1
        self._open += Counter()  # without those that are 0


class CommitQueue:
    """``whole``: a step is one transaction, and none goes before an earlier one; so neither the trainer's
    claims nor what a kill leaves to be made depend on which answer was the shortest. Else groups go as they
    are finished, several together, as ``slack`` allows. An evaluation is one transaction anyway. ``grows``: a
    step's tasks come bit by bit."""

    def __init__(self, *, whole: bool, slack: StalenessGate | None = None, grows: bool = False) -> None:
        self._whole, self._slack, self._grows = whole, slack, grows
        self._makings: list[StepInProgress] = []
        self._of: dict[tuple[str, int], StepInProgress] = {}  # by kind and task
        self._loose: dict[int, Group] = {}  # finished and not stored, by task
        self._fresh, self._due = 0, 0.0  # of those, how many came since the last look; when the next one is

    def begin(self, making: StepInProgress) -> None:
        """Its groups will come."""
        growing = self._growing(making)
        if growing is making:
            self._makings.append(making)
        else:
            growing.tasks += making.tasks
        self._of |= {(making.kind, task): growing for task in making.tasks}
        if self._slack and not making.request:
            self._slack.begin(making.tasks, making.version)

    def _growing(self, making: StepInProgress) -> StepInProgress:
        """What stands for it: the same step's that has begun before, where steps grow."""
        making.grows = self._grows and not making.request
        same = (each for each in self._makings if each.grows and making.grows and each.step == making.step)
        return next(same, making)

    def began(self, jobs: Sequence[RolloutTask], version: int) -> None:
        """The turn of these training tasks has come, ``version`` being in place."""
        if slack := self._slack:
            for job in jobs:
                slack.began(job.task_no, version)

    def add(self, group: Group, now: float) -> None:
        """It is finished; ``now`` in seconds."""
        making = self._of[group.kind, group.task_no]
        making.groups.append(group)
        if making.finished:
            making.times.reach("rollout")
        if not (self._whole or making.request):
            self._due = self._due if self._loose else now + LINGER_S
            self._fresh += 1
            self._loose[group.task_no] = group

    def take(self, now: float, *, flush: bool) -> Iterator[list[Group]]:
        """What is to be stored now, a transaction each. ``flush``: there is nobody left to share it with."""
        for making in self._whole_ones():
            yield sorted(making.groups, key=lambda group: group.task_no)
        if self._loose and (flush or self._fresh >= BATCH or now >= self._due):
            self._fresh, self._due = 0, now + LINGER_S
            tasks = [*self._slack.allowed(self._loose)] if self._slack else sorted(self._loose)
            for first in range(0, len(tasks), BATCH):
                yield [self._go(task) for task in tasks[first : first + BATCH]]

    def _whole_ones(self) -> Iterator[StepInProgress]:
        for making in sorted(self._makings, key=lambda making: (making.kind, making.step)):
            if self._whole or making.request:
                if making.finished:
                    yield making
                elif not making.request:
                    return

    def _go(self, task: int) -> Group:
        if self._slack:
            self._slack.stored(task)
        return self._loose.pop(task)

    def draws(self, groups: Sequence[Group]) -> Iterator[FilterDraw]:
        """The drawings that ``groups`` come from."""
        makings = dict.fromkeys(self._of[group.kind, group.task_no] for group in groups)
        return (making.draw for making in makings if making.draw)

    def stored(self, groups: Sequence[Group]) -> Iterator[StepInProgress]:
        """They are; gives the steps and evaluations that have ended with them."""
        for group in groups:
            making = self._of.pop((group.kind, group.task_no))
            making.stored += 1
            if not (making.open or making.grows):
                self._makings.remove(making)
                yield making

    def stragglers(self, rate: float, before: int | None) -> list[int]:
        """Of the steps before that one (None: of all), the tasks that are not finished when all but this part
        of the step's are (veRL's ``rollout.over_sample_rate``)."""
        steps = [each for each in self._makings if before is None or each.step < before]
        return [
            task
            for making in steps
            if making.open and not making.request and len(making.groups) >= (1 - rate) * len(making.tasks)
            for task in {*making.tasks}.difference(group.task_no for group in making.groups)
        ]

    def forget(self, tasks: Iterable[int]) -> None:
        """They were ended; they will be begun again."""
        for task in tasks:
            making = self._of.pop(("train", task))
            making.tasks.remove(task)
            making.ended, making.grows = making.ended + 1, self._grows
            if self._slack:
                self._slack.stored(task)

    def close(self, before: int | None) -> list[StepInProgress]:
        """No more tasks come of the steps before that one (None: of any); gives those that have ended."""
        grown = [each for each in self._makings if each.grows and (before is None or each.step < before)]
        for making in grown:
            making.grows = False
        ended = [making for making in grown if not making.open]
        self._makings = [making for making in self._makings if making not in ended]
        return ended

    def __len__(self) -> int:
        """Steps and evaluations under way."""
        return sum(making.open for making in self._makings)
