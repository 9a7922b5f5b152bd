"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def from_home(path: str) -> Path:
    """``~`` followed as veRL follows it: of a user that this machine lacks (``~data`` in place of ``~/data``)
    it stays, where pathlib has a RuntimeError."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 pathlib's is the one that ends
