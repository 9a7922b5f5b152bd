"""The user's own lines in a stack: of an error, or of a call under way."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

_NOT_THEIRS = ("site-packages", f"{Path(__file__).parents[1]}{os.sep}", f"{Path(os.__file__).parent}{os.sep}")


def is_users(filename: str) -> bool:
    """Return whether a file is neither ours nor a library's. ``<string>`` and the like are not the user's."""
    return not filename.startswith("<") and not any(part in filename for part in _NOT_THEIRS)


def place_of(error: BaseException) -> str:
    """`` (file:line)`` of the innermost frame that is neither ours nor a library's; "" where none is."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
