"""What to do next: which tasks, for which step, with which version of the weights."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import BufferState, EvalRequest, WeightVersion
from trinity_compat.buffer.stream_position import stream_key
from trinity_compat.explorer.data.tasks import TaskStream
from trinity_compat.explorer.engine.sampling import eval_jobs, make_job, seeds_requests
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.engine.weights import INITIAL
from trinity_compat.explorer.scheduling.commit_queue import CommitQueue, StalenessGate
from trinity_compat.explorer.scheduling.difficulty_feedback import DifficultyFeedback
from trinity_compat.explorer.scheduling.filtering import FilterDraw, GroupFilter
from trinity_compat.explorer.scheduling.pool import WorkPool
from trinity_compat.explorer.scheduling.shared_filter_draws import Settled, SharedFilterDraws, begins
from trinity_compat.explorer.scheduling.task_allocation import Queue, SoleExplorer, TaskAllocation
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.await_version import (
    SyncTimeout,
    find_version,
    is_there,
    misplaced,
    timed_out,
)
from trinity_compat.synchronizer.policy import (
    asks,
    changes_within_a_step,
    last_step,
    looks,
    required_version,
    trainer_interval,
)
from trinity_compat.synchronizer.requests import WeightRequester

GRACE_S = 60.0
LOOK_S = 0.5  # between looks for tasks whose groups were dropped
PART_LOOK_S = 5.0  # the same of one that has a part of its own: it gets more only where another has died
ELSEWHERE_S = 15.0  # for a published file to come into sight


@dataclass(frozen=True, slots=True)
class StepWork:
    """Jobs of one explorer step (from 1), or of one evaluation; ``batch_size`` is set where they may be those
    of several steps, from ``step`` on."""

    step: int
    kind: str
    jobs: Sequence[RolloutTask]
    batch_size: int = 0

    @property
    def answers(self) -> int:
        """To all of its tasks."""
        return sum(job.answers for job in self.jobs)

    def step_of(self, task_no: int) -> int:
        """The step that a task belongs to."""
        return task_no // self.batch_size + 1 if self.batch_size else self.step


class TrainerFinished:
    """Whether the trainer has finished this run.

    A mark that an earlier run left over the same database counts only GRACE_S after the first look: until
    then a trainer may come, take it down, and train on. ``fresh``: whether the mark was not there when this
    process began. Engines take minutes to start, and a trainer that others serve may end meanwhile.
    """

    def __init__(self, *, fresh: bool = False) -> None:
        self._since: float | None = None
        self._fresh = fresh

    def seen(self, finished: bool) -> bool:
        """``finished``: whether the mark is there."""
        now = time.monotonic()
        self._fresh = self._fresh or not finished
        self._since = now if self._since is None else self._since
        return finished and (self._fresh or now - self._since > GRACE_S)


def _number(version: WeightVersion | None) -> int:
    return -1 if version is None else version.version


class Scheduler:
    """Reads the position off the buffer: tasks without a live group are made, earliest first."""

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
        self._spec, self._buffer, self._train, self._eval = spec, buffer, train, evaluation
        self._batch = train.order.batch_size
        self._filter = GroupFilter.of(spec.verl)
        self._feedback = DifficultyFeedback(buffer, train.order, spec.sync)
        self.sharing, self._drawing = self._share(index)
        self._ended, self._accompanied = ended or TrainerFinished(), False
        self._missed: tuple[WeightVersion, float] | None = None
        self._held: WeightVersion | None = None
        self._asking = WeightRequester(buffer, index)
        self._asked_for = self._history = 0
        self._next: tuple[int, StepWork | None] | None = None
        self._looked = 0.0
        self.seen = BufferState(history=0, finished=False, evaluation=None, latest=None)
        self._under_way: set[int] = set()  # training tasks that are begun and not stored
        self._spared: set[int] = set()  # tasks that were ended once: not a second time
        self._seeded = seeds_requests(spec)
        self.total_steps = self._total_steps()

    def _share(self, index: int) -> tuple[TaskAllocation, SharedFilterDraws | None]:
        if self._spec.explorers == 1:
            return SoleExplorer(self._buffer), None
        queue = Queue(self._buffer, index, by_place=self._spec.explorers if self.whole else 0)
        drawing = SharedFilterDraws(self._buffer, queue, self._filter) if self._filter else None
        return queue, drawing

    def _total_steps(self) -> int:
        given = self._spec.total_steps
        # Whose trainer goes through epochs enough.
        if given is not None and self._spec.verl["data"].get("tasksets"):
            return given
        of_epochs = self._train.order.steps(int(self._spec.verl["trainer"]["total_epochs"]))
        return of_epochs if given is None else min(given, of_epochs)

    def finished(self) -> bool:
        """Looks at the buffer: the trainer is done; or there is none to wait for, and all tasks are made."""
        self.seen = self._buffer.glance()
        if self._ended.seen(self.seen.finished):
            return True
        return self._spec.mode == "explore" and not self._has_trainer() and not self._missing(1)

    def _has_trainer(self) -> bool:
        """Once seen, it counts: a resume, or another side's start, hides it until its next beat."""
        self._accompanied = self._accompanied or any(p.role == "trainer" for p in self._buffer.participants())
        return self._accompanied

    def next_eval(self) -> EvalRequest | None:
        """The oldest open evaluation; one explorer serves them all."""
        return self.seen.evaluation if self.seen.evaluation and self.sharing.evaluates() else None

    def evaluated(self, request: EvalRequest) -> None:
        """It is complete."""
        self._buffer.finish_eval(request)
        self.seen = replace(self.seen, evaluation=None)

    def next_work(self, history: int) -> StepWork | None:
        """Tasks that this explorer has to begin, of the earliest step that has some; None when none has."""
        if self._next is None or self._next[0] != history:
            if self._history != history:  # weights of an ended history may be lost
                self._history, self._held = history, None
            self._next = history, self._find_work()
        return self._next[1]

    def look_again(self) -> None:
        """What ``next_work`` found may no longer be the earliest: the trainer drops groups that are too old.

        Reads the database once in LOOK_S, or PART_LOOK_S.
        """
        has_part = self.whole and self.sharing.holder and not self._drawing
        if self._next is None or time.monotonic() - self._looked < (PART_LOOK_S if has_part else LOOK_S):
            return
        self._looked, (_, work) = time.monotonic(), self._next
        if self._drawing or self._to_begin(steps=1)[:1] != ([*self.tasks(work)[:1]] if work else []):
            self._next = None

    def _find_work(self) -> StepWork | None:
        if self._drawing:
            missing = self._missing(1)
            step = missing[0] // self._batch + 1 if missing else 0
            return StepWork(step, "train", ()) if step and self._drawing.needs(step, self._history) else None
        mine = self._to_begin(steps=1)
        if not mine:
            return None
        step = mine[0] // self._batch + 1
        if self._filter:
            return StepWork(step, "train", ())  # the tasks are known once they are drawn
        if self.sharing.holder:
            return self._train_work(step, mine[:1])  # which more shows as it takes them
        return self._train_work(step, [number for number in mine if number < step * self._batch])

    def _to_begin(self, *, steps: int) -> list[int]:
        """Tasks of this explorer that are neither stored nor under way; all there are in that many steps."""
        return self.sharing.free(self.total_steps * self._batch, steps * self._batch, self._under_way)

    def _train_work(self, step: int, numbers: Sequence[int]) -> StepWork:
        jobs = [self._job("train", number, self._train.task(number)) for number in numbers]
        return StepWork(step, "train", jobs, self._batch)

    @property
    def whole(self) -> bool:
        """Whether a step is begun at once and stored at once: what is in its batches, and what a kill leaves
        to be made, then never depends on speed."""
        return self._spec.sync.style == "fixed" or self._filter is not None

    @property
    def by_room(self) -> bool:
        """Whether it takes tasks only as there is room for them, since others take them too."""
        return not self.whole and self.sharing.holder is not None

    def alone(self, work: StepWork) -> bool:
        """Whether nothing else may be under way when it is begun, or asked for its weights."""
        due = asks(self._spec.sync, work.step) and self._asked_for != work.step
        return self.whole or due

    def begin(self, work: StepWork, version: WeightVersion, room: int) -> list[StepWork]:
        """``next_work``'s work is begun with ``version`` in place: what to begin, in this order.

        Under ``fixed`` all steps that may use it, together; else (filter_groups apart) each task by itself,
        and where others take tasks too no more than there is ``room`` for (answers). Nothing when they have
        taken it all meanwhile.
        """
        self._next = None
        if self._drawing:
            positions = self._drawing.take(work.step, version.version, self._history)
            jobs = [self._job("train", number, self._train.task(number)) for number in positions]
            return [StepWork(work.step, self._drawing.kind(work.step), jobs)] if jobs else []
        if not self._filter:
            work = self._taken(work, version, room)
            if not work.jobs:
                return []
        self._under_way.update(self.tasks(work))
        return [work] if self.whole else [replace(work, jobs=[job]) for job in work.jobs]

    def _taken(self, work: StepWork, version: WeightVersion, room: int) -> StepWork:
        """``work`` with the tasks that this explorer now has for itself."""
        if self.whole:
            last = last_step(self._spec.sync, None, version.version)
            upto, limit = last * self._batch, (last - work.step + 1) * self._batch
        elif self.sharing.holder:
            upto, limit = self._reach(work.step, version), -(-room // work.jobs[0].answers)
        else:
            return replace(work, jobs=[job for job in work.jobs if job.task_no < self._bound(version)])
        upto = min(upto, self.total_steps * self._batch)
        taken = self.sharing.take(upto, limit, self._under_way, version.version, self._history)
        return self._train_work(work.step, taken)

    def _reach(self, step: int, version: WeightVersion) -> int:
        """Below which tasks may be taken together with those of ``step``: newer weights have to be asked
        for, or looked for, before others."""
        sync, bound = self._spec.sync, self._bound(version)
        own_look = sync.explorer_interval is not None
        while (
            step * self._batch < bound
            and not asks(sync, step + 1)
            and not (own_look and looks(sync, step + 1))
        ):
            step += 1
        return min(bound, step * self._batch)

    def settle(self, step: int) -> Settled | None:
        """End a drawing that several explorers share, if this is the one to do it."""
        return self._drawing.settle(step, self._history) if self._drawing else None

    def tasks(self, work: StepWork) -> Sequence[int]:
        """Numbers of the groups that it makes. A drawing makes all of its step."""
        drawn = range((work.step - 1) * self._batch, work.step * self._batch)
        return [job.task_no for job in work.jobs] or drawn

    def steps(self, works: Sequence[StepWork]) -> dict[tuple[int, str], list[int]]:
        """Tasks by step and kind of what ``begin`` gave."""
        found: dict[tuple[int, str], list[int]] = {}
        for work in works:
            for task in self.tasks(work):
                step = work.step_of(task) if work.jobs else work.step
                found.setdefault((step, work.kind), []).append(task)
        return found

    def stored(self, tasks: Iterable[int]) -> None:
        """They are no longer under way, but in the buffer."""
        self._under_way.difference_update(tasks)

    @property
    def ends_stragglers(self) -> bool:
        """Whether groups that take long are ended and made later. Not where a step is whole."""
        spec = self._spec
        return not self.whole and bool(spec.over_sample_rate or spec.group_timeout_s)

    def stragglers(self, pool: WorkPool, outbox: CommitQueue, step: int | None) -> list[int]:
        """Tasks to end now; ``step`` is the one of which more tasks are to begin, None for none.

        Each is ended once only: else the longest answers would never be seen.
        """
        late = {*(pool.longer_than(limit) if (limit := self._spec.group_timeout_s) else ())}
        if rate := self._spec.over_sample_rate:
            late.update(outbox.stragglers(rate, step))
        return sorted(late - self._spared)

    def ended(self, tasks: Sequence[int]) -> None:
        """They were; they are to begin again."""
        self._under_way.difference_update(tasks)
        self.sharing.ended(tasks)
        self._spared.update(tasks)
        self._next = None if tasks else self._next

    def dropped(self) -> None:
        """Nothing is under way any more."""
        self._under_way.clear()
        self._next = None
        self.sharing.begin()

    def outbox(self) -> CommitQueue:
        """What takes the groups that are finished."""
        limit, tasks = self._spec.max_staleness, self.total_steps * self._batch
        grows = not self.whole and (self._spec.explorers > 1 or self.ends_stragglers)
        if self.whole or limit is None:
            return CommitQueue(whole=self.whole, grows=grows)
        others = partial(self.sharing.pending, tasks)
        slack = StalenessGate(limit, self._batch, tasks, others, explorers=self._spec.explorers)
        return CommitQueue(whole=False, slack=slack, grows=grows)

    def draw(self, work: StepWork) -> FilterDraw | None:
        """Begin a step whose groups are filtered, by this explorer alone; else None."""
        if self._filter is None or self._drawing:
            return None
        self._feedback.tell(work.step, self._history)
        return FilterDraw(self._filter, work.step, begins(self._buffer, work.step))

    def draw_work(self, draw: FilterDraw) -> StepWork:
        """The next tasks of a drawing. Raises RunError when it may draw no more."""
        return StepWork(
            draw.step, "train", [self._job("train", no, self._train.task(no)) for no in draw.tasks()]
        )

    def drawn(self, draw: FilterDraw) -> None:
        """Note where the next step begins.

        Call before the step's groups are stored: a crash between the two makes the step again, from its own
        beginning.
        """
        self._feedback.keep(draw, self._history)
        self._buffer.set_state(stream_key(draw.step + 1), draw.position)

    def _missing(self, limit: int) -> list[int]:
        return self._buffer.missing_tasks(upto=self.total_steps * self._batch, limit=limit)

    def eval_work(self, request: EvalRequest) -> StepWork:
        """All validation rows."""
        kind = f"eval:{request.request_id}"
        return StepWork(request.step, kind, eval_jobs(self._spec.verl, self._eval))

    def _job(self, kind: str, number: int, task: Mapping[str, Any]) -> RolloutTask:
        taskset, _ = self._train.place(number)
        job = make_job(self._spec.verl, kind, number, task, taskset=taskset, seeded=self._seeded)
        return replace(job, apart=self.follows or not self.whole)

    def version_for(self, work: StepWork, loaded: WeightVersion | None) -> WeightVersion | None:
        """The weights for a step, ``loaded`` being in place now; None: not published yet, or the explorer is
        too far ahead."""
        sync, step = self._spec.sync, work.step
        if sync.style == "fixed":
            return self._find(work, loaded)
        newest = self.follows or looks(sync, step)
        if self._held is None or newest or not self._may_be_had(self._held, loaded):
            self._held = self._find(work, loaded)
        due = asks(sync, step) and self._asked_for != step
        ahead = self._held is not None and self.tasks(work)[0] >= self._bound(self._held)
        if not due and not ahead:
            return self._held
        if sync.style != "explorer_driven":
            self._held = None
        elif self._asking.answered(_number(loaded)):
            self._asked_for, self._held = step, None
        return None

    def _find(self, work: StepWork, loaded: WeightVersion | None) -> WeightVersion | None:
        if not self.takes_over:
            return self._published(work.step) or self._initial(work)
        if loaded is None or loaded is INITIAL:
            return loaded and self._initial(work)
        return loaded if loaded.version >= (required_version(self._spec.sync, work.step) or 0) else None

    def _published(self, step: int) -> WeightVersion | None:
        newest = self.seen.latest
        if self._spec.sync.style == "fixed":
            return find_version(self._buffer, self._spec.sync, step)
        return newest if newest and is_there(newest) else None

    def _may_be_had(self, version: WeightVersion, loaded: WeightVersion | None) -> bool:
        """The model path has no file: what began with it cannot come back to it."""
        if self.takes_over or version is INITIAL:
            return version == loaded
        return is_there(version)

    @property
    def takes_over(self) -> bool:
        """Whether weights come from the trainer's hand into the engines', with no file between them."""
        return self._spec.sync.method == "nccl"

    def accepts(self, version: WeightVersion | None) -> bool:
        """Whether to take an offer now: ``version`` is what ``version_for`` found for the next step.

        Under ``fixed`` what its weights can make comes first.
        """
        return version is None or self._spec.sync.style != "fixed"

    def version_to_evaluate(self, request: EvalRequest, loaded: WeightVersion | None) -> WeightVersion | None:
        """The weights of an evaluation; None while they can't be had."""
        version = self._buffer.get_version(request.version)
        return version if version and self._may_be_had(version, loaded) else None

    def check_wait(self, step: int, waited_s: float) -> None:
        """Raises SyncTimeout when waiting any longer is of no use."""
        if waited_s > self._spec.sync.timeout_s:
            raise timed_out(self._buffer, self._spec.sync, step, waited_s)
        version = misplaced(self._buffer) if waited_s > ELSEWHERE_S else None
        if version and self._missed_for(version) > ELSEWHERE_S:
            raise SyncTimeout(
                f"version {version.version} of the weights is published as {version.path}, "
                "which is not on this machine",
                hint="on several machines use synchronizer.sync_method checkpoint with a job directory that "
                "all of them share, or nccl",
            )

    def _missed_for(self, version: WeightVersion) -> float:
        """Seconds since its file was first looked for in vain."""
        if self._missed is None or self._missed[0] != version:
            self._missed = version, time.monotonic()
        return time.monotonic() - self._missed[1]

    def ask_if_missed(self, loaded: WeightVersion | None) -> None:
        """Ask for another handover when one took place without this explorer: it has started since."""
        newest = self.seen.latest if self.takes_over else None
        if newest and (loaded is INITIAL or _number(loaded) < newest.version):
            self._asking.answered(-1)

    @property
    def follows(self) -> bool:
        """Whether newer weights are put in place in the middle of a step."""
        return changes_within_a_step(self._spec.sync)

    def _initial(self, work: StepWork) -> WeightVersion | None:
        """Version 0 of a run that has just begun is the model path itself: the engine holds it already.

        Not so with an adapter to start from, which only the trainer has.
        """
        if self._spec.verl["actor_rollout_ref"]["model"].get("lora_adapter_path"):
            return None
        fresh = self.seen.history == 1 and self.seen.latest is None
        resumes = self._spec.verl["trainer"].get("resume_mode") == "resume_path"
        zero = (required_version(self._spec.sync, work.step) or 0) == 0
        return INITIAL if fresh and zero and not resumes else None

    def _bound(self, version: WeightVersion) -> int:
        """Tasks below it may begin with ``version`` in place.

        With a ``staleness_threshold`` t, as in veRL's fully_async_policy 0.9.1: what is begun and not trained
        when a version comes is no more than (1 + t) times the groups that the trainer takes until the next.
        """
        sync, spec = self._spec.sync, self._spec
        if sync.style == "fixed" or spec.staleness_threshold is None:
            return last_step(sync, spec.max_staleness, version.version) * self._batch
        ahead = trainer_interval(sync) * self._batch * (1 + spec.staleness_threshold)
        return version.version * self._batch + int(ahead)
