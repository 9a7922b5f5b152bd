"""Patch: ``vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm``. vLLM 0.24 … 0.28, CPU.

Why: after loading, the CPU backend packs each linear layer's weight for oneDNN and empties
``layer.weight``, so ``model.load_weights`` fails on the second call; ``reload_weights`` packs again, but
leaves a tied ``lm_head`` with the old embedding and says nothing. With plain ``F.linear`` weights are
loaded in place. What it costs: oneDNN's packed GEMM (a few per cent on small models).
"""

from __future__ import annotations

import torch
import vllm.model_executor.layers.utils as target


def applied() -> bool:
    """Whether the function in vLLM is ours."""
    return target.dispatch_cpu_unquantized_gemm is keep_unpacked


def apply() -> None:
    """Replace the function; a second call changes nothing."""
    target.dispatch_cpu_unquantized_gemm = keep_unpacked


def keep_unpacked(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Compute with ``layer.weight`` as it stands; ``remove_weight`` is not obeyed."""
    layer.cpu_linear = torch.nn.functional.linear
