"""Patch: ``verl.utils.distributed.initialize_global_process_group_ray``. verl 0.9.1.

Why: it asks torch for "cpu:gloo,<device>:<backend>", which on the CPU platform reads
"cpu:gloo,cpu:gloo"; torch refuses a device type named twice. Every training worker calls it right
before it builds its engine, so the CPU engines are registered here, too (verl imports engine
modules in the worker, and ``external_lib`` exists for the actor and the critic, not for each role).
"""

from __future__ import annotations

from functools import wraps

import verl.utils.distributed as target

_MARK = "_trinity_compat"


def is_applied() -> bool:
    """Return whether the function in verl is replaced."""
    return hasattr(target.initialize_global_process_group_ray, _MARK)


def apply() -> None:
    """Replace the function; no-op the second time."""
    if is_applied():
        return
    original = target.initialize_global_process_group_ray

    @wraps(original)
    def initialize(timeout_second: int | None = None, backend: str | None = None) -> None:
        from trinity_compat.plugins import cpu_engine

        cpu_engine.register()
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    setattr(initialize, _MARK, True)
    target.initialize_global_process_group_ray = initialize
