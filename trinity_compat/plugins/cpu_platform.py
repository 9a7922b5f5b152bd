"""A CPU platform for verl, through its own registry (``PlatformRegistry.register``); no patch.

Registered last, so detection takes it only when no accelerator was found. verl 0.9.1.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NAME = "cpu"


def register() -> None:
    """Add the platform to verl's registry; no-op the second time."""
    if PlatformRegistry.get(NAME) is None:
        PlatformRegistry.register(platform=NAME)(PlatformCPU)


def _returns(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


def _resident(*_: object, **__: object) -> int:
    return int(psutil.Process().memory_info().rss)


class CpuDevice(types.ModuleType):
    """Device module for verl: torch.cpu, plus memory and RNG functions of torch.cuda."""

    set_device = synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = _returns(None)
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _resident
    is_available = _returns(False)  # verl checks it before it uses memory statistics and caches of a device
    device_count = _returns(1)
    get_device_name = _returns("CPU")  # unknown to verl's flops counter: its peak is then infinite, mfu is 0
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    def __init__(self) -> None:
        super().__init__("trinity_compat_cpu_device")

    def __getattr__(self, name: str) -> object:
        return getattr(torch.cpu, name)

    @staticmethod
    def mem_get_info(*_: object) -> tuple[int, int]:
        """Return (available, total) bytes of the machine."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    @staticmethod
    def get_rng_state(*_: object) -> torch.Tensor:
        """Return torch's generator state."""
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_: object) -> None:
        """Set torch's generator state."""
        torch.set_rng_state(state)


class PlatformCPU(PlatformBase):
    """Platform whose device calls are no-ops or have their CPU meaning."""

    device_name = NAME
    vendor_name = "generic"
    device_module = CpuDevice()

    is_available = is_platform_available = _returns(True)
    current_device = _returns(torch.device(NAME))  # without an index, since ``tensor.to(0)`` means cuda:0
    device_count = _returns(1)
    set_device = synchronize = set_allocator_settings = empty_cache = _returns(None)
    profiler_start = profiler_stop = cudart = _returns(None)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_device_capability = _returns((None, None))
    communication_backend_name = _returns("gloo")
    visible_devices_envvar = _returns("CPU_VISIBLE_DEVICES")  # not used
    ray_resource_name = _returns("GPU")  # stock verl counts GPUs: ``ray.init(num_gpus=N)`` declares N of them
    is_ipc_supported = _returns(False)

    def ray_noset_envvars(self) -> list[str]:
        """Return none."""
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        """Return the same options as for GPUs."""
        return {"num_gpus": num_gpus}

    def get_device_uuid(self, device_id: int) -> str:
        """Return an identifier of the device."""
        return f"CPU-{device_id}"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No-op."""
        yield
