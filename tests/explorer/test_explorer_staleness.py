"""How old the policy of a trained experience is under the styles that depend on speed, read off the ledger.

The real explorer's loop and the real exchange of the trainer over one database, paced: the explorer goes as
far ahead as it may (k steps, or until it waits for weights) before the trainer takes or ends a step.
docs/synchronizer.md shows the same figures.
"""

import asyncio
import sqlite3
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from explorer_job import BATCH, CPU, OneRank, experience, job, says_once_that_it_lives
from omegaconf import OmegaConf

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Group
from trinity_compat.explorer.data.tasks import train_stream
from trinity_compat.explorer.engine.weights import INITIAL
from trinity_compat.explorer.rollout.nccl_receiver import Receiver
from trinity_compat.explorer.scheduling import loop
from trinity_compat.explorer.scheduling.loop import Explorer
from trinity_compat.explorer.scheduling.report import StepReporter
from trinity_compat.explorer.scheduling.scheduler import Scheduler
from trinity_compat.explorer.scheduling.version_selector import VersionSelector
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.run.toy import make_tokenizer
from trinity_compat.synchronizer.transports.files import write_file
from trinity_compat.synchronizer.transports.nccl import WeightGroup
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferReceiver

pytestmark = pytest.mark.verl  # the exchange imports verl's DataProto

STEPS = 8


class Pace:
    """Where the trainer is, how far ahead the explorer may go, and whether it can go no further."""

    def __init__(self, ahead):
        self.ahead, self.trainer, self.idle, self.held = ahead, 1, 0, False
        self.error = None  # what ended the explorer

    def moved(self):
        self.idle, self.held = 0, False

    def settle(self):
        until = time.monotonic() + 300
        self.moved()
        while not self.held and self.idle < 4:  # four looks in a row that found no weights, or no work
            assert self.error is None and time.monotonic() < until, "the explorer neither works nor waits"
            time.sleep(0.005)


class PacedMaker:
    """Half of a step's groups at once; the rest one trainer step later, if the explorer may be ahead at all.
    Of those, run 0 was begun with the first half."""

    def __init__(self, pace, buffer, follows):
        self.pace, self.buffer, self.follows, self.version = pace, buffer, follows, 0

    async def load(self, version):
        self.version = version.version

    def room(self):
        return 1

    async def groups(self, work, version, history):
        first = self.version
        for one in work.jobs:
            step, late = work.step_of(one.task_no), one.task_no % BATCH >= BATCH // 2
            if late and self.follows and self.pace.ahead and step < STEPS:
                await self._until(step - self.pace.ahead + 1)
            now = self.version
            runs = [(first, now)] + [(now if late else first, now)] * (one.n - 1)
            yield group(one, step, history, runs)

    async def _until(self, trainer_step):
        while self.pace.trainer < trainer_step or self._behind():
            self.pace.held = self.pace.trainer < trainer_step
            await asyncio.sleep(0.005)

    def _behind(self):
        newest = self.buffer.latest_version() if self.follows else None
        return newest is not None and newest.version > self.version


def group(one, step, history, versions):
    parts = tuple(experience(run, *pair) for run, pair in enumerate(versions))
    return Group(f"h{history}/train/{one.task_no}", one.task_no, {}, step, parts)


class PacedVersions(VersionSelector):
    """Selects no version too early, and counts the calls that found none."""

    pace: Pace
    trainer = 1  # where it was when the buffer's state was read

    def version_for(self, work, loaded):
        too_early = work.step > self.trainer + self.pace.ahead
        self.pace.held = too_early and self.trainer == self.pace.trainer
        # By broadcast an explorer may begin with the model path before version 0 is offered: not here.
        begins = self.takes_over and loaded is INITIAL
        found = None if too_early or begins else super().version_for(work, loaded)
        self.pace.idle = self.pace.idle + 1 if found is None else 0
        return found


class PacedScheduler(Scheduler):
    """Paces versions, and counts the calls that found no work."""

    def __init__(self, spec, buffer, train, pace):
        super().__init__(spec, buffer, train, None)
        self.versions = PacedVersions(spec, buffer, train.order.batch_size, 0)
        self.versions.pace = self.pace = pace

    def is_finished(self):
        self.versions.trainer = self.pace.trainer  # its version is then in the state
        return super().is_finished()

    def next_work(self, history):
        work = super().next_work(history)
        if work is None:
            self.pace.idle += 1
        return work


class PacedBuffer:
    """The trainer's buffer: a claim looks once the explorer is as far as it gets."""

    def __init__(self, buffer, pace):
        self._buffer, self._pace = buffer, pace

    def __getattr__(self, name):
        return getattr(self._buffer, name)

    def claim_groups(self, *args, **kwargs):
        self._pace.settle()
        return self._buffer.claim_groups(*args, **kwargs)


class Rank(OneRank):
    """Where versions have no files: the maker's one engine worker."""

    def __init__(self, maker):
        super().__init__()
        self.maker = maker

    async def receive(self, meeting, first_rank):
        version = await super().receive(meeting, first_rank)
        self.maker.version = version.version
        return version


class RankZero:
    """Stands for the actor's rank 0: writes a version's file, or broadcasts it."""

    def __init__(self, directory):
        self.directory, self.group = directory, None

    def __call__(self, version, meeting=None, check=None):
        tensors = [("w", torch.zeros(9))]
        if meeting is None:
            return write_file(self.directory, version, tensors)
        self.group = self.group or WeightGroup(meeting, 0, CPU)
        return self.group.send(meeting, tensors, 64)


def explore(spec, pace):
    try:
        _explore(spec, pace)
    except BaseException as error:
        pace.error = error
        raise


def _explore(spec, pace):
    buffer = open_buffer(spec.database_url)
    train = train_stream(OmegaConf.create(spec.verl), make_tokenizer(), None)
    scheduler = PacedScheduler(spec, buffer, train, pace)
    maker = PacedMaker(pace, buffer, scheduler.versions.follows)
    heart = SimpleNamespace(check=lambda: None, state="")
    receiver = Receiver(OfferReceiver(buffer, 0, 1), Rank(maker), heart.check)
    report = StepReporter(buffer, "explorer")
    given = receiver if scheduler.versions.takes_over else None
    explorer = Explorer(buffer, scheduler, maker, report, heart, given)
    asyncio.run(explorer.explore())


def lags(monkeypatch, tmp_path, toy, style, ahead, method):
    """Smallest and largest lag of each trainer step, and its experiences of several versions; I = 2."""
    from trinity_compat.trainer.exchange import BufferExchange
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    monkeypatch.setattr(loop, "PAUSE_S", 0.005)
    sync = SyncSpec(style, 2, 0, timeout_s=600, directory=str(tmp_path / "sync"), method=method)
    spec, buffer = job(tmp_path / "job", toy, steps=STEPS, sync=sync)
    pace = Pace(ahead)
    exploring = threading.Thread(target=explore, args=(spec, pace), daemon=True)
    with LeaseHeartbeat(buffer, "t") as heart:
        exchange = BufferExchange(
            PacedBuffer(buffer, pace), spec, heart, batch_size=BATCH, group_size=2, val_size=0
        )
        says_once_that_it_lives(buffer)
        send = RankZero(sync.directory)
        exploring.start()
        exchange.publish(0, send)
        for step in range(1, STEPS + 1):
            exchange.claim(step)
            pace.settle()
            exchange.publish(step, send)
            pace.trainer = step + 1
        buffer.set_state("finished", True)
        exploring.join(300)
        assert not exploring.is_alive()
    rows = sqlite3.connect(tmp_path / "job" / "experiences.db").execute(
        "select min(trainer_step - 1 - max_model_version), max(trainer_step - 1 - min_model_version),"
        " sum(min_model_version < max_model_version) from ledger group by trainer_step order by trainer_step"
    )
    return list(rows)


def even(*both):
    return [(lag, lag, 0) for lag in both]


@pytest.mark.parametrize(
    ("style", "ahead", "method", "seen"),
    [
        ("fixed", 1, "nccl", even(0, 1, 0, 1, 0, 1, 0, 1)),  # with files: test_trainer_staleness.py
        ("trainer_driven", 0, "memory", even(0, 1, 0, 1, 0, 1, 0, 1)),
        ("trainer_driven", 1, "nccl", even(0, 1, 2, 1, 2, 1, 2, 1)),
        ("explorer_driven", 1, "memory", even(0, 1, 0, 1, 0, 1, 0, 1)),
        ("explorer_driven", 2, "memory", even(0, 1, 1, 2, 1, 2, 1, 2)),
        ("explorer_driven", 2, "nccl", even(0, 1, 1, 2, 1, 2, 1, 2)),
        ("fully_async", 0, "memory", even(0, 1, 0, 1, 0, 1, 0, 1)),
        ("fully_async", 1, "memory", [(0, 0, 0), (1, 1, 0)] + [(0, 2, BATCH // 2), (1, 1, 0)] * 3),
        ("fully_async", 1, "nccl", [(0, 0, 0), (1, 1, 0)] + [(0, 2, BATCH // 2), (1, 1, 0)] * 3),
    ],
)
def test_the_lag_of_a_paced_run(monkeypatch, tmp_path, toy, style, ahead, method, seen):
    assert lags(monkeypatch, tmp_path, toy, style, ahead, method) == seen
