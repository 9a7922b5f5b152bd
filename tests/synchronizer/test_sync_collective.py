"""Handovers between real processes over Gloo: what arrives, and what happens when somebody doesn't."""

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist

from trinity_compat.synchronizer.transports import nccl
from trinity_compat.synchronizer.transports.files import WeightsDamaged
from trinity_compat.synchronizer.transports.nccl import LoadFailed, Rendezvous, TransferFailed, WeightGroup
from trinity_compat.trainer.nccl_sender import store_at

pytestmark = pytest.mark.timeout(900)
CPU = torch.device("cpu")


def weights(seed):
    generator = torch.Generator().manual_seed(seed)
    tied = torch.randn(7, 4, generator=generator)
    return {
        "embed": tied,
        "lm_head": tied,
        "larger than a bucket": torch.randn(40, 4, generator=generator),
        "norm": torch.randn(3, generator=generator).to(torch.bfloat16),
        "steps": torch.tensor(3, dtype=torch.int64),
        "slice": torch.randn(6, 8, generator=generator)[:, 1:3],
    }


def rank(number, meetings, answers, fault=""):
    """A receiver: one handover after the other, until None comes."""
    group = None
    while (meeting := meetings.get()) is not None:
        where, got = Rendezvous(**meeting), {}
        began = time.monotonic()
        try:
            group = WeightGroup(where, number, CPU) if group is None else group
            spoil(group, fault)
            file = group.receive(where, lambda named, got=got: keep(named, got, fault))
            answers.put((number, file.digest, file.nbytes, got))
        except (TransferFailed, LoadFailed, WeightsDamaged) as error:
            answers.put((number, type(error).__name__, str(error), time.monotonic() - began))


def keep(named, got, fault):
    if fault == "has no room" and got:
        raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
    got.update((name, tensor.clone()) for name, tensor in named)


def spoil(group, fault):
    broadcast, seen = group._broadcast, []

    def spoiled(bucket, until):
        seen.append(1)
        if fault == "dies" and len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        if fault == "hangs" and len(seen) == 2:
            time.sleep(60)
        broadcast(bucket, until)
        if fault == "flips a bit" and len(seen) == 2:
            bucket[5] ^= 1

    if fault:
        group._broadcast = spoiled


class Company:
    """Receivers, each a process of its own, and the store that the trainer hosts."""

    def __init__(self):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["trinity_compat.synchronizer.transports.nccl"])
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.answers, self.ranks = self.context.Queue(), {}

    def start(self, number, fault=""):
        self.end(number)
        meetings = self.context.Queue()
        process = self.context.Process(target=rank, args=(number, meetings, self.answers, fault), daemon=True)
        process.start()
        self.ranks[number] = process, meetings

    def meeting(self, version, group="g1", **more):
        size = 1 + len(self.ranks)
        return Rendezvous(**{
            "transfer": f"{group}-{version}", "group": group, "address": "127.0.0.1", "port": self.store.port,
            "world_size": size, "version": version, "timeout_s": 120.0, **more,
        })  # fmt: skip

    def call(self, meeting):
        for process, meetings in self.ranks.values():
            if process.is_alive():
                meetings.put(asdict(meeting))

    def answer(self):
        return self.answers.get(timeout=300)

    def end(self, number):
        if number in self.ranks:
            process, meetings = self.ranks.pop(number)
            meetings.put(None)
            process.join(2)
            process.kill()

    def close(self):
        for number in list(self.ranks):
            self.end(number)


@pytest.fixture
def company():
    made = Company()
    yield made
    made.close()


def test_every_rank_gets_every_version_whole(company):
    company.start(1)
    company.start(2)
    group = None
    for version in (1, 2):
        meeting = company.meeting(version)
        company.call(meeting)
        group = group or WeightGroup(meeting, 0, CPU)
        sent = group.send(meeting, weights(version).items(), 128)
        for _, digest, nbytes, got in (company.answer(), company.answer()):
            assert (digest, nbytes) == (sent.digest, sent.nbytes)
            assert {name: (t.dtype, t.shape) for name, t in got.items()} == {
                name: (t.dtype, t.shape) for name, t in weights(version).items()
            }
            assert all(torch.equal(got[name], tensor) for name, tensor in weights(version).items())


def test_versions_differ_in_their_digest(company):
    company.start(1)
    digests = []
    for version, seed in ((1, 1), (2, 1), (3, 2)):
        meeting = company.meeting(version, group=f"g{version}")
        company.ranks[1][1].put(asdict(meeting))
        digests.append(WeightGroup(meeting, 0, CPU).send(meeting, weights(seed).items(), 128).digest)
        company.answer()
        company.close()
        company.start(1)
    assert digests[0] == digests[1] != digests[2]


def test_a_flipped_bit_is_found_on_both_sides(company):
    company.start(1)
    company.start(2, "flips a bit")
    meeting = company.meeting(1)
    company.call(meeting)
    with pytest.raises(WeightsDamaged, match="did not arrive whole: rank 2 got other bytes"):
        WeightGroup(meeting, 0, CPU).send(meeting, weights(1).items(), 128)
    assert {answer[0]: answer[1] for answer in (company.answer(), company.answer())}[2] == "WeightsDamaged"


def test_a_rank_that_dies_is_noticed_at_once_and_another_group_forms(company):
    company.start(1)
    company.start(2, "dies")
    meeting = company.meeting(1)
    company.call(meeting)
    group = WeightGroup(meeting, 0, CPU)
    began = time.monotonic()
    with pytest.raises(TransferFailed):
        group.send(meeting, weights(1).items(), 128)
    group.close()
    assert company.answer()[:2] == (1, "TransferFailed")
    assert time.monotonic() - began < meeting.timeout_s / 2
    company.start(1)
    company.start(2)
    again = company.meeting(1, group="g2")
    company.call(again)
    WeightGroup(again, 0, CPU).send(again, weights(1).items(), 128)
    assert {company.answer()[0], company.answer()[0]} == {1, 2}


def test_a_rank_that_cannot_load_is_named_at_once_with_what_to_lower(company):
    company.start(1)
    company.start(2, "has no room")
    meeting = company.meeting(1)
    company.call(meeting)
    group = WeightGroup(meeting, 0, CPU)
    began = time.monotonic()
    with pytest.raises(LoadFailed, match=r"rank 2: no room .* 2.00 GiB.*: lower .*gpu_memory_utilization"):
        group.send(meeting, weights(1).items(), 128)
    ended = dict([company.answer()[:2], company.answer()[:2]])
    assert ended == {1: "TransferFailed", 2: "LoadFailed"}
    assert time.monotonic() - began < meeting.timeout_s
    company.close()  # else Gloo waits until its limit for what is on its way to them


def test_a_bucket_is_no_larger_than_the_fullest_device_has_room_for(company, monkeypatch):
    monkeypatch.setattr(nccl, "_LEAST_ROOM", 64)
    company.start(1)
    meeting = company.meeting(1)
    company.call(meeting)
    group, sizes = WeightGroup(meeting, 0, CPU), []
    broadcast = group._broadcast
    monkeypatch.setattr(group, "_room", lambda until: 64)
    monkeypatch.setattr(group, "_broadcast", lambda *a: (sizes.append(a[0].numel()), broadcast(*a)))
    group.send(meeting, weights(1).items(), 1 << 20)
    alone = 640  # one tensor is larger
    assert max(size for size in sizes if size != alone) <= 112
    assert company.answer()[0] == 1


def test_a_word_of_somebody_else_s_ends_the_handover(company):
    company.start(1)
    meeting = company.meeting(1, secret="known to the run")
    company.call(meeting)
    group = WeightGroup(meeting, 0, CPU)
    stranger = dist.PrefixStore(
        meeting.group, dist.TCPStore("127.0.0.1", company.store.port, is_master=False)
    )
    stranger.set(f"{meeting.transfer}/0", '{"layout": [], "nbytes": 16, "checksum": ""}')
    number, kind, why, _ = company.answer()
    assert (number, kind) == (1, "TransferFailed")
    assert "not written by this run" in why
    group.close()


def test_the_secret_is_in_no_text_about_a_meeting(company):
    assert "hush" not in repr(company.meeting(1, secret="hush"))


def test_the_store_listens_at_its_address_alone():
    store = store_at("127.0.0.1")
    heard = {c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.laddr.port == store.port}
    assert heard <= {"127.0.0.1"}
    assert heard
    store.set("a", "b")


@pytest.mark.parametrize("fault", ["hangs", "never comes"])
def test_a_rank_that_falls_silent_is_an_error_after_the_timeout(company, fault):
    company.start(1)
    company.start(2, fault)
    meeting = replace(company.meeting(1), timeout_s=2.0)
    if fault == "never comes":
        company.ranks[1][1].put(asdict(meeting))
    else:
        company.call(meeting)
    with pytest.raises(TransferFailed):  # after 2 s, and not after the library's own half an hour
        WeightGroup(meeting, 0, CPU).send(meeting, weights(1).items(), 128)
    told = [company.answer()]
    if told[0][0] == 2:  # on a busy machine it is too late for the meeting, and has no time to hang
        told.append(company.answer())
    number, kind, _, waited = told[-1]
    assert (number, kind) == (1, "TransferFailed")
    assert waited < 120


def test_a_trainer_that_cannot_go_on_tells_the_ranks(company):
    def broken():
        yield from weights(1).items()
        raise OSError("no such shard")

    company.start(1)
    meeting = company.meeting(1)
    company.call(meeting)
    with pytest.raises(OSError, match="no such shard"):
        WeightGroup(meeting, 0, CPU).send(meeting, broken(), 128)
    assert company.answer()[1:3] == ("TransferFailed", "the trainer gave this transfer up")


def test_a_trainer_that_dies_is_an_error_for_the_ranks(company):
    company.start(1)
    company.start(2)
    meeting = replace(company.meeting(1), timeout_s=30.0)
    company.call(meeting)
    group = WeightGroup(meeting, 0, CPU)
    group.close()  # its sockets go, as with its process
    assert {company.answer()[1], company.answer()[1]} == {"TransferFailed"}


class Clock:
    """Goes on with every tensor that the sender gives away, and not otherwise."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        time.sleep(seconds)


def slow_handover(monkeypatch, *, seconds, whole_s):
    """Five buckets, each ``seconds`` in the making, with 20 s for each."""
    clock, got = Clock(), {}
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = Rendezvous("h", "g", "127.0.0.1", store.port, 2, 1, timeout_s=20.0, whole_s=whole_s)

    def receive():
        WeightGroup(meeting, 1, CPU).receive(meeting, lambda named: got.update(named))

    def tensors():
        for name in "abcde":
            clock.now += seconds
            yield name, torch.ones(8)

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    group = WeightGroup(meeting, 0, CPU)
    monkeypatch.setattr(nccl, "time", clock)
    group.send(meeting, tensors(), 32)
    receiver.join(300)
    return set(got)


def test_each_bucket_has_the_limit_anew(monkeypatch):
    assert slow_handover(monkeypatch, seconds=15.0, whole_s=3600.0) == set("abcde")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_all_buckets_together_have_a_limit(monkeypatch):
    with pytest.raises(TransferFailed):
        slow_handover(monkeypatch, seconds=15.0, whole_s=40.0)


class Endless:
    """A group whose first broadcast never returns, as NCCL's while a rank is missing."""

    def broadcast(self, tensors, options):
        threading.Event().wait()


def test_a_broadcast_that_never_returns_is_an_error_too(monkeypatch):
    monkeypatch.setattr(nccl, "_process_group", lambda *_: Endless())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = Rendezvous("h", "g", "127.0.0.1", store.port, 2, 1, timeout_s=0.2)
    with pytest.raises(TransferFailed, match="rank 0 could not join: the others did not come in time"):
        WeightGroup(meeting, 0, CPU)


class Late:
    """A group whose broadcasts are complete at the third look."""

    def broadcast(self, tensors, options):
        looks = iter((False, False, True))
        return SimpleNamespace(is_completed=lambda: next(looks), wait=lambda: None)


def test_a_late_bucket_is_waited_for_while_no_rank_has_given_up(monkeypatch):
    monkeypatch.setattr(nccl, "_process_group", lambda *_: Late())
    monkeypatch.setattr(nccl, "_LOOK_S", -1.0)  # look between all polls
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = Rendezvous("h", "g", "127.0.0.1", store.port, 2, 1, timeout_s=300.0)
    group = WeightGroup(meeting, 0, CPU)
    group._transfer = meeting.transfer
    group._broadcast(torch.ones(8), time.monotonic() + 300)
    group._put(f"{meeting.transfer}/{nccl._BROKEN}", "out of memory")
    with pytest.raises(LoadFailed, match="out of memory"):
        group._broadcast(torch.ones(8), time.monotonic() + 300)
