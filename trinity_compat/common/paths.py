"""Paths in users' spelling."""

from __future__ import annotations

import os
from pathlib import Path


def from_home(path: str) -> Path:
    """Expand ``~`` as veRL does: ``~data`` remains if this machine has no such user.

    pathlib would raise RuntimeError.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 pathlib raises
