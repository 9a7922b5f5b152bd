"""A CPU platform for verl, through its own registry (``PlatformRegistry.register``); no patch.

Registered last, so detection takes it only when no accelerator was found. verl 0.9.1.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NAME = "cpu"


def register() -> None:
    """Add the platform to verl's registry; no-op the second time."""
    if PlatformRegistry.get(NAME) is None:
        PlatformRegistry.register(platform=NAME)(PlatformCPU)


def _nothing(*_: object, **__: object) -> None:
    return None


def _resident(*_: object, **__: object) -> int:
    return int(psutil.Process().memory_info().rss)


class CpuDevice(types.ModuleType):
    """Device module for verl: torch.cpu, plus memory and RNG functions of torch.cuda."""

    set_device = synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = staticmethod(_nothing)
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = staticmethod(_resident)

    def __init__(self) -> None:
        super().__init__("trinity_compat_cpu_device")

    def __getattr__(self, name: str) -> object:
        return getattr(torch.cpu, name)

    @staticmethod
    def is_available() -> bool:
        """Return False: verl checks it before it uses memory statistics and caches of a device."""
        return False

    @staticmethod
    def device_count() -> int:
        """Return 1."""
        return 1

    @staticmethod
    def get_device_name(*_: object) -> str:
        """Return a name unknown to verl's flops counter: its peak is then infinite, so mfu is 0."""
        return "CPU"

    @staticmethod
    def mem_get_info(*_: object) -> tuple[int, int]:
        """Return (available, total) bytes of the machine."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

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

    def is_available(self) -> bool:
        """Return True."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return True."""
        return True

    def current_device(self) -> torch.device:
        """Return the device without an index, since ``tensor.to(0)`` means cuda:0."""
        return torch.device(NAME)

    def device_count(self) -> int:
        """Return 1."""
        return 1

    def set_device(self, device_index: int) -> None:
        """No-op."""

    def synchronize(self, device_index: int | None = None) -> None:
        """No-op."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """No-op."""

    def empty_cache(self) -> None:
        """No-op."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return no capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the name of a variable that is not used."""
        return "CPU_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """Return GPU: stock verl counts GPUs, of which ``ray.init(num_gpus=N)`` declares N."""
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        """Return the same options as for GPUs."""
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        """Return none."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return False."""
        return False

    def get_device_uuid(self, device_id: int) -> str:
        """Return an identifier of the device."""
        return f"CPU-{device_id}"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No-op."""
        yield

    def profiler_start(self) -> None:
        """No-op."""

    def profiler_stop(self) -> None:
        """No-op."""

    def cudart(self) -> None:
        """Return None."""
