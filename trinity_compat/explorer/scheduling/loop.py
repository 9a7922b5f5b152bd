"""The explorer's whole loop, on one page: take weights, admit, collect, store.

Invariants: a step's groups are begun with one version of the weights, the one that the synchronizer's policy
names (under fully_async each group with the newest, and newer ones are put in place while it is made: each
response says by which); no other weights are put in place while answers are under way; a group reaches the
buffer complete (n responses), under ``fixed`` with its whole step and after the steps before it; a group made
in a history that a resume has ended is not stored. docs/decisions/streaming-explorer.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from trinity_compat.buffer import HistoryChanged
from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import EvalRequest, Group, WeightVersion
from trinity_compat.explorer.engine.colocate import SharedDevice
from trinity_compat.explorer.engine.weight_sync_check import HandoverTest
from trinity_compat.explorer.engine.weights import EngineWeights, Receives
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.scheduling.commit_queue import StepInProgress
from trinity_compat.explorer.scheduling.filtering import FilterDraw
from trinity_compat.explorer.scheduling.pool import WorkPool, WorkUnit
from trinity_compat.explorer.scheduling.report import StepReporter, StepTimes
from trinity_compat.explorer.scheduling.scheduler import Scheduler, StepWork
from trinity_compat.synchronizer.transports.nccl_rendezvous import WeightOffer
from trinity_compat.trinity.pipelines.runner import OperatorPipeline

PAUSE_S = 0.03  # between looks for new weights
BUSY_S = 0.1  # the same while answers are under way
IDLE_S = 0.1  # with all tasks made: only evaluations, or groups dropped as stale, can bring work


class BuildsGroups(Protocol):
    """What turns work into scored groups."""

    async def load(self, version: WeightVersion) -> None:
        """Put a version in place."""

    def groups(self, work: StepWork, version: int, history: int) -> AsyncIterator[Group]:
        """Complete, scored groups, as they finish."""


class BuildsConcurrently(BuildsGroups, Protocol):
    """What can be given work as it has room for it."""

    def room(self) -> int:
        """Answers that could be begun now."""


class Explorer:
    """Explores until the run is finished."""

    def __init__(
        self,
        buffer: Buffer,
        plan: Scheduler,
        maker: BuildsConcurrently,
        report: StepReporter,
        heart: Heartbeat,
        receiver: Receives | None = None,
        device: SharedDevice | None = None,
        test: HandoverTest | None = None,
        pipeline: OperatorPipeline | None = None,
    ) -> None:
        """``receiver``: where versions have no files; ``device``: where the trainer uses it too; ``test``:
        what each version that was put in place goes through; ``pipeline``: what each draw does."""
        self._buffer, self._plan, self._maker = buffer, plan, maker
        self._report, self._heart, self._device = report, heart, device
        self._weights, self._pipeline = EngineWeights(maker, receiver, device, test), pipeline
        self._pool, self._outbox = WorkPool(maker.room), plan.outbox()
        self._history = 0
        self._known: int | None = None  # the step of the work that was found last
        self._waiting_since = time.monotonic()

    async def explore(self) -> None:
        """Until the run is finished. Raises what a unit raises, TrainerGone, SyncTimeout."""
        self._pool, self._outbox = WorkPool(self._maker.room), self._plan.outbox()
        self._plan.dropped()
        async with self._pool:
            while not self._plan.finished():
                self._heart.check()
                if self._device and not self._device.mine():
                    self._heart.state, self._waiting_since = "waiting", time.monotonic()
                    await asyncio.sleep(PAUSE_S)
                    continue
                # Read first: weights and tasks chosen after it belong to this history, or are not stored.
                history = self._enter(self._plan.seen.history)
                self._store()
                self._pool.refill()
                if not await self._advance(history):
                    await self._rest(history)
            self._store()
            self._close(None)

    def _enter(self, history: int) -> int:
        """Weights of an ended history may be lost ones, under a number that will be given again."""
        if self._history not in (0, history):
            self._weights.lost(made=self._busy)
            self._drop()
        self._history = history
        return history

    def _drop(self) -> None:
        """What is under way counts no longer."""
        self._pool.drop()
        self._plan.dropped()
        self._known = None
        self._outbox = self._plan.outbox()

    @property
    def _busy(self) -> bool:
        return self._pool.busy or len(self._outbox) > 0

    @property
    def _may_change(self) -> bool:
        """Whether other weights may be put in place now."""
        return not self._pool.busy or (self._plan.follows and not self._pool.evaluating)

    async def _advance(self, history: int) -> bool:
        """Put one thing more under way: an evaluation, newer weights, the next work whose weights are there.

        False when what is under way has to end first, or there is nothing.
        """
        in_place = self._weights.in_place
        request = None if self._pool.evaluating else self._plan.next_eval()
        if request and (asked := self._plan.version_to_evaluate(request, in_place)):
            return await self._evaluate(request, asked, history)
        work, known = self._next_work(history)
        if self._end_stragglers(known):
            return True
        self._close(known)
        may_begin = work and not (self._busy and self._plan.alone(work))
        version = self._plan.version_for(work, in_place) if work and may_begin else None
        if self._plan.accepts(version) and (offer := self._weights.offer()):
            return self._may_change and await self._take(offer)
        may_follow = self._plan.follows and self._busy and self._may_change
        if may_follow and await self._weights.follow(self._plan.seen.latest):
            return True
        if not (work and version) or (version != in_place and not self._may_change):
            return False
        return await self._begin(work, version, history)

    def _next_work(self, history: int) -> tuple[StepWork | None, int | None]:
        """What to begin, if there is room for anything, and the step before which nothing more is to begin: 0
        where that is not known, None when there is nothing."""
        if self._pool.full:
            return None, 0
        if self._known and self._plan.by_room and self._pool.room < 1:
            return None, self._known  # without a look at the database
        work = self._plan.next_work(history)
        self._known = work.step if work else None
        return work, self._known

    async def _take(self, offer: WeightOffer) -> bool:
        if not await self._weights.take(offer):
            self._drop()  # who knows what made it
        return True

    async def _evaluate(self, request: EvalRequest, version: WeightVersion, history: int) -> bool:
        """Begin it beside what is under way; under ``fixed``, where no batch may depend on speed, alone."""
        if (version != self._weights.in_place and not self._may_change) or (self._plan.whole and self._busy):
            return False
        times = StepTimes(wait=time.monotonic() - self._waiting_since)
        if not await self._weights.load(version):
            return False
        work = self._plan.eval_work(request)
        if not work.jobs:
            self._plan.evaluated(request)
            return True
        tasks = [job.task_no for job in work.jobs]
        self._outbox.begin(
            StepInProgress(work.step, version.version, tasks, times, request=request, kind=work.kind)
        )
        make = partial(self._maker.groups, work, version.version, history)
        self._pool.begin([WorkUnit(make, work.answers, request)], at_once=True)
        return True

    async def _begin(self, work: StepWork, version: WeightVersion, history: int) -> bool:
        times = StepTimes(wait=time.monotonic() - self._waiting_since)
        with times.measure("sync_weight"):
            if not await self._weights.load(version):
                return False
        draw = self._plan.draw(work)
        works = self._plan.begin(work, version, self._pool.room)
        if not works:
            return self._settle(work.step, version, times)
        for (step, kind), tasks in self._plan.steps(works).items():
            self._outbox.begin(StepInProgress(step, version.version, tasks, times.copy(), draw, kind=kind))
        if draw:
            units = [WorkUnit(partial(self._drawn, draw, version, history), work.answers)]
        else:
            units = [self._unit(each, version, history) for each in works]
        self._pool.begin(units, at_once=self._plan.whole)
        return True

    def _unit(self, work: StepWork, version: WeightVersion, history: int) -> WorkUnit:
        task = work.jobs[0].task_no if len(work.jobs) == 1 and not self._plan.whole else None
        return WorkUnit(partial(self._made, work, version, history), work.answers, task=task)

    def _end_stragglers(self, step: int | None) -> bool:
        """Their tasks begin again, with the newest weights; the trainer goes on with others meanwhile."""
        if not self._plan.ends_stragglers:
            return False
        ended = self._pool.end(self._plan.stragglers(self._pool, self._outbox, step))
        self._outbox.forget(ended)
        self._plan.ended(ended)
        return bool(ended)

    def _settle(self, step: int, version: WeightVersion, times: StepTimes) -> bool:
        """Others have taken what there was; of a drawing that they share somebody has to see the end."""
        if not (settled := self._plan.settle(step)):
            return False
        self._report_step(step, version.version, settled.kept, times, settled.draw.told_metrics)
        return True

    async def _made(self, work: StepWork, version: WeightVersion, history: int) -> AsyncIterator[Group]:
        """When its turn has come, newer weights than ``version`` may be in place."""
        newest = max(version, self._weights.in_place or version, key=lambda each: each.version)
        self._outbox.began(work.jobs, newest.version)
        async for group in self._maker.groups(work, newest.version, history):
            yield group

    async def _drawn(self, draw: FilterDraw, version: WeightVersion, history: int) -> AsyncIterator[Group]:
        while not draw.full:
            drawn = self._maker.groups(self._plan.draw_work(draw), version.version, history)
            groups = sorted([group async for group in drawn], key=lambda group: group.task_no)
            if self._pipeline:
                draw.add_processed(await self._pipeline.process(groups, draw.step))
            else:
                draw.add(groups)
            print(draw.told, flush=True)
        for group in draw.groups(history):
            yield group

    def _store(self) -> None:
        now = time.monotonic()
        for group in self._pool.collect():
            self._outbox.add(group, now)
        for groups in self._outbox.take(now, flush=not self._pool.busy):
            if not self._put(groups):
                return

    def _put(self, groups: Sequence[Group]) -> bool:
        drawn = list(self._outbox.draws(groups))
        for draw in drawn:
            self._plan.drawn(draw)
        every = [*groups, *(group for draw in drawn for group in draw.dropped)]
        began = time.monotonic()
        try:
            self._buffer.put_groups(every, history=self._history, holder=self._plan.sharing.holder)
        except HistoryChanged:
            # The trainer resumed from a checkpoint meanwhile: these weights may be lost.
            self._weights.lost(made=True)
            self._drop()
            return False
        self._plan.stored(group.task_no for group in groups if group.kind == "train")
        for making in self._outbox.stored(groups):
            making.times.add("write", time.monotonic() - began)
            self._end(making)
        return True

    def _end(self, making: StepInProgress) -> None:
        if making.request:
            self._plan.evaluated(making.request)
        elif making.kind == "train":
            extra = making.draw.told_metrics if making.draw else {}
            extra |= {"rollout/ended_groups": float(making.ended)} if self._plan.ends_stragglers else {}
            self._report_step(making.step, making.version, making.groups, making.times, extra)

    def _close(self, before: int | None) -> None:
        """This explorer makes no more of the steps before that one; None: for now of none."""
        for making in self._outbox.close(before):
            self._end(making)

    def _report_step(
        self, step: int, version: int, groups: Sequence[Group], times: StepTimes, extra: Mapping[str, float]
    ) -> None:
        ordered = sorted(groups, key=lambda group: group.task_no)
        self._report.step(step, version, ordered, times, extra)

    async def _rest(self, history: int) -> None:
        """Until there is news, or it is time to look again."""
        self._plan.look_again()
        if self._busy:
            self._heart.state, self._waiting_since = "running", time.monotonic()
            await self._pool.news(BUSY_S)
            return
        self._heart.state = "waiting"
        self._plan.ask_if_missed(self._weights.in_place)
        if self._device:
            await self._device.leave()
        work = self._plan.next_work(history)
        if work is None:
            self._waiting_since = time.monotonic()  # for no weights, so far
            await asyncio.sleep(IDLE_S)
            return
        self._plan.check_wait(work.step, time.monotonic() - self._waiting_since)
        await asyncio.sleep(PAUSE_S)
