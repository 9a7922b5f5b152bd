"""Environment of a process that runs vLLM, and the time it gets to start."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trinity_compat.common import optional_packages

START_S = 600.0  # a large model takes minutes to load and to compile

CPU_ENV = {
    # One process and no compilation: 2 s instead of 40 s until the first token.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def worker_env(device: str, env: Mapping[str, str]) -> dict[str, str]:
    """Build an engine process's environment: our defaults, this process's variables, the run's."""
    base = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", **optional_packages.vllm_plugins()}
    if device == "cpu":
        base |= CPU_ENV | {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    kept = {name: os.environ[name] for name in base if name in os.environ and name != "OMP_NUM_THREADS"}
    return {**base, **kept, **env, **({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if device == "cpu" else {})}
