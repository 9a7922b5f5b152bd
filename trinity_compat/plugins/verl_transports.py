"""Patch: ``verl.checkpoint_engine.hccl_checkpoint_engine`` is a module that cannot be imported.

Why: ``verl.checkpoint_engine`` (verl 0.9.1) imports every transport that the machine has, and this one, for
Ascend's NPUs, imports vLLM before it asks for an NPU: a second and 44 MB in the trainer and in each of
its workers. verl takes note of the ImportError, as it does of the one that comes without an NPU.
"""

from __future__ import annotations

import sys

_HCCL = "verl.checkpoint_engine.hccl_checkpoint_engine"


def apply() -> None:
    """For a machine without an NPU, before ``verl.checkpoint_engine`` is imported; a second call changes
    nothing."""
    sys.modules.setdefault(_HCCL, None)  # type: ignore[arg-type]  # how Python spells "there is none"
