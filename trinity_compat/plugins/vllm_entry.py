"""Entry point ``vllm.general_plugins``: vLLM calls ``register`` in each of its engine processes."""

from __future__ import annotations

import multiprocessing
import os

from trinity_compat.common.parent_watch import end_with_parent


def register() -> None:
    """Apply our patches to a vLLM process.

    On a CPU, linear layers stay loadable. Kernels are deterministic where the run sets that, as in veRL's
    worker extension (vLLMColocateWorkerExtension, 0.9.1). Processes that vLLM starts for a run end with the
    one that started them.
    """
    from vllm.platforms import current_platform

    if multiprocessing.parent_process() is not None:
        end_with_parent()
    if os.environ.get("VERL_FULL_DETERMINISM") == "1" and "VERL_SEED" in os.environ:
        from verl.workers.engine.utils import enable_full_determinism

        enable_full_determinism(int(os.environ["VERL_SEED"]))
    if current_platform.is_cpu():
        from trinity_compat.plugins import vllm_unpacked_linear

        vllm_unpacked_linear.apply()
