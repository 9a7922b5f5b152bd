"""Why a process ended, by what it has written."""

from __future__ import annotations

import re

# Ray and vLLM put (NAME pid=N) before a line, each its own.
_ERROR_LINE = re.compile(r"^(?:\x1b\[[\d;]*m)*(?:\([^)]*\)\s*)*(?:error: |[\w.]*(?:Error|Exception)\b)")
# tqdm leaves its line open: what a process says next follows the bar.
_BAR = re.compile(r"^.*?\d+%\|[^|]*\|[^\]]*\]")
_MOST = 500  # characters


def last_error(output: str) -> str | None:
    """The last line that reads like an error, else the last line; None for no output."""
    stripped = (_BAR.sub("", line).strip() for line in output.splitlines())
    lines = [line for line in stripped if line]
    # From the end: the exception that ended it stands below those that it was caused by.
    for line in reversed(lines):
        if _ERROR_LINE.match(line):
            return line.removeprefix("error: ")[:_MOST]
    return lines[-1][:_MOST] if lines else None
