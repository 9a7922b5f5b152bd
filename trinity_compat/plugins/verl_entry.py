"""Entry point ``verl.plugins``: verl imports this at the end of ``import verl``, in every process.

verl ignores errors raised here (a DEBUG line, then it falls back to "nvidia"), so a process that needs the
CPU platform calls ``assert_platform`` after importing verl. On a machine with an accelerator only the
registration happens, and the critic's loader is replaced where flash-attn is missing.
"""

from __future__ import annotations

from verl.plugin.platform import get_platform

from trinity_compat.common.python_command import add_user_folder
from trinity_compat.common.user_output import mark_users_of_worker
from trinity_compat.plugins import (
    cpu_platform,
    cpu_process_group,
    value_head,
    verl_transports,
    verl_unpadding,
    verl_vllm_version,
)


def _apply() -> None:
    cpu_platform.register()
    verl_unpadding.apply()
    if get_platform().device_name == cpu_platform.NAME:
        cpu_process_group.apply()
        verl_vllm_version.apply()
        verl_transports.apply()
    else:
        value_head.apply_without_flash_attention()


def assert_platform(device: str) -> None:
    """Raise RuntimeError unless verl runs on ``device`` ("cpu", "cuda", "npu") in this process.

    It also detects a plugin that failed halfway: a patch is checked, not only the platform's name.
    """
    name = get_platform().device_name
    if name != device:
        raise RuntimeError(
            f"verl chose the platform {name!r} but this run is for {device!r}; "
            "is trinity-compat installed in this environment (entry point verl.plugins), "
            "and are VERL_PLATFORM and VERL_USE_EXTERNAL_PLUGINS unset?"
        )
    if device == cpu_platform.NAME and not cpu_process_group.is_applied():
        raise RuntimeError(
            "trinity-compat's plugin for verl failed while loading: see VERL_LOGGING_LEVEL=DEBUG"
        )


add_user_folder()
mark_users_of_worker()
_apply()
