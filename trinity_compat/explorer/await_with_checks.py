"""Await with liveness checks and a timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
LOOK_S = 0.5


async def await_with_checks(
    work: Awaitable[T], check: Callable[[], None], *, limit_s: float, late: Callable[[], Exception]
) -> T:
    """Return the result of ``work``.

    ``check`` is called twice a second, and what it raises ends the wait; after ``limit_s`` seconds ``late()``
    is raised. Either way the work is cancelled.
    """
    until = time.monotonic() + limit_s
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            check()
            if time.monotonic() > until:
                raise late()
        return task.result()
    finally:
        task.cancel()
