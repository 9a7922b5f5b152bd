"""How a version gets from the trainer to the explorers when they share a database and nothing else: the real
two sides, each receiver a rank of a real group over Gloo, without models."""

import asyncio
import contextlib
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from explorer_job import CPU, OneRank

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import RunError
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed, WeightGroup
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferReceiver, OfferSender
from trinity_compat.synchronizer.versions import SyncTimeout

pytestmark = pytest.mark.verl  # the trainer's side imports ray


class Explorer(threading.Thread):
    """Takes whatever is offered, until it is told to stop."""

    def __init__(self, url, index):
        super().__init__(daemon=True)
        self.url, self.index, self.stop, self.taken, self.rank = url, index, threading.Event(), [], OneRank()

    def run(self):
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._take())

    async def _take(self):
        from trinity_compat.explorer.rollout.nccl_receiver import Receiver

        buffer = open_buffer(self.url)
        receiver = Receiver(OfferReceiver(buffer, self.index, 1), self.rank, self._check)
        while not self.stop.is_set():
            offer = receiver.look()
            if offer and (version := await receiver.take(offer)):
                self.taken.append(version)
            await asyncio.sleep(0.01)

    def _check(self):
        if self.stop.is_set():
            raise asyncio.CancelledError

    def took(self, number):
        """The first ``number`` versions, once they are there: the trainer knows a moment earlier."""
        until = time.monotonic() + 120
        while len(self.taken) < number and time.monotonic() < until:
            time.sleep(0.01)
        return self.taken


class Trainer:
    """The trainer's handover, with rank 0 in this process."""

    def __init__(self, url, explorers, timeout_s=600.0):
        from trinity_compat.trainer import nccl_sender

        spec = RunSpec(
            "", url, {}, 1, None, SyncSpec(timeout_s=timeout_s, method="nccl"), explorers=explorers
        )
        self.group, self.groups, self.meetings = None, [], []
        self.buffer, self.looks = open_buffer(url), []
        self.handover = nccl_sender.NcclSender(self.buffer, spec, self.looks.append)

    def publish(self, version):
        return self.handover.send(version, self._send)

    def _send(self, version, meeting, check):
        self.meetings.append(meeting)
        if self.group is None or self.group.name != meeting.group:
            self.group = WeightGroup(meeting, 0, CPU)
            self.groups.append(meeting.group)
        return self.group.send(meeting, [("w", torch.full((9,), float(version)))], 64)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/b.db"


@pytest.fixture
def explorers(url):
    made = []

    def start(index):
        made.append(Explorer(url, index))
        made[-1].start()
        return made[-1]

    open_buffer(url).close()
    yield start
    for one in made:
        one.stop.set()
        one.join(60)


def test_all_explorers_get_each_version_by_the_same_group(url, explorers):
    both = [explorers(0), explorers(1)]
    trainer = Trainer(url, 2)
    sent = [trainer.publish(version) for version in (0, 1, 2)]
    assert len(trainer.groups) == 1
    assert [version.method for version in sent] == ["nccl"] * 3
    for one in both:
        assert one.took(3) == sent
        assert torch.equal(one.rank.got["w"], torch.full((9,), 2.0))


def test_an_explorer_started_again_gets_the_next_version_by_a_new_group(url, explorers):
    first, stays = explorers(0), explorers(1)
    trainer = Trainer(url, 2)
    trainer.publish(1)
    first.stop.set()
    first.join(60)
    again = explorers(0)
    sent = trainer.publish(2)
    assert len(trainer.groups) == 2
    assert again.took(1) == [sent]
    assert stays.took(2)[1] == sent


def test_a_handover_that_broke_is_offered_again(url, explorers, monkeypatch):
    from trinity_compat.trainer import nccl_sender

    monkeypatch.setattr(nccl_sender, "MEETING_S", 2.0)
    one = explorers(0)
    one.rank.dies = True
    threading.Timer(1.0, lambda: setattr(one.rank, "dies", False)).start()
    trainer = Trainer(url, 1)
    sent = trainer.publish(1)
    assert one.took(1) == [sent]


@pytest.mark.parametrize(
    ("sync_timeout", "limits"), [(900.0, (120.0, 420.0)), (300.0, (120.0, 420.0)), (60.0, (60.0, 420.0))]
)
def test_a_broadcast_s_limits_are_per_bucket_and_end_before_the_trainer_s_watchdog(
    url, explorers, sync_timeout, limits
):
    """The trainer's other ranks may wait for rank 0 from before the joining on, ten minutes at most. One
    whose buckets come is not broken off before that, however short sync_timeout is."""
    explorers(0)
    trainer = Trainer(url, 1, timeout_s=sync_timeout)
    trainer.publish(1)
    assert [(meeting.timeout_s, meeting.whole_s) for meeting in trainer.meetings] == [limits]


def test_a_handover_that_never_works_is_an_error_that_says_why(url, explorers, monkeypatch):
    from trinity_compat.trainer import nccl_sender

    explorers(0).rank.dies = True
    now = [0.0]
    monkeypatch.setattr(nccl_sender, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))

    def broken(version, meeting, check):
        now[0] += 7.0
        raise TransferFailed("a trace\nrank 1 was lost")

    with pytest.raises(SyncTimeout, match=r"version 1 .* was not handed over in 20 s: rank 1 was lost"):
        Trainer(url, 1, timeout_s=20.0).handover.send(1, broken)


def test_an_explorer_whose_engines_hang_in_a_handover_ends(url):
    """Whatever keeps them past every limit of theirs: not the explorer, which can be restarted."""
    from trinity_compat.explorer.rollout.nccl_receiver import Receiver

    class Hangs:
        restarts_an_engine = False

        def late(self):
            return []

        async def receive(self, meeting, first_rank):
            await asyncio.Event().wait()

    buffer = open_buffer(url)
    offering, offered = OfferSender(buffer, 1), OfferReceiver(buffer, 0, 1)
    offer = offering.open(2)
    offered.accept(offer)
    meeting = Rendezvous(offer.id, "g", "127.0.0.1", 1, 2, 2, timeout_s=0.0, whole_s=-59.9)
    offering.meet(offer, meeting, offering.members(offer))
    receiver = Receiver(offered, Hangs(), lambda: None)
    with pytest.raises(RunError, match="the engines hang in the transfer of version 2"):
        asyncio.run(receiver.take(offer))


def test_engines_do_not_join_the_meeting_of_an_offer_that_was_withdrawn(url):
    from trinity_compat.explorer.rollout.nccl_receiver import Receiver

    buffer = open_buffer(url)
    offering, offered = OfferSender(buffer, 1), OfferReceiver(buffer, 0, 1)
    offer = offering.open(2)
    offered.accept(offer)
    offering.meet(offer, Rendezvous(offer.id, "g", "127.0.0.1", 1, 2, 2, 1.0), offering.members(offer))
    offering.close()
    engines = SimpleNamespace(restarts_an_engine=False)  # has nothing to receive with
    assert asyncio.run(Receiver(offered, engines, lambda: None).take(offer)) is None


def test_training_processes_that_hang_in_a_handover_are_an_error(monkeypatch):
    from trinity_compat.trainer import publisher

    class Actors:
        world_size = 2

        def execute_checkpoint_engine(self, **_):
            return ["told", "told"]

        def update_weights(self, **_):
            return ["done", "hangs"]

    def wait(waiting, num_returns, timeout):
        done = [one for one in waiting if one != "hangs"]
        return done, ["hangs"] * (len(waiting) - len(done))

    monkeypatch.setattr(publisher.ray, "wait", wait)
    monkeypatch.setattr(publisher.ray, "get", lambda given: given)
    looks = []
    meeting = Rendezvous("h", "g", "127.0.0.1", 1, 2, 2, timeout_s=0.0, whole_s=-59.9)
    sender = publisher.VersionPublisher(None, Actors(), None)
    sender.trainer = SimpleNamespace(exchange=SimpleNamespace(engine_dtypes=dict))
    with pytest.raises(TransferFailed, match="1 of 2 training processes did not finish"):
        sender.send(2, meeting, lambda: looks.append(1))
    assert looks


def test_an_explorer_that_is_never_ready_is_an_error_that_says_so(url, explorers, monkeypatch):
    from trinity_compat.trainer import nccl_sender

    explorers(0)
    trainer = Trainer(url, 2, timeout_s=20.0)

    clock = [0.0]

    def sleep(seconds):
        """The clock stands still until the one that comes is there: the next look counts it."""
        time.sleep(seconds)
        clock[0] = 30.0 * bool(trainer.buffer.get_state("weights/ready/0"))

    monkeypatch.setattr(nccl_sender, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    with pytest.raises(SyncTimeout, match=r"version 3 .* waited 20 s: 1 of 2 explorers were ready"):
        trainer.publish(3)
    assert "explorers to take version 3" in trainer.looks


def test_an_explorer_that_still_generates_is_waited_for_beyond_the_limit(url, explorers, monkeypatch):
    """A step of hours is healthy: the limit counts from the last report of work."""
    from trinity_compat.trainer import nccl_sender

    trainer, clock = Trainer(url, 1, timeout_s=60.0), [0.0]
    trainer.buffer.beat("explorer", "e", state="running")

    def sleep(seconds):
        time.sleep(seconds)
        clock[0] += 30.0
        if clock[0] == 300.0:
            explorers(0)
            trainer.buffer.beat("explorer", "e", state="waiting")
            clock[0] = 301.0
        clock[0] = min(clock[0], 310.0)  # stands still until it has come

    monkeypatch.setattr(nccl_sender, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    assert trainer.publish(3).version == 3


def test_a_trainer_that_finds_nobody_alive_stops_waiting(url):
    trainer = Trainer(url, 1)

    def gone(what):
        raise RuntimeError(f"nobody lives, waiting for {what}")

    trainer.handover._check = gone
    with pytest.raises(RuntimeError, match="nobody lives, waiting for explorers to take version 1"):
        trainer.publish(1)


def test_what_a_dead_trainer_offered_is_left_for_what_its_successor_offers(url, explorers):
    dead = Trainer(url, 1)
    dead.handover._offering.open(7)
    one = explorers(0)
    sent = Trainer(url, 1).publish(4)
    assert one.took(1) == [sent]
