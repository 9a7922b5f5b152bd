"""The marker of the newest checkpoint, after a crash."""

from __future__ import annotations

import re
from pathlib import Path

MARKER = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")


def mend_marker(directory: Path) -> None:
    """Rewrite a marker that was being written when the process died.

    veRL truncates the file and then writes the step, after ``data.pt``, the checkpoint's last file. So an
    empty marker means that the newest folder with a ``data.pt`` is whole.
    """
    marker = directory / MARKER
    if not marker.exists() or marker.read_text().strip().isdigit():
        return
    whole = [
        int(m[1])
        for path in directory.glob("global_step_*/data.pt")
        if (m := _STEP.fullmatch(path.parent.name))
    ]
    if not whole:
        marker.unlink()
        return
    part = marker.with_suffix(".part")
    part.write_text(str(max(whole)))
    part.replace(marker)
