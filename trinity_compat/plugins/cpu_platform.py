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
    """Add the platform to verl's registry; a second call changes nothing."""
    if PlatformRegistry.get(NAME) is None:
        PlatformRegistry.register(platform=NAME)(PlatformCPU)


def _nothing(*_: object, **__: object) -> None:
    return None


def _resident(*_: object, **__: object) -> int:
    return int(psutil.Process().memory_info().rss)


class CpuDevice(types.ModuleType):
    """What verl calls on ``torch.<device>``: torch.cpu, plus memory and RNG functions of torch.cuda."""

    set_device = synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = staticmethod(_nothing)
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = staticmethod(_resident)

    def __init__(self) -> None:
        super().__init__("trinity_compat_cpu_device")

    def __getattr__(self, name: str) -> object:
        return getattr(torch.cpu, name)

    @staticmethod
    def is_available() -> bool:
        """False: verl asks this before it touches memory statistics and caches of a device."""
        return False

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def get_device_name(*_: object) -> str:
        """verl's flops counter looks this up; an unknown name gives an infinite peak, so mfu 0."""
        return "CPU"

    @staticmethod
    def mem_get_info(*_: object) -> tuple[int, int]:
        """(available, total) bytes of the machine."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    @staticmethod
    def manual_seed(seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    @staticmethod
    def get_rng_state(*_: object) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_: object) -> None:
        torch.set_rng_state(state)


class PlatformCPU(PlatformBase):
    """Every device call becomes a no-op or its CPU meaning."""

    device_name = NAME
    vendor_name = "generic"
    device_module = CpuDevice()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> torch.device:
        """Never an index: ``tensor.to(0)`` means cuda:0."""
        return torch.device(NAME)

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """Stock verl counts GPUs: ``ray.init(num_gpus=N)`` gives it N pretended ones."""
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def get_device_uuid(self, device_id: int) -> str:
        return f"CPU-{device_id}"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def cudart(self) -> None:
        return None
