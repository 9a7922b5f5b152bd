"""The explorer's main loop: load weights, begin work, collect groups, store them.

Invariants: a step's groups begin with one version of the weights, the one that the synchronizer's policy
names (under fully_async each group with the newest, and newer ones are loaded while it is made: each response
carries its versions); no other weights are loaded while answers are in flight; a group is stored complete
(n responses), under ``fixed`` with its whole step and after the steps before it; a group of a history that a
resume has ended is not stored. docs/decisions/streaming-explorer.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from trinity_compat.buffer import HistoryChanged
from trinity_compat.buffer.model import EvalRequest, Group, WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.explorer.engine.weights import (
    DtypesReport,
    EngineWeights,
    ReceivesWeights,
    SharedDevice,
    WeightSyncCheck,
)
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.scheduling.commit_queue import StepInProgress
from trinity_compat.explorer.scheduling.filtering import FilterDraw
from trinity_compat.explorer.scheduling.group_builder import GroupBuilder
from trinity_compat.explorer.scheduling.pool import WorkPool, WorkUnit
from trinity_compat.explorer.scheduling.report import StepReporter, StepTimes
from trinity_compat.explorer.scheduling.scheduler import Scheduler
from trinity_compat.explorer.scheduling.step_work import StepWork
from trinity_compat.synchronizer.transports.nccl_rendezvous import WeightOffer
from trinity_compat.trinity.pipelines.runner import OperatorPipeline

_log = logging.getLogger(__name__)

PAUSE_S = 0.03  # between checks for new weights
BUSY_S = 0.1  # the same while answers are in flight
IDLE_S = 0.1  # with all tasks made: only evaluations, or groups dropped as stale, can bring work


class Explorer:
    """Explores until the run is finished."""

    def __init__(
        self,
        buffer: Buffer,
        scheduler: Scheduler,
        builder: GroupBuilder,
        report: StepReporter,
        heartbeat: Heartbeat,
        receiver: ReceivesWeights | None = None,
        device: SharedDevice | None = None,
        sync_check: WeightSyncCheck | None = None,
        pipeline: OperatorPipeline | None = None,
        dtypes: DtypesReport | None = None,
    ) -> None:
        """Explore for one buffer.

        ``receiver``: for versions without files; ``device``: where the trainer uses it too; ``sync_check``:
        run on each version that was loaded; ``pipeline``: the operators that each draw passes; ``dtypes``:
        the engines' report to the trainer.
        """
        self._buffer, self._scheduler, self._builder = buffer, scheduler, builder
        self._versions = scheduler.versions
        self._report, self._heartbeat, self._device = report, heartbeat, device
        self._weights = EngineWeights(builder, receiver, device, sync_check, dtypes)
        self._pipeline = pipeline
        self._pool, self._queue = WorkPool(builder.room), scheduler.commit_queue()
        self._history = 0
        self._next_step: int | None = None  # of the work that was found last
        self._waiting_since = self._left_at = time.monotonic()

    async def explore(self) -> None:
        """Run until the run is finished. Raises what a unit of work raises, TrainerGone, SyncTimeout."""
        self._pool, self._queue = WorkPool(self._builder.room), self._scheduler.commit_queue()
        self._scheduler.reset()
        async with self._pool:
            while not self._scheduler.is_finished():
                self._heartbeat.check()
                if self._device and not self._device.is_mine():
                    self._heartbeat.state, self._waiting_since = "waiting", time.monotonic()
                    if offer := self._weights.offer():
                        await self._take(offer)
                    else:
                        await asyncio.sleep(PAUSE_S)
                    continue
                # Read first: weights and tasks chosen after it belong to this history, or are not stored.
                history = self._scheduler.state.history
                if self._history not in (0, history):
                    # Weights from before a resume may be invalid: their numbers are given again.
                    self._weights.invalidate(made=self._busy)
                    self._discard()
                self._history = history
                await self._store()
                # Go on with the answers that were kept over the trainer's turn, with its newest weights.
                newest = self._scheduler.state.latest
                if self._device and self._device.sleeps and self._pool.busy and newest:
                    self._pool.add_pause(time.monotonic() - self._left_at)
                    await self._weights.load(newest)
                if await self._end_turn_early():
                    continue
                self._pool.refill()
                if not await self._advance(history):
                    await self._rest(history)
            await self._store()
            self._close(None)

    async def _end_turn_early(self) -> bool:
        """Give the device away as soon as a step is stored, if the answers in flight go on afterwards."""
        if not (self._device and self._scheduler.keeps_answers and self._pool.busy):
            return False
        if self._pool.evaluating or not self._scheduler.holds_a_step():
            return False
        self._left_at = time.monotonic()
        await self._device.leave()
        return True

    def _discard(self) -> None:
        """Discard in-flight work."""
        self._pool.drop()
        self._scheduler.reset()
        self._next_step = None
        self._queue = self._scheduler.commit_queue()

    @property
    def _busy(self) -> bool:
        return self._pool.busy or len(self._queue) > 0

    @property
    def _may_load(self) -> bool:
        """Return whether other weights may be loaded now."""
        return not self._pool.busy or (self._versions.follows and not self._pool.evaluating)

    async def _advance(self, history: int) -> bool:
        """Start one thing: an evaluation, newer weights, or the next work whose weights are available.

        False when work in flight has to end first, or there is nothing to start.
        """
        loaded = self._weights.in_place
        request = None if self._pool.evaluating else self._scheduler.next_evaluation()
        if request and (evaluated := self._versions.version_for_evaluation(request, loaded)):
            return await self._evaluate(request, evaluated, history)
        work, next_step = self._next_work(history)
        if self._cancel_stragglers(next_step):
            return True
        self._close(next_step)
        may_begin = work and not (self._busy and self._scheduler.must_begin_alone(work))
        version = self._versions.version_for(work, loaded) if work and may_begin else None
        if self._versions.accepts_offer(version) and (offer := self._weights.offer()):
            return self._may_load and await self._take(offer)
        may_follow = self._versions.follows and self._busy and self._may_load
        if may_follow and await self._weights.follow(self._scheduler.state.latest):
            return True
        if not (work and version) or (version != loaded and not self._may_load):
            return False
        return await self._begin(work, version, history)

    async def _begin(self, work: StepWork, version: WeightVersion, history: int) -> bool:
        times = StepTimes(wait=time.monotonic() - self._waiting_since)
        with times.measure("sync_weight"):
            if not await self._weights.load(version):
                return False
        draw = self._scheduler.start_draw(work)
        works = self._scheduler.begin(work, version, self._pool.room)
        if not works:
            return self._settle(work.step, version, times)
        for (step, kind), tasks in self._scheduler.tasks_by_step(works).items():
            self._queue.begin(StepInProgress(step, version.version, tasks, times.copy(), draw, kind=kind))
        if draw:
            units = [WorkUnit(partial(self._draw, draw, version, history), work.answers)]
        else:
            units = [self._unit(each, version, history) for each in works]
        self._pool.begin(units, at_once=self._scheduler.whole)
        return True

    def _next_work(self, history: int) -> tuple[StepWork | None, int | None]:
        """Return the work to begin, if there is room for any, and the step before which no more will begin.

        The step is 0 where it is unknown, None when there is no work.
        """
        if self._pool.full:
            return None, 0
        if self._next_step and self._scheduler.by_room and self._pool.room < 1:
            return None, self._next_step  # without reading the database
        work = self._scheduler.next_work(history)
        self._next_step = work.step if work else None
        return work, self._next_step

    async def _take(self, offer: WeightOffer) -> bool:
        self._heartbeat.state = "waiting"
        if not await self._weights.take(offer):
            self._discard()  # provenance unknown
        return True

    async def _evaluate(self, request: EvalRequest, version: WeightVersion, history: int) -> bool:
        """Begin it beside work in flight; alone under ``fixed``, where no batch may depend on speed."""
        other_weights = version != self._weights.in_place
        if (other_weights and not self._may_load) or (self._scheduler.whole and self._busy):
            return False
        times = StepTimes(wait=time.monotonic() - self._waiting_since)
        if not await self._weights.load(version):
            return False
        work = self._scheduler.evaluation_work(request)
        if not work.jobs:
            self._scheduler.finish_evaluation(request)
            return True
        tasks = [job.task_no for job in work.jobs]
        self._queue.begin(
            StepInProgress(work.step, version.version, tasks, times, request=request, kind=work.kind)
        )
        build = partial(self._builder.groups, work, version.version, history)
        self._pool.begin([WorkUnit(build, work.answers, request)], at_once=True)
        return True

    def _unit(self, work: StepWork, version: WeightVersion, history: int) -> WorkUnit:
        task = work.jobs[0].task_no if len(work.jobs) == 1 and not self._scheduler.whole else None
        return WorkUnit(partial(self._build, work, version, history), work.answers, task=task)

    def _cancel_stragglers(self, step: int | None) -> bool:
        """Requeue late tasks, to begin again with the newest weights; the trainer goes on with others."""
        stragglers = self._scheduler.stragglers
        if not stragglers.enabled:
            return False
        cancelled = self._pool.cancel(stragglers.find(self._pool, self._queue, step))
        self._queue.remove(cancelled)
        self._scheduler.requeue(cancelled)
        return bool(cancelled)

    def _settle(self, step: int, version: WeightVersion, times: StepTimes) -> bool:
        """End a shared draw whose tasks the other explorers have claimed, if this one is to do it."""
        if not (settled := self._scheduler.settle_draw(step)):
            return False
        self._report_step(step, version.version, settled.kept, times, settled.draw.step_metrics)
        return True

    async def _build(self, work: StepWork, version: WeightVersion, history: int) -> AsyncIterator[Group]:
        """Build groups with the weights that are loaded by now: they may be newer than ``version``."""
        newest = max(version, self._weights.in_place or version, key=lambda each: each.version)
        self._queue.restart(work.jobs, newest.version)
        async for group in self._builder.groups(work, newest.version, history):
            yield group

    async def _draw(self, draw: FilterDraw, version: WeightVersion, history: int) -> AsyncIterator[Group]:
        while not draw.is_full:
            drawn = self._builder.groups(self._scheduler.draw_work(draw), version.version, history)
            groups = sorted([group async for group in drawn], key=lambda group: group.task_no)
            if self._pipeline:
                draw.add_processed(await self._pipeline.process(groups, draw.step))
            else:
                draw.add(groups)
            _log.info(draw.progress)
        for group in draw.groups(history):
            yield group

    async def _store(self) -> None:
        now = time.monotonic()
        for group in self._pool.collect():
            self._queue.add(group, now)
        for groups in self._queue.take(now, flush=not self._pool.busy):
            if not await self._store_groups(groups):
                return

    async def _store_groups(self, groups: Sequence[Group]) -> bool:
        draws = list(self._queue.draws(groups))
        for draw in draws:
            self._scheduler.finish_draw(draw)
        with_dropped = [*groups, *(group for draw in draws for group in draw.dropped)]
        began = time.monotonic()
        try:
            # In a thread: it waits for the disk, and engines and scoring processes for this loop.
            await asyncio.to_thread(
                self._buffer.put_groups,
                with_dropped,
                history=self._history,
                holder=self._scheduler.holder,
            )
        except HistoryChanged:  # the trainer has resumed: these weights may be invalid
            self._weights.invalidate(made=True)
            self._discard()
            return False
        self._scheduler.mark_stored(group.task_no for group in groups if group.kind == "train")
        for step in self._queue.mark_stored(groups):
            step.times.add("write", time.monotonic() - began)
            self._complete(step)
        return True

    def _complete(self, step: StepInProgress) -> None:
        if step.request:
            self._scheduler.finish_evaluation(step.request)
        elif step.kind == "train":
            extra = step.draw.step_metrics if step.draw else {}
            if self._scheduler.stragglers.enabled:
                extra |= {"rollout/ended_groups": float(step.cancelled)}
            self._report_step(step.step, step.version, step.groups, step.times, extra)

    def _close(self, before: int | None) -> None:
        """Complete steps of which no more tasks will begin: those before that one, or all (None)."""
        for step in self._queue.close(before):
            self._complete(step)

    def _report_step(
        self, step: int, version: int, groups: Sequence[Group], times: StepTimes, extra: Mapping[str, float]
    ) -> None:
        ordered = sorted(groups, key=lambda group: group.task_no)
        self._report.step(step, version, ordered, times, extra)

    async def _rest(self, history: int) -> None:
        """Wait until something finishes, or it is time to check again."""
        self._scheduler.recheck_next_work()
        if self._busy:
            self._heartbeat.state, self._waiting_since = "running", time.monotonic()
            await self._pool.wait_for_progress(BUSY_S)
            return
        self._heartbeat.state = "waiting"
        self._versions.request_if_missed(self._weights.in_place)
        if self._device:
            await self._device.leave()
        work = self._scheduler.next_work(history)
        if work is None:
            self._waiting_since = time.monotonic()  # it does not wait for weights
            await asyncio.sleep(IDLE_S)
            return
        self._versions.check_wait(work.step, self._waiting_since)
        await asyncio.sleep(PAUSE_S)
