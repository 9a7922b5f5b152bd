"""Frames of users' code in a stack."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

_LIBRARY_PATHS = (
    "site-packages",
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(os.__file__).parent}{os.sep}",
)


def is_users(filename: str) -> bool:
    """Return whether a file is neither ours nor a library's. ``<string>`` is not a user's."""
    return not filename.startswith("<") and not any(part in filename for part in _LIBRARY_PATHS)


def place_of(error: BaseException) -> str:
    """Return `` (file:line)`` of the innermost frame of users' code, "" without one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
