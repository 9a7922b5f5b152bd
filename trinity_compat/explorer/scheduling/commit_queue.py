"""Queue of finished groups on their way into the buffer: some are stored at once, others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trinity_compat.buffer.model import EvalRequest, Group, PendingTasks
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.scheduling.filtering import FilterDraw
from trinity_compat.explorer.scheduling.report import StepTimes

LINGER_S = 0.2  # a group waits this long for others to share its transaction
BATCH = 64  # groups of one transaction


@dataclass(slots=True, eq=False)
class StepInProgress:
    """A step in progress, or an evaluation (``request``).

    Each of ``tasks`` makes one group; ``version`` is the one it began with. ``grows``: more tasks of the step
    may come.
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
    cancelled: int = 0  # how often one of its tasks was cancelled before it was finished

    @property
    def is_finished(self) -> bool:
        """Return whether all its groups are finished."""
        return len(self.groups) == len(self.tasks)

    @property
    def is_open(self) -> bool:
        """Return whether some of its groups are not stored."""
        return self.stored < len(self.tasks)


class StalenessGate:
    """Delays finished groups where the trainer drops what is too old.

    A group that began with version v is of use to steps up to v + 1 + ``limit``, its deadline; a claim takes
    the earliest tasks that are ready. So while a group with deadline d is not stored, fewer groups may be
    than the steps up to d take: otherwise the trainer could pass it. The group with the earliest deadline may
    always be stored, so nothing waits forever.
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
        """``tasks``: the run's total.

        ``others``: what is stored, and what the other ``explorers`` have in flight; None without others.
        """
        self._limit, self._batch_size, self._tasks = limit, batch_size, tasks
        self._others, self._explorers = others, explorers
        self._deadline: dict[int, int] = {}
        self._open: Counter[int] = Counter()  # groups that are not stored, by deadline
        self._below = 0

    def begin(self, tasks: Sequence[int], version: int) -> None:
        """Add tasks that begin with ``version``."""
        deadline = version + 1 + self._limit
        if not self._below:  # a former start may have stored any task that might begin by now
            self._below = min(deadline * self._batch_size, self._tasks)
        self._below = max(self._below, *(task + 1 for task in tasks))
        self._deadline |= dict.fromkeys(tasks, deadline)
        self._open[deadline] += len(tasks)

    def restart(self, task: int, version: int) -> None:
        """Note that a task, which waited for room, begins with ``version`` instead."""
        self._close(task)
        self._deadline[task] = version + 1 + self._limit
        self._open[self._deadline[task]] += 1

    def allowed(self, tasks: Iterable[int]) -> Iterator[int]:
        """Yield those of the finished tasks that may be stored now, the earliest deadlines first."""
        finished: dict[int, list[int]] = {}
        for task in sorted(tasks):
            finished.setdefault(self._deadline[task], []).append(task)
        stored, open_ = self._stored_and_open()
        upto, room = 0, self._tasks
        for deadline in sorted(open_):
            # What is stored now counts for the deadlines before; for the others one more is stored and one
            # less is open.
            storing = finished.get(deadline, [])[: max(0, room)]
            yield from storing
            upto += open_[deadline]
            # The others read the same numbers at the same time: each explorer uses its part of the room.
            spare = (deadline * self._batch_size - stored - upto) // self._explorers
            room = min(room - len(storing), spare)

    def _stored_and_open(self) -> tuple[int, Counter[int]]:
        """Count the stored groups, and those of all explorers that are not, by deadline."""
        others = self._others()
        if others is None:
            return self._below - self._open.total(), self._open
        theirs = {version + 1 + self._limit: count for version, count in others.others.items()}
        return others.stored, self._open + Counter(theirs)

    def remove(self, task: int) -> None:
        """Remove a task that is stored, or cancelled."""
        self._close(task)
        del self._deadline[task]

    def _close(self, task: int) -> None:
        self._open[self._deadline[task]] -= 1
        self._open += Counter()  # without those that are 0


class CommitQueue:
    """Collects finished groups and forms transactions of them.

    ``whole``: a step is one transaction, and none is stored before an earlier one; so neither the trainer's
    claims nor what a kill leaves to be made depend on which answer was the shortest. Else groups are stored
    as they finish, several together, as ``gate`` allows. An evaluation is one transaction in any case.
    ``grows``: a step's tasks come bit by bit.
    """

    def __init__(self, *, whole: bool, gate: StalenessGate | None = None, grows: bool = False) -> None:
        self._whole, self._gate, self._grows = whole, gate, grows
        self._steps: list[StepInProgress] = []
        self._by_task: dict[tuple[str, int], StepInProgress] = {}  # by kind and task
        self._finished: dict[int, Group] = {}  # not stored, by task; without those of whole steps
        self._new, self._due = 0, 0.0  # of those, how many came since the last transaction; when one is due

    def begin(self, step: StepInProgress) -> None:
        """Expect the groups of a step."""
        step.grows = self._grows and not step.request
        same = (each for each in self._steps if each.grows and step.grows and each.step == step.step)
        growing = next(same, step)
        if growing is step:
            self._steps.append(step)
        else:
            growing.tasks += step.tasks
        self._by_task |= {(step.kind, task): growing for task in step.tasks}
        if self._gate and not step.request:
            self._gate.begin(step.tasks, step.version)

    def restart(self, jobs: Sequence[RolloutTask], version: int) -> None:
        """Note that training tasks, which waited for room, begin with ``version``."""
        if gate := self._gate:
            for job in jobs:
                gate.restart(job.task_no, version)

    def add(self, group: Group, now: float) -> None:
        """Add a finished group; ``now`` in seconds."""
        step = self._by_task[group.kind, group.task_no]
        step.groups.append(group)
        if step.is_finished:
            step.times.reach("rollout")
        if not (self._whole or step.request):
            self._due = self._due if self._finished else now + LINGER_S
            self._new += 1
            self._finished[group.task_no] = group

    def take(self, now: float, *, flush: bool) -> Iterator[list[Group]]:
        """Yield the groups to store now, by transaction.

        ``flush``: nothing else is in flight that could share a transaction.
        """
        for step in self._finished_steps():
            yield sorted(step.groups, key=lambda group: group.task_no)
        if self._finished and (flush or self._new >= BATCH or now >= self._due):
            self._new, self._due = 0, now + LINGER_S
            tasks = [*self._gate.allowed(self._finished)] if self._gate else sorted(self._finished)
            for first in range(0, len(tasks), BATCH):
                yield [self._take_group(task) for task in tasks[first : first + BATCH]]

    def _finished_steps(self) -> Iterator[StepInProgress]:
        """Yield steps and evaluations that are stored as a whole, none before an earlier step."""
        for step in sorted(self._steps, key=lambda step: (step.kind, step.step)):
            if self._whole or step.request:
                if step.is_finished:
                    yield step
                elif not step.request:
                    return

    def _take_group(self, task: int) -> Group:
        if self._gate:
            self._gate.remove(task)
        return self._finished.pop(task)

    def draws(self, groups: Sequence[Group]) -> Iterator[FilterDraw]:
        """Yield the draws that ``groups`` come from."""
        steps = dict.fromkeys(self._by_task[group.kind, group.task_no] for group in groups)
        return (step.draw for step in steps if step.draw)

    def mark_stored(self, groups: Sequence[Group]) -> Iterator[StepInProgress]:
        """Mark groups stored; yield the steps and evaluations that are completed by them."""
        for group in groups:
            step = self._by_task.pop((group.kind, group.task_no))
            step.stored += 1
            if not (step.is_open or step.grows):
                self._steps.remove(step)
                yield step

    def stragglers(self, rate: float, before: int | None) -> list[int]:
        """Return the unfinished tasks of steps of which all but the part ``rate`` is finished.

        Of the steps before ``before`` (None: of all). See veRL's ``rollout.over_sample_rate``.
        """
        steps = [each for each in self._steps if before is None or each.step < before]
        return [
            task
            for step in steps
            if step.is_open and not step.request and len(step.groups) >= (1 - rate) * len(step.tasks)
            for task in {*step.tasks}.difference(group.task_no for group in step.groups)
        ]

    def remove(self, tasks: Iterable[int]) -> None:
        """Remove cancelled training tasks, which will begin again."""
        for task in tasks:
            step = self._by_task.pop(("train", task))
            step.tasks.remove(task)
            step.cancelled, step.grows = step.cancelled + 1, self._grows
            if self._gate:
                self._gate.remove(task)

    def close(self, before: int | None) -> list[StepInProgress]:
        """Expect no more tasks of the steps before ``before`` (None: of any); return completed steps."""
        grown = [each for each in self._steps if each.grows and (before is None or each.step < before)]
        for step in grown:
            step.grows = False
        completed = [step for step in grown if not step.is_open]
        self._steps = [step for step in self._steps if step not in completed]
        return completed

    def __len__(self) -> int:
        """Count the steps and evaluations in flight."""
        return sum(step.is_open for step in self._steps)
