"""Entry point ``vllm.general_plugins``: vLLM calls ``register`` in each of its engine processes."""

from __future__ import annotations


def register() -> None:
    """On a CPU, keep linear layers loadable; elsewhere vLLM stays as it is."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from trinity_compat.plugins import vllm_unpacked_linear

        vllm_unpacked_linear.apply()
