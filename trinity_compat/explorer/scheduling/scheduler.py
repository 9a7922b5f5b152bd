"""The explorer's scheduler: it reads from the buffer which tasks to begin next, for which step.

Its parts, each of which can be read alone: task_allocation (tasks that the buffer lacks), version_selector
(the weights of a step), filter_draws (filter_groups), and here the run's end and stragglers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from trinity_compat.buffer.model import BufferState, EvalRequest, LeaseHolder, WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.explorer.data.tasks import TaskStream
from trinity_compat.explorer.engine.sampling import eval_jobs
from trinity_compat.explorer.scheduling.commit_queue import CommitQueue, StalenessGate
from trinity_compat.explorer.scheduling.filter_draws import Settled, SharedFilterDraws, SoleFilterDraws
from trinity_compat.explorer.scheduling.filtering import FilterDraw, GroupFilter
from trinity_compat.explorer.scheduling.pool import WorkPool
from trinity_compat.explorer.scheduling.step_work import StepWork, WorkBuilder, tasks_by_step
from trinity_compat.explorer.scheduling.task_allocation import LeasedTasks, TrainingTasks
from trinity_compat.explorer.scheduling.version_selector import VersionSelector
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.policy import last_step

FINISH_GRACE_S = 60.0


class TrainerFinished:
    """Distinguishes this run's mark "finished" from one that an earlier run left in the same database.

    An earlier run's mark counts only FINISH_GRACE_S after the first check: until then a trainer may start,
    remove it and train on. ``fresh``: the mark did not exist when this process began. Engines take minutes
    to start, and a trainer that other explorers serve may end meanwhile.
    """

    def __init__(self, *, fresh: bool = False) -> None:
        self._first_check: float | None = None
        self._fresh = fresh

    def is_confirmed(self, finished: bool) -> bool:
        """Return whether the run has ended, ``finished`` being whether the mark exists now."""
        now = time.monotonic()
        self._fresh = self._fresh or not finished
        self._first_check = now if self._first_check is None else self._first_check
        return finished and (self._fresh or now - self._first_check > FINISH_GRACE_S)


class StragglerPolicy:
    """Names the training tasks to cancel; each once only, since else the longest answers would never finish.

    ``enabled``: the run sets veRL's ``rollout.over_sample_rate`` or ``trinity_compat.group_timeout``, and its
    steps are not ``whole``.
    """

    def __init__(self, spec: RunSpec, *, whole: bool) -> None:
        self._rate, self._timeout_s = spec.over_sample_rate, spec.group_timeout_s
        self.enabled = not whole and bool(self._rate or self._timeout_s)
        self._cancelled: set[int] = set()

    def find(self, pool: WorkPool, queue: CommitQueue, step: int | None) -> list[int]:
        """Return the tasks to cancel now.

        ``step`` is the step of which more tasks are to begin, None when there is none.
        """
        late = {*(pool.longer_than(self._timeout_s) if self._timeout_s else ())}
        if self._rate:
            late.update(queue.stragglers(self._rate, step))
        return sorted(late - self._cancelled)

    def note_cancelled(self, tasks: Iterable[int]) -> None:
        """Exempt cancelled tasks from being cancelled again."""
        self._cancelled.update(tasks)


LOOK_S = 0.5  # between checks for tasks whose groups were dropped
PART_LOOK_S = 5.0  # the same with fixed parts: a part grows only when another explorer dies


class Scheduler:
    """Derives the explorer's position from the buffer: tasks without a live group are made, earliest first.

    ``whole``: a step begins and is stored as one, so that neither its batches nor what a kill leaves to be
    made depend on speed. ``by_room``: tasks are taken only as the engines have room, since other explorers
    take them too. ``keeps_answers``: those in flight may go on after the trainer's turn on a shared device.
    """

    def __init__(
        self,
        spec: RunSpec,
        buffer: Buffer,
        train: TaskStream,
        evaluation: TaskStream | None,
        *,
        index: int = 0,
        ended: TrainerFinished | None = None,
    ) -> None:
        """Schedule for explorer ``index``; ``evaluation``: the validation tasks."""
        self._spec, self._buffer = spec, buffer
        self._batch_size = train.order.batch_size
        self._filter = GroupFilter.of(spec.verl)
        self.whole = spec.sync.style == "fixed" or self._filter is not None
        self._shared_draws: SharedFilterDraws | None = None
        self._sole_draws: SoleFilterDraws | None = None
        total = _total_steps(spec, train) * self._batch_size
        if spec.explorers > 1:
            leased = LeasedTasks(buffer, total, index, by_place=spec.explorers if self.whole else 0)
            self._tasks: TrainingTasks = leased
            if self._filter:
                self._shared_draws = SharedFilterDraws(buffer, leased, self._filter)
        else:
            self._tasks = TrainingTasks(buffer, total)
            if self._filter:
                self._sole_draws = SoleFilterDraws(buffer, self._filter, train.order, spec.sync)
        self.by_room = not self.whole and self.holder is not None
        self.versions = VersionSelector(spec, buffer, self._batch_size, index)
        self.keeps_answers = self.versions.follows and spec.partial_rollout
        self._evaluation = evaluation
        self.stragglers = StragglerPolicy(spec, whole=self.whole)
        self._builder = WorkBuilder(spec, train, apart=self.versions.follows or not self.whole)
        self._trainer_finished, self._trainer_seen = ended or TrainerFinished(), False
        self.state = BufferState(history=0, finished=False, evaluation=None, latest=None)
        self._history = 0  # that of the next work, and of what was begun last
        self._next: tuple[int, StepWork | None] | None = None  # by history
        self._checked = 0.0

    @property
    def holder(self) -> LeaseHolder | None:
        """This explorer's name in the buffer; None where it is the only one."""
        return self._tasks.holder

    def is_finished(self) -> bool:
        """Read the buffer's state; True once the trainer has finished, or all tasks without a trainer."""
        self.state = self._buffer.glance()
        self.versions.observe(self.state)
        if self._trainer_finished.is_confirmed(self.state.finished):
            return True
        if self._spec.mode != "explore" or self._has_trainer():
            return False
        return self._tasks.first_missing() is None

    def _has_trainer(self) -> bool:
        """Return whether a trainer's heartbeat was seen at any time.

        A resume, or the start of another process, hides a trainer until its next heartbeat.
        """
        self._trainer_seen = self._trainer_seen or any(
            each.role == "trainer" for each in self._buffer.participants()
        )
        return self._trainer_seen

    def holds_a_step(self) -> bool:
        """Return whether the trainer could train a step on what is stored, and requests no evaluation."""
        return not self.state.evaluation and self._buffer.has_ready(self._batch_size)

    # -- evaluations that the trainer requests ------------------------------------------------------

    def next_evaluation(self) -> EvalRequest | None:
        """Return the oldest open request, if this explorer is the one that serves them."""
        return self.state.evaluation if self.state.evaluation and self._tasks.serves_evaluations() else None

    def evaluation_work(self, request: EvalRequest) -> StepWork:
        """Return the work that answers a request: all validation rows."""
        jobs = eval_jobs(self._spec, self._evaluation)
        return StepWork(request.step, f"eval:{request.request_id}", jobs)

    def finish_evaluation(self, request: EvalRequest) -> None:
        """Mark a request answered."""
        self._buffer.finish_eval(request)
        self.state = replace(self.state, evaluation=None)

    # -- the next work --------------------------------------------------------------------------

    def next_work(self, history: int) -> StepWork | None:
        """Return tasks that this explorer has to begin, of the earliest step that has some."""
        if self._next is None or self._next[0] != history:
            self._history = history
            self._next = history, self._find_work()
        return self._next[1]

    def _find_work(self) -> StepWork | None:
        if self._shared_draws:
            missing = self._tasks.first_missing()
            step = 0 if missing is None else missing // self._batch_size + 1
            needed = step and self._shared_draws.needs(step, self._history)
            return StepWork(step, "train", ()) if needed else None
        free = self._tasks.free(self._batch_size)
        if not free:
            return None
        step = free[0] // self._batch_size + 1
        if self._filter:
            return StepWork(step, "train", ())  # its tasks show as it draws
        if self.holder:
            return self._builder.steps(step, free[:1])  # the others show as it takes them
        return self._builder.steps(step, [number for number in free if number < step * self._batch_size])

    def recheck_next_work(self) -> None:
        """Find the next work again if it is no longer the earliest, since the trainer drops stale groups.

        Reads the database once in LOOK_S, or PART_LOOK_S.
        """
        has_part = self.whole and self.holder and not self._shared_draws
        if self._next is None or time.monotonic() - self._checked < (PART_LOOK_S if has_part else LOOK_S):
            return
        self._checked, (_, work) = time.monotonic(), self._next
        known = [work.tasks(self._batch_size)[0]] if work else []
        if self._shared_draws or self._tasks.free(self._batch_size)[:1] != known:
            self._next = None

    def must_begin_alone(self, work: StepWork) -> bool:
        """Return whether nothing else may be in flight when it begins, or when its weights are requested."""
        return self.whole or self.versions.needs_request(work.step)

    def begin(self, work: StepWork, version: WeightVersion, room: int) -> list[StepWork]:
        """Begin ``next_work``'s work with ``version`` loaded; return the units to start, in order.

        Under ``fixed`` all steps that may use the version, together; else (filter_groups apart) each task by
        itself, and with other explorers no more than there is ``room`` for (answers). Empty when the others
        took it all meanwhile.
        """
        self._next = None
        if draws := self._shared_draws:
            positions = draws.take(work.step, version.version, self._history)
            kind = draws.kind(work.step)
            return [StepWork(work.step, kind, self._builder.jobs(positions))] if positions else []
        if not self._filter:
            work = self._taken(work, version, room)
            if not work.jobs:
                return []
        self._tasks.begin(work.tasks(self._batch_size))
        return [work] if self.whole else [replace(work, jobs=[job]) for job in work.jobs]

    def _taken(self, work: StepWork, version: WeightVersion, room: int) -> StepWork:
        """Return ``work`` with the tasks that are now reserved for this explorer."""
        if self.whole:
            last = last_step(self._spec.sync, None, version.version)
            upto, limit = last * self._batch_size, (last - work.step + 1) * self._batch_size
        elif self.holder:
            upto = self.versions.joint_bound(work.step, version)
            limit = -(-room // work.jobs[0].answers)
        else:
            bound = self.versions.task_bound(version)
            return replace(work, jobs=[job for job in work.jobs if job.task_no < bound])
        taken = self._tasks.take(upto, limit, version.version, self._history)
        return self._builder.steps(work.step, taken)

    def tasks_by_step(self, works: Sequence[StepWork]) -> dict[tuple[int, str], list[int]]:
        """Group the tasks of ``works``, which ``begin`` returned, by step and kind."""
        return tasks_by_step(works, self._batch_size)

    # -- what became of it ----------------------------------------------------------------------

    def commit_queue(self) -> CommitQueue:
        """Create the queue of finished groups that this run's style needs."""
        limit = self._spec.max_staleness
        grows = not self.whole and (self._spec.explorers > 1 or self.stragglers.enabled)
        if self.whole or limit is None:
            return CommitQueue(whole=self.whole, grows=grows)
        tasks = self._tasks
        gate = StalenessGate(
            limit, self._batch_size, tasks.total, tasks.pending, explorers=self._spec.explorers
        )
        return CommitQueue(whole=False, gate=gate, grows=grows)

    def mark_stored(self, tasks: Iterable[int]) -> None:
        """Mark training tasks stored."""
        self._tasks.mark_stored(tasks)

    def requeue(self, tasks: Collection[int]) -> None:
        """Requeue cancelled tasks."""
        self._tasks.requeue(tasks)
        self.stragglers.note_cancelled(tasks)
        self._next = None if tasks else self._next

    def reset(self) -> None:
        """Discard what is in flight."""
        self._tasks.reset()
        self._next = None

    # -- filter_groups --------------------------------------------------------------------------

    def start_draw(self, work: StepWork) -> FilterDraw | None:
        """Start drawing a step whose groups this explorer filters alone; None for any other step."""
        return self._sole_draws.start(work.step, self._history) if self._sole_draws else None

    def draw_work(self, draw: FilterDraw) -> StepWork:
        """Return the next tasks of a draw. Raises RunError when it may draw no more."""
        return StepWork(draw.step, "train", self._builder.jobs([*draw.tasks()]))

    def finish_draw(self, draw: FilterDraw) -> None:
        """Record a draw's end. Call before its groups are stored."""
        if self._sole_draws:
            self._sole_draws.finish(draw, self._history)

    def settle_draw(self, step: int) -> Settled | None:
        """End a draw that several explorers share, if this explorer is the one to do it."""
        return self._shared_draws.settle(step, self._history) if self._shared_draws else None


def _total_steps(spec: RunSpec, train: TaskStream) -> int:
    set_steps = spec.total_steps
    # There the trainer goes through as many epochs as the steps need.
    if set_steps is not None and spec.verl["data"].get("tasksets"):
        return set_steps
    of_epochs = train.order.steps(int(spec.verl["trainer"]["total_epochs"]))
    return of_epochs if set_steps is None else min(set_steps, of_epochs)
