"""Environment variables by which the supervisor tells a process about restarts (``--restarts``)."""

from __future__ import annotations

import os

RESTARTS = "TRINITY_COMPAT_RESTARTS"  # how often it will start a process that died again
OWN_CHECKPOINT = "TRINITY_COMPAT_OWN_CHECKPOINT"  # this run has one: go on from it, whatever the launch says
RESTART_S = 120.0  # for a process that is started again, until its first heartbeat


def promised() -> dict[str, int]:
    """Return the restarts left as a detail of the heartbeat; empty where a death ends the run."""
    restarts = int(os.environ.get(RESTARTS) or 0)
    return {"restarts": restarts} if restarts else {}


def from_own_checkpoint() -> bool:
    """Return True where this start resumes from the newest checkpoint of its own run."""
    return bool(os.environ.get(OWN_CHECKPOINT))
