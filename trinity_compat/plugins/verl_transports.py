"""Patch: ``verl.checkpoint_engine.hccl_checkpoint_engine`` cannot be imported.

Why: ``verl.checkpoint_engine`` (verl 0.9.1) imports every transport that the machine has, and this one, for
Ascend's NPUs, imports vLLM before it checks for an NPU: a second and 44 MB in the trainer and in each of its
workers. verl catches the ImportError, as it does without an NPU.
"""

from __future__ import annotations

import sys

_HCCL = "verl.checkpoint_engine.hccl_checkpoint_engine"


def apply() -> None:
    """Block the module, on a machine without an NPU, before ``verl.checkpoint_engine`` is imported."""
    sys.modules.setdefault(_HCCL, None)  # type: ignore[arg-type]  # Python's mark of a module that cannot be imported
