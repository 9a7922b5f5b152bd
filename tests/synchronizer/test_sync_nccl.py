"""The branch for GPUs, with Gloo in NCCL's place and the CPU's memory in the device's."""

import os
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from trinity_compat.synchronizer.transports import nccl
from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed, WeightGroup

GPU = torch.device("cuda", 1)


class Nccl:
    """Gloo, with what NCCL has besides."""

    made: list = []  # noqa: RUF012  emptied by each test

    class Options:
        _timeout = None

    def __init__(self, store, rank, world, options):
        self.options, self.aborted = options, False
        self.gloo = dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=300))
        Nccl.made.append(self)

    def broadcast(self, tensors, options):
        return self.gloo.broadcast(tensors, options)

    def abort(self):
        self.aborted = True


@pytest.fixture
def gpu(monkeypatch):
    """``free`` bytes of a device, ``reserved`` and ``allocated`` by torch; ``chosen``: devices that a thread
    has made its own."""
    found = SimpleNamespace(chosen=[], free=1 << 40, reserved=0, allocated=0)
    Nccl.made.clear()
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    for name in ("zeros", "empty"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *size, device=None, real=real, **how: real(*size, **how))
    for name, value in {
        "set_device": found.chosen.append,
        "mem_get_info": lambda device: (found.free, 1 << 41),
        "memory_reserved": lambda device: found.reserved,
        "memory_allocated": lambda device: found.allocated,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return found


def met(timeout_s=300.0):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store, Rendezvous("h", "g", "127.0.0.1", store.port, 2, version=1, timeout_s=timeout_s)


def test_a_version_goes_device_to_device_with_our_watchdog_first(gpu):
    store, meeting = met()
    got, files, weights = {}, [], {"w": torch.randn(5, 3), "b": torch.arange(4)}

    def receive():
        group = WeightGroup(meeting, 1, GPU)
        files.append(group.receive(meeting, lambda named: got.update((n, t.clone()) for n, t in named)))
        group.close()

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    group = WeightGroup(meeting, 0, GPU)
    sent = group.send(meeting, iter(weights.items()), 32)
    receiver.join(300)
    group.close()
    assert files == [sent]
    assert all(torch.equal(got[name], weights[name]) for name in weights)
    assert gpu.chosen == [GPU, GPU]
    assert [each.options._timeout for each in Nccl.made] == [timedelta(seconds=360)] * 2
    assert [each.aborted for each in Nccl.made] == [True, True]  # else a rank that waits would wait on
    del store


def test_ranks_form_a_group_under_rank_0_s_choices_and_none_is_ended_by_its_watchdog(gpu, monkeypatch):
    """vLLM's batch invariance sets some in its workers: ranks that choose apart would wait forever."""
    store, meeting = met()
    names = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    seen = []
    monkeypatch.setattr(
        nccl, "_process_group", lambda *_: seen.append([os.environ.get(name) for name in names])
    )
    monkeypatch.setattr(WeightGroup, "_greet", lambda self, until: None)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")  # each machine's own
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    WeightGroup(meeting, 0, GPU)
    worker = {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "Simple", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    for name, value in worker.items():
        monkeypatch.setenv(name, value)
    WeightGroup(meeting, 1, GPU)
    assert seen == [["Ring", None, "lo", "0"]] * 2
    assert {name: os.environ[name] for name in worker} == worker
    del store


@pytest.mark.parametrize(("device", "aborted"), [(GPU, [1]), (torch.device("cpu"), [])])
def test_a_group_is_left_with_an_abort_only_where_a_rank_would_wait_on(device, aborted):
    leaving, done = object.__new__(WeightGroup), []
    leaving._group = SimpleNamespace(abort=lambda: done.append(1))
    leaving._store, leaving._device = "the store", device
    leaving.close()
    assert done == aborted
    assert not hasattr(leaving, "_group") and not hasattr(leaving, "_store")


@pytest.mark.parametrize(
    ("free", "reserved", "allocated", "room"),
    [(100, 0, 0, 50), (100, 60, 20, 70), (100, 20, 20, 50), (1, 0, 0, 0)],
)
def test_half_of_what_is_free_is_room_for_a_bucket(gpu, free, reserved, allocated, room):
    gpu.free, gpu.reserved, gpu.allocated = free, reserved, allocated
    assert nccl.room_on(GPU) == room
    assert nccl.room_on(torch.device("cpu")) >= 1 << 60


@pytest.mark.parametrize(
    ("free", "rooms", "bucket"),
    [
        (1 << 40, [1 << 35, 1 << 30], 1 << 30),
        (1 << 40, [1 << 30, 1 << 35], 1 << 30),
        (1 << 40, [1, 1 << 30], 16 << 20),
        (1 << 31, [1 << 30, 1 << 35], 1 << 29),
    ],
)
def test_a_bucket_fits_the_fullest_device_and_has_a_least_size(gpu, free, rooms, bucket):
    """The sender holds more than a bucket: what it packs, and the bucket before."""
    gpu.free = free
    group = object.__new__(WeightGroup)
    group._world, group._device = 1 + len(rooms), GPU
    group._word = lambda key, until: str(rooms[int(key.removeprefix("room/")) - 1])
    assert group._room(0.0) == bucket


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("tried to allocate 2 GiB\ndetails"),
            "no room for the weights beside vLLM's memory (tried to allocate 2 GiB):"
            " lower actor_rollout_ref.rollout.gpu_memory_utilization",
        ),
        (KeyError("lm_head"), "KeyError: 'lm_head'"),
    ],
)
def test_why_a_rank_cannot_hold_weights_is_said_with_what_to_lower(error, said):
    assert nccl.reason_of(error) == said


@pytest.mark.parametrize("error", [RuntimeError, TimeoutError, OSError, ValueError])
def test_what_torch_raises_of_a_peer_is_a_failed_handover_in_one_line(error):
    with pytest.raises(TransferFailed) as failed, nccl._failing("rank 1 lost the others"):
        raise error("x" * 300 + "\nthe C++ stack")
    assert str(failed.value) == "rank 1 lost the others: " + "x" * 200
    with pytest.raises(KeyError), nccl._failing("rank 1"):
        raise KeyError("a defect")


def test_a_handover_is_over_after_all_its_limits():
    assert Rendezvous("h", "g", "a", 1, 2, 3, timeout_s=10.0, whole_s=100.0).over_s == 170.0
