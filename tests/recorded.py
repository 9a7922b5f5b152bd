"""Whole outputs that are kept: a change of one is seen as a whole, and recorded again on purpose.

    TC_RECORD=1 python -m pytest tests/translate tests/audit tests/verl_config -k recorded

writes them; the difference is then there to be read in the commit.
"""

from __future__ import annotations

import os
from pathlib import Path


def assert_recorded(path: Path, text: str) -> None:
    """``text`` is what ``path`` holds, line by line."""
    if os.environ.get("TC_RECORD") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
