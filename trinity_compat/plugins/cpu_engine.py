"""FSDP2 engines for the CPU, through verl's registry (``EngineRegistry.register``). verl 0.9.1.

verl registers its FSDP engines for cuda and npu. Two of their methods need an accelerator:
``_build_fsdp_module`` puts a frozen model (the reference) under CPUOffloadPolicy(pin_memory=True), and
``_build_module`` loads a value head with flash-attention. FSDP1 refuses a CPU altogether.
"""

from __future__ import annotations

from unittest.mock import patch

import torch
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from trinity_compat.plugins.cpu_platform import NAME
from trinity_compat.plugins.value_head import load_valuehead_model


class _OnCpu:
    engine_config: FSDPEngineConfig

    def _build_module(self) -> torch.nn.Module:
        with patch("verl.utils.model.load_valuehead_model", load_valuehead_model):
            return super()._build_module()  # type: ignore[misc]

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        # Weights are in the CPU's memory anyway, so both settings are read as off. The configuration is
        # frozen, and other methods need its true values.
        config = self.engine_config
        if config.strategy != "fsdp2":
            raise ValueError(
                f"strategy {config.strategy!r} needs an accelerator: on a CPU write strategy=fsdp2"
            )
        before = config.forward_only, config.offload_policy
        _set(config, forward_only=False, offload_policy=False)
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            _set(config, forward_only=before[0], offload_policy=before[1])


def _set(config: FSDPEngineConfig, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(config, name, value)


class CpuEngineWithLMHead(_OnCpu, FSDPEngineWithLMHead):
    """Actor and reference policy."""


class CpuEngineWithValueHead(_OnCpu, FSDPEngineWithValueHead):
    """Critic."""


def register() -> None:
    """Add both engines to verl's registry; no-op the second time."""
    for model_type, engine in (
        ("language_model", CpuEngineWithLMHead),
        ("value_model", CpuEngineWithValueHead),
    ):
        known = EngineRegistry._engines.get(model_type, {}).get("fsdp2", {})
        if NAME not in known:
            EngineRegistry.register(model_type=model_type, backend=["fsdp", "fsdp2"], device=NAME)(engine)
