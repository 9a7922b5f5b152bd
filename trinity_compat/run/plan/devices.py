"""Devices of a run: the machine's own, or those of the Ray cluster that it will join."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from trinity_compat.common import python_command
from trinity_compat.common.errors import UserError

_RAY_OF_USER = "RAY_ADDRESS"
_ASK_S = 60.0
_ASK = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps(ray.cluster_resources()))
"""
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
# Under WSL2 there is no /dev/nvidia*: the GPU is behind /dev/dxg, NVIDIA's library beside it.
_NVIDIA = (("/dev/nvidiactl",), ("/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1"))
_OTHERS = {"npu": "/dev/davinci_manager", "rocm": "/dev/kfd"}
_NODE, _HEAD = "node:", "node:__"  # Ray's names of machines, by address, and its mark of the head
_KIND = "accelerator_type"  # Ray's names of what its nodes have: accelerator_type:H100
_REFUSED = {
    "npu": "an Ascend NPU",
    "rocm": "an AMD GPU (ROCm)",
}


def detect_device() -> str:
    """Return ``cuda``, ``npu``, ``rocm`` or ``cpu``: of RAY_ADDRESS's cluster, else of this machine.

    Raises UserError when that cluster does not answer.
    """
    if address := os.environ.get(_RAY_OF_USER):
        return of_cluster(_cluster_resources(address))
    # Hidden on purpose, as a CPU run on a machine with GPUs does.
    if any(os.environ.get(name) in ("", "-1") for name in _HIDDEN):
        return "cpu"
    if any(all(Path(path).exists() for path in paths) for paths in _NVIDIA):
        return "cuda"
    others = [name for name, path in _OTHERS.items() if Path(path).exists()]
    if others == ["rocm"]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            # With a torch for CPUs /dev/kfd is a laptop's built-in graphics.
            if importlib.metadata.version("torch").endswith("+cpu"):
                return "cpu"
    return others[0] if others else "cpu"


def usable(device: str) -> str:
    """Return ``device``. Raises UserError for one that a decoupled run can't use."""
    if device in _REFUSED:
        raise UserError(
            f"found {_REFUSED[device]}: a decoupled run supports NVIDIA GPUs and CPUs",
            hint="--device cpu trains on the CPU; stock veRL runs on it (verl's docs, platforms)",
        )
    return device


def is_elsewhere(device: str, *, dry_run: bool) -> bool:
    """Return whether a plan is for another machine's GPUs: a dry run where there are none.

    Packages that are missing here are assumed to be installed there.
    """
    return dry_run and device == "cuda" and detect_device() != device


def gpus_here(device: str) -> int:
    """Return the GPUs of RAY_ADDRESS's cluster, else of this machine; 1 for a run on a CPU."""
    if device == "cpu":
        return 1
    if address := os.environ.get(_RAY_OF_USER):
        return int(_cluster_resources(address).get("GPU", 0))
    shown = os.environ.get(_HIDDEN[0])
    if shown is not None:
        return len([name for name in shown.split(",") if name.strip() not in ("", "-1")])
    found = [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    return len(found) or _listed()


def machines_here() -> int:
    """Return the machines of RAY_ADDRESS's cluster; 1 without one, and for one that does not answer."""
    address = os.environ.get(_RAY_OF_USER)
    try:
        resources = _cluster_resources(address) if address else {}
    except UserError:
        return 1
    return max(1, sum(name.startswith(_NODE) and not name.startswith(_HEAD) for name in resources))


def card_here() -> float | None:
    """Return the GiB of this machine's smallest GPU; None without one, or for RAY_ADDRESS's cluster."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    if os.environ.get(_RAY_OF_USER):
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
        return min(float(line) for line in done.stdout.split()) / 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _listed() -> int:
    """Count GPUs by nvidia-smi: under WSL2 they have no device files."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def of_cluster(resources: Mapping[str, float]) -> str:
    """Return the device in the resources that Ray reports of a cluster."""
    if resources.get("NPU"):
        return "npu"
    if not resources.get("GPU"):
        return "cpu"
    kinds = [kind for mark, _, kind in (name.partition(":") for name in resources) if mark == _KIND]
    return "rocm" if kinds and all(kind.startswith("AMD") for kind in kinds) else "cuda"


@cache
def _cluster_resources(address: str) -> dict[str, float]:
    """Query the cluster in another process: one that has joined a cluster cannot join another."""
    try:
        done = subprocess.run(
            python_command.of_code(_ASK, address), capture_output=True, text=True, timeout=_ASK_S
        )
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        raise UserError(
            f"{_RAY_OF_USER}={address}: no Ray answers there",
            hint=f"unset {_RAY_OF_USER}, start the cluster, set RAY_AUTH_MODE=token if it asks for one,"
            " or say what it has with --device cuda",
        ) from None
    return found
