"""Why a trainer ends early."""

from __future__ import annotations

from trinity_compat.common.errors import RunError


class PeerGone(RunError):
    """No explorer is left to make the groups that the trainer waits for: exit code 3."""
