"""Weights from one process to another through veRL's buckets, here in shared memory, and what goes wrong."""

import asyncio
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed

pytestmark = pytest.mark.verl
CPU, BUCKET = torch.device("cpu"), 1 << 15
FORK = multiprocessing.get_context("fork")  # verl is imported once


def weights(seed, rows=40):
    made = torch.Generator().manual_seed(seed)
    shapes = {
        "embed": (rows, 64),
        "gate": (3, 5),
        "scalar": (),
        **{f"layer.{n}": (17, 33) for n in range(60)},
    }
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    return {
        name: torch.randn(shape, generator=made).to(kinds[place % 3])
        for place, (name, shape) in enumerate(shapes.items())
    }


def meeting(name, timeout_s=60.0):
    return Rendezvous(name * 16, "", "", 0, 2, version=1, timeout_s=timeout_s)


def sender(where):
    from trinity_compat.plugins.device_transfer import DeviceSender

    return DeviceSender(where, 0, CPU, BUCKET)


def send(where, tensors):
    return asyncio.run(sender(where).send(tensors))


def receive(where, load, answers=None):
    from trinity_compat.plugins.device_transfer import DeviceReceiver

    try:
        answer = DeviceReceiver(where, 0, CPU).receive(load)
    except TransferFailed as error:
        answer = str(error)
    if answers:
        answers.put(answer)
    return answer


@pytest.fixture
def beside():
    """Begin a function in a process of its own; returns it, its pid and the queue of its answers."""
    import trinity_compat.plugins.device_transfer  # noqa: F401 (before the fork)

    begun = []

    def begin(where, load, *, after=0.0):
        answers = FORK.Queue()

        def run():
            time.sleep(after)
            receive(where, load, answers)

        begun.append(FORK.Process(target=run, daemon=True))
        begun[-1].start()
        return begun[-1], answers

    before = {path.name for path in Path("/dev/shm").glob("verl_weights_*")}
    yield begin
    for process in begun:
        process.join(30)
        assert not process.is_alive()
    assert {path.name for path in Path("/dev/shm").glob("verl_weights_*")} <= before


def keep(path):
    got = {}

    def load(named):
        got.update((name, tensor.clone()) for name, tensor in named)
        torch.save(got, path)

    return load


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_tensors_arrive_as_they_were_and_both_sides_know_it_by_one_digest(beside, tmp_path, late):
    sent = weights(1)
    _, answers = beside(meeting("a"), keep(tmp_path / "got"), after=late)
    file = send(meeting("a"), sent.items())
    assert answers.get(timeout=30) == file
    assert file.nbytes == sum(tensor.nbytes for tensor in sent.values()) > 2 * BUCKET
    got = torch.load(tmp_path / "got")
    assert list(got) == list(sent)
    assert all(got[name].dtype == sent[name].dtype and torch.equal(got[name], sent[name]) for name in sent)
    _, answers = beside(meeting("b"), keep(tmp_path / "got"))
    assert send(meeting("b"), weights(2).items()).digest != file.digest == send_digest(sent)


def send_digest(sent):
    from trinity_compat.synchronizer.held_weights import digest

    return digest(sent.items(), "")


def test_a_missing_peer_ends_both_waits(beside):
    with pytest.raises(TransferFailed, match="the engine's worker gave no answer in time"):
        send(meeting("c", 0.3), weights(1).items())
    assert receive(meeting("d", 0.3), lambda _: None) == "the trainer's rank gave no answer in time"


def test_a_tensor_larger_than_the_bucket_is_named_and_the_receiver_does_not_wait_for_it(beside):
    _, answers = beside(meeting("e"), lambda _: None)
    with pytest.raises(TransferFailed, match=r"Weight embed\(.* too large to fit in the bucket"):
        send(meeting("e"), [*weights(1).items(), ("embed", torch.zeros(BUCKET))])
    assert answers.get(timeout=30) == "the trainer gave this transfer up"


def test_an_error_of_the_trainer_s_ends_the_receiver_s_wait_and_stays_what_it_is(beside):
    def broken():
        yield from weights(1).items()
        raise ValueError("no more")

    _, answers = beside(meeting("f"), lambda _: None)
    with pytest.raises(ValueError, match="no more"):
        send(meeting("f"), broken())
    assert answers.get(timeout=30) == "the trainer gave this transfer up"


def test_the_sender_learns_why_an_engine_could_not_load(beside):
    def refuse(named):
        if any(name == "layer.3" for name, _ in named):
            raise ValueError("no place for layer.3")

    _, answers = beside(meeting("g"), refuse)
    with pytest.raises(TransferFailed, match=r"ValueError: no place for layer\.3"):
        send(meeting("g"), weights(1).items())
    assert answers.get(timeout=30) == "ValueError: no place for layer.3"


def test_other_bytes_than_were_sent_are_noticed(beside, monkeypatch):
    from trinity_compat.plugins.device_transfer import DeviceReceiver

    def flips(named):
        named[0][1].view(-1).view(torch.uint8)[0] ^= 1

    own = DeviceReceiver.receive_weights

    def spoilt(receiver, take):
        def spoil(named, last):
            flips(named)
            take(named, last)

        own(receiver, spoil)

    monkeypatch.setattr(DeviceReceiver, "receive_weights", spoilt)
    _, answers = beside(meeting("h"), lambda _: None)
    with pytest.raises(TransferFailed, match="other weights than were sent"):
        send(meeting("h"), weights(1).items())
    assert answers.get(timeout=30) == "other weights than were sent"


def test_a_receiver_that_is_killed_in_the_middle_is_an_error_in_time_and_the_next_one_is_served(beside):
    def dies(named):
        os.kill(os.getpid(), signal.SIGKILL)

    beside(meeting("i", 1.0), dies)
    began = time.monotonic()
    with pytest.raises(TransferFailed, match="gave no answer in time"):
        send(meeting("i", 1.0), weights(1).items())
    assert time.monotonic() - began < 30
    _, answers = beside(meeting("j"), lambda _: None)
    assert send(meeting("j"), weights(1).items()) == answers.get(timeout=30)


def test_a_trainer_that_is_killed_in_the_middle_is_an_error_for_the_engine():
    import trinity_compat.plugins.device_transfer  # noqa: F401 (before the fork)

    def dies():
        yield from list(weights(1).items())[:50]
        os.kill(os.getpid(), signal.SIGKILL)

    trainer = FORK.Process(target=lambda: send(meeting("k", 5.0), dies()), daemon=True)
    trainer.start()
    loaded = []
    said = receive(meeting("k", 5.0), lambda named: loaded.extend(name for name, _ in named))
    assert said == "the trainer's rank gave no answer in time"
    assert 0 < len(loaded) < len(weights(1))
    trainer.join(30)
    for left in Path("/dev/shm").glob("verl_weights_*"):  # as its resource tracker, here this process's, does
        left.unlink()


def test_a_folder_that_is_somebody_else_s_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("trinity_compat.plugins.device_transfer._SHARED_MEMORY", tmp_path)
    tmp_path.chmod(0o777)
    folder = tmp_path / f"trinity-compat-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(TransferFailed, match="others may write there"):
        sender(meeting("l"))
