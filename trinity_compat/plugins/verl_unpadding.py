"""Unpadding in torch for veRL 0.9.0, which takes flash-attn's on every device but an NPU.

0.9.1 has functions of its own where flash-attn is missing. 0.9.0 has such for NPUs only; they are plain
torch, and are used here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from verl.utils import attention_utils


def apply() -> None:
    """Replace flash-attn's functions where it is missing and veRL has no substitute."""
    if not hasattr(attention_utils, "_fallback_unpad_input") and not importlib.util.find_spec("flash_attn"):
        attention_utils._get_attention_functions = _in_torch


def _in_torch() -> tuple[Callable[..., object], ...]:
    from verl.utils import npu_flash_attn_utils as own

    return own.index_first_axis, own.pad_input, own.rearrange, own.unpad_input
