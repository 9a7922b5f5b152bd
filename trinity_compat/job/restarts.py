"""What the supervisor tells a process about being started again, in its environment (``--restarts``)."""

from __future__ import annotations

import os

RESTARTS = "TRINITY_COMPAT_RESTARTS"  # how often it will start a process that died again
OWN_CHECKPOINT = "TRINITY_COMPAT_OWN_CHECKPOINT"  # this run has one: go on from it, whatever the launch says
RESTART_S = 120.0  # for a process that is started again, until its first heartbeat


def promised() -> dict[str, int]:
    """As part of a heartbeat's detail: empty where a death would be the end of the run."""
    left = int(os.environ.get(RESTARTS) or 0)
    return {"restarts": left} if left else {}


def from_own_checkpoint() -> bool:
    """Whether this start goes on from the newest checkpoint that its own run has written."""
    return bool(os.environ.get(OWN_CHECKPOINT))
