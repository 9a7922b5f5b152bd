"""Termination of a side when the command that started it ends, even during a blocking call."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

SUPERVISOR = "TRINITY_COMPAT_SUPERVISOR"  # in the environment of all that a supervisor started
STOPPED = 143  # as after SIGTERM
GRACE_S = 10.0
_LOOK_S = 1.0
_PR_SET_PDEATHSIG = 1
# macOS has no prctl: there the process groups alone must do.
prctl: Callable[[int, int, int, int, int], int] | None = getattr(ctypes.CDLL(None), "prctl", None)


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Make the kernel send signal ``number`` to this process when its parent ends."""
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_with_parent(grace_s: float = GRACE_S) -> None:
    """End this process ``grace_s`` seconds after the end of the supervisor that started it.

    The kernel sends SIGTERM first, so that the process can release its claims. But Python runs signal
    handlers in the main thread, which may be in an endless C call: connecting to a Ray that died as well.
    """
    if SUPERVISOR in os.environ:
        end_when_orphaned(grace_s)


def end_when_orphaned(grace_s: float = 0.0) -> None:
    """End this process ``grace_s`` seconds after the end of its parent, whatever that is."""
    threading.Thread(target=_watch, args=(os.getppid(), grace_s), name="orphan", daemon=True).start()


def _watch(parent: int, grace_s: float) -> None:
    while os.getppid() == parent:
        time.sleep(min(_LOOK_S, grace_s or _LOOK_S))
    time.sleep(grace_s)
    os._exit(STOPPED)
