"""Named points of a run at which a test stops a process, to kill it or another one there.

``TRINITY_COMPAT_STOP_AT="after claim:3"`` stops (SIGSTOP) each process that passes this point for the third
time; SIGCONT continues it. The points are before and after each commit, file
and rename on which the promise of docs/durability.md depends. Without the variable, a point costs one
comparison.
"""

from __future__ import annotations

import os
import signal

_NAME, _, _COUNT = os.environ.get("TRINITY_COMPAT_STOP_AT", "").partition(":")
_passed = 0


def point(name: str) -> None:
    """Stop here if ``TRINITY_COMPAT_STOP_AT`` names this point."""
    global _passed
    if name == _NAME:
        _passed += 1
        if _passed == int(_COUNT or 1):
            os.kill(os.getpid(), signal.SIGSTOP)
