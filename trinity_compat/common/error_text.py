"""The reason why a process ended, found in its output."""

from __future__ import annotations

import re

# Ray and vLLM each put their own (NAME pid=N) before a line.
_ERROR_LINE = re.compile(r"^(?:\x1b\[[\d;]*m)*(?:\([^)]*\)\s*)*(?:error: |[\w.]*(?:Error|Exception)\b)")
# tqdm leaves its line open, so later output follows the bar.
_BAR = re.compile(r"^.*?\d+%\|[^|]*\|[^\]]*\]")
_MOST = 500  # characters


def last_error(output: str) -> str | None:
    """Return the last line that looks like an error, else the last line, None for no output."""
    stripped = (_BAR.sub("", line).strip() for line in output.splitlines())
    lines = [line for line in stripped if line]
    # From the end: the last exception follows its causes.
    for line in reversed(lines):
        if _ERROR_LINE.match(line):
            return line.removeprefix("error: ")[:_MOST]
    return lines[-1][:_MOST] if lines else None
