"""``python -m trinity_compat.compare.sources PATH OUTPUT``: read the runs of PATH for another process.

The studio starts it within limits, since PATH may be hostile. Exit code 0 with the runs in OUTPUT, 2 with the
error there, as JSON: its message, place and hint.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.compare.sources import packed, read_runs


def main(path: Path, output: Path) -> int:
    """Read, write, and return the exit code."""
    try:
        with output.open("wb") as file:
            packed.write(read_runs(path), file)
        return 0
    except UserError as error:
        told = [error.message, str(error.where or path), error.hint]
    except Exception as error:  # of a damaged or a hostile file
        too_large = isinstance(error, OSError) and error.errno == errno.EFBIG
        kind = "MemoryError: it takes too much" if isinstance(error, MemoryError) else type(error).__name__
        told = ["has too many points" if too_large else f"cannot be read ({kind})", str(path), None]
    output.write_text(json.dumps(told))
    return 2


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
