"""Patch: ``vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm``. vLLM 0.24 … 0.28, CPU.

Why: after loading, the CPU backend packs each linear layer's weight for oneDNN and empties
``layer.weight``, so ``model.load_weights`` fails on the second call; ``reload_weights`` packs again, but
silently leaves a tied ``lm_head`` with the old embedding. With plain ``F.linear`` weights load in place. The
cost is oneDNN's packed GEMM (a few per cent on small models).
"""

from __future__ import annotations

import torch
import vllm.model_executor.layers.utils as target


def is_applied() -> bool:
    """Return whether the function in vLLM is replaced."""
    return target.dispatch_cpu_unquantized_gemm is keep_unpacked


def apply() -> None:
    """Replace the function; no-op the second time."""
    target.dispatch_cpu_unquantized_gemm = keep_unpacked


def keep_unpacked(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Compute with the unpacked ``layer.weight``; ``remove_weight`` is ignored."""
    layer.cpu_linear = torch.nn.functional.linear
