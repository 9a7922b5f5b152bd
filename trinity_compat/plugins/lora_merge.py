"""Patch: ``verl.utils.fsdp_utils.fsdp_merge_unmerge`` also merges the root unit's adapters.

Why (verl 0.9.1, any device): under FSDP2 verl merges unit by unit and skips the root ("skip root model").
Layers outside all other units belong to the root: in a multimodal model, those between vision blocks and
language model (Qwen2-VL's merger). The published model silently lacks their adapters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

_PATCHED = "__wrapped__"  # set by functools.wraps


def apply() -> None:
    """Replace verl's function in this process; no-op the second time."""
    import verl.utils.fsdp_utils as target

    if not hasattr(target.fsdp_merge_unmerge, _PATCHED):
        target.fsdp_merge_unmerge = _with_root(target.fsdp_merge_unmerge)


def _with_root(stock: Callable[[torch.nn.Module, bool], None]) -> Callable[[torch.nn.Module, bool], None]:
    from verl.utils.fsdp_utils import _merge_or_unmerge_lora_, fsdp_version

    @functools.wraps(stock)
    def merge_unmerge(module: torch.nn.Module, do_merge: bool) -> None:
        stock(module, do_merge)
        if fsdp_version(module) == 2:  # it skips layers that are merged already, those of the units
            _merge_or_unmerge_lora_(module, merge=do_merge)

    return merge_unmerge
