"""The time for which the processes of a run may be silent, and what happens then.

Explorer and trainer beat once a second, into the database. Silence is measured by whoever waits for the
other, with its own clock, and only while the database is reachable.

| silent | noticed by | seconds | then |
|---|---|---|---|
| trainer | explorer | TRAINER_SILENT_S | it ends, exit code 3 |
| explorer | trainer | EXPLORER_SILENT_S | others take its tasks; of the last one the trainer ends |
| either, with a restart left | the other one | RESTART_S | as above |
| either | supervisor | SIDE_SILENT_S; PEER_SILENT_S once the other has ended | named and killed |
| Ray's own processes, stopped | supervisor | SIDE_SILENT_S | named and killed |
| anybody | ``status``, studio | LOST_S | shown as gone |
| explorer | other explorers | TASK_LEASE_S | they take its tasks |
| trainer | the next trainer | CLAIM_LEASE_S | it takes the claimed groups |

What a process may take over one thing while it beats is its watchdog's (``common/watchdog.py``). By two
environment variables the supervisor tells a process about restarts (``--restarts``).
"""

from __future__ import annotations

import os

RESTARTS = "TRINITY_COMPAT_RESTARTS"  # how often the supervisor will start a process again
OWN_CHECKPOINT = "TRINITY_COMPAT_OWN_CHECKPOINT"  # this run has one: go on from it, whatever the launch says
ENDED = ("done", "failed", "stopped")  # states of a process that beats no more
TRAINER_SILENT_S = 10.0
EXPLORER_SILENT_S = 9.0  # and half a second of polling: a death is noticed within 10 s
SIDE_SILENT_S = LOST_S = 30.0
PEER_SILENT_S = 6.0
RESTART_S = 120.0  # until the first heartbeat of a process that is started again
TASK_LEASE_S = 10.0
CLAIM_LEASE_S = 60.0


def promised() -> dict[str, int]:
    """Return the restarts left as a detail of the heartbeat; empty where a death ends the run."""
    restarts = int(os.environ.get(RESTARTS) or 0)
    return {"restarts": restarts} if restarts else {}


def from_own_checkpoint() -> bool:
    """Return True where this start resumes from the newest checkpoint of its own run."""
    return bool(os.environ.get(OWN_CHECKPOINT))
