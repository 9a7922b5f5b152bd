"""Runs of files that may be hostile, read in a process of their own within limits."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

from trinity_compat.common import bounded_process
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.process_limits import ProcessLimits
from trinity_compat.common.python_command import of_module
from trinity_compat.compare.model import RunMetrics
from trinity_compat.compare.sources import packed

_READER = "trinity_compat.compare.sources"
_LIMITS = ProcessLimits(wall_s=600, cpu_s=60, memory=2 << 30, file=192 << 20)  # 24 bytes a point
_NEEDED = ("PATH", "HOME", "LANG", "PYTHONPATH")  # the reader gets no other variable
_turns = threading.BoundedSemaphore(2)


def read(path: Path) -> list[RunMetrics]:
    """Return the runs at ``path``. Raises UserError as ``read_runs``, or with the limit that ended it."""
    env = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    with _turns, tempfile.NamedTemporaryFile(prefix="trinity-compat-") as output:
        ended = bounded_process.run(of_module(_READER, str(path), output.name), Path("/"), env, _LIMITS)
        try:
            if ended.code == 0:
                with Path(output.name).open("rb") as file:
                    return packed.read(file)
            message, place, hint = json.loads(output.read())
        except (ValueError, EOFError, TypeError):
            why = ended.limit or f"its reader ended with code {ended.code}"
            raise UserError(f"cannot be read: {why}", where=Where(str(path))) from None
    raise UserError(message, where=Where(place), hint=hint)
