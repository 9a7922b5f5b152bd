"""Which device a run is for: the machine's, or the cluster's that it will join."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.run.plan import devices


@pytest.fixture
def machine(monkeypatch):
    """A machine on which exactly the given paths exist."""
    devices._cluster_resources.cache_clear()
    for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def with_paths(*paths, torch="2.11.0"):
        monkeypatch.setattr(Path, "exists", lambda self: str(self) in paths)
        monkeypatch.setattr(devices.importlib.metadata, "version", lambda name: torch)
        return devices.detect_device()

    return with_paths


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ((), "cpu"),
        (("/dev/nvidiactl",), "cuda"),
        (("/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1"), "cuda"),  # WSL2
        (("/dev/dxg",), "cpu"),
        (("/dev/kfd",), "rocm"),
        (("/dev/davinci_manager",), "npu"),
        (("/dev/nvidiactl", "/dev/kfd"), "cuda"),
    ],
)
def test_what_the_machine_has(machine, paths, found):
    assert machine(*paths) == found


def test_built_in_graphics_beside_a_torch_for_cpus_are_no_accelerator(machine):
    assert machine("/dev/kfd", torch="2.13.0+cpu") == "cpu"


def test_hidden_devices_are_not_used(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine("/dev/nvidiactl") == "cpu"


@pytest.mark.parametrize(("listed", "count"), [("GPU 0: NVIDIA A (UUID: GPU-a)\nGPU 1: B\n", 2), (None, 0)])
def test_gpus_without_files_of_their_own_are_counted_by_nvidia_s_tool(machine, monkeypatch, listed, count):
    """WSL2's. Where the tool is missing there is none."""

    def run(command, **_):
        if listed is None:
            raise FileNotFoundError(command[0])
        return SimpleNamespace(stdout=listed)

    monkeypatch.setattr(Path, "glob", lambda *_: [])
    monkeypatch.setattr(devices.subprocess, "run", run)
    assert devices.gpus_here("cuda") == count


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({"CPU": 4.0}, "cpu"),
        ({"CPU": 4.0, "GPU": 8.0, "accelerator_type:H100": 1.0}, "cuda"),
        ({"GPU": 8.0}, "cuda"),
        ({"GPU": 8.0, "accelerator_type:AMD-Instinct-MI300X-OAM": 1.0}, "rocm"),
        ({"NPU": 8.0}, "npu"),
    ],
)
def test_a_head_without_a_gpu_asks_its_cluster(machine, monkeypatch, resources, found):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    asked = []

    def run(command, **_):
        asked.append(command[-1])
        return SimpleNamespace(stdout=f"noise\n{json.dumps(resources)}\n")

    monkeypatch.setattr(devices.subprocess, "run", run)
    assert machine() == found
    assert asked == ["10.0.0.1:6379"]


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ({"CPU": 4.0, "node:10.0.0.1": 1.0, "node:__internal_head__": 1.0}, 1),
        ({"GPU": 8.0, "node:10.0.0.1": 1.0, "node:10.0.0.2": 1.0, "node:__internal_head__": 1.0}, 2),
        (None, 1),
    ],
)
def test_a_cluster_s_machines_are_counted_and_one_that_does_not_answer_counts_as_one(
    machine, monkeypatch, resources, count
):
    assert devices.machines_here() == 1
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    told = json.dumps(resources) if resources else ""
    monkeypatch.setattr(devices.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=told))
    assert devices.machines_here() == count


def test_a_cluster_that_does_not_answer_is_said(machine, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")

    def run(*_, **__):
        raise subprocess.TimeoutExpired("ray", 1)

    monkeypatch.setattr(devices.subprocess, "run", run)
    with pytest.raises(UserError, match=r"RAY_ADDRESS=10.0.0.1:6379: no Ray answers there") as no:
        machine()
    assert "RAY_AUTH_MODE=token" in no.value.hint


@pytest.mark.runtime
def test_a_real_cluster_tells_its_gpus(monkeypatch, fresh_ray_token):
    from trinity_compat.run.supervise.cluster import local_ray

    with local_ray({}, gpus=2) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        assert devices.detect_device() == "cuda"


@pytest.mark.parametrize("device", ["npu", "rocm"])
def test_what_cannot_be_used_is_refused_with_words(device):
    with pytest.raises(UserError, match="supports NVIDIA GPUs and CPUs"):
        devices.usable(device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_device_that_can_train_is_usable(device):
    assert devices.usable(device) == device
