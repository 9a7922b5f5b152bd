"""Files of a command line: those that are named, and the scripts of folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.readable_files import OutOfReach, real_path, roots_of_named

SCRIPTS = frozenset({".sh", ".bash", ".slurm", ".sbatch"})


def files_of(sources: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield pairs of a file and True if the user named it, False if it was found in a folder.

    Raises OSError for a folder that cannot be read, and UserError for one without scripts.
    """
    for source in sources:
        if not source:
            raise UserError(
                "a SOURCE is an empty text",
                hint="an unset variable? name a script, a folder, or . for this one",
            )
        path = Path(source)
        if source != "-" and path.is_dir():
            try:  # a folder that is a link out of the working directory is refused, as a file is
                real_path(path, roots_of_named(path / "script"))
            except OutOfReach as error:
                raise UserError(
                    f"cannot be read: {error.strerror}", where=Where(str(path)), hint=error.hint
                ) from None
            os.scandir(path).close()  # raises where the folder can't be read: the search would find it empty
            found = (file for file in path.rglob("*") if file.suffix in SCRIPTS and file.is_file())
            scripts = sorted(
                file for file in found if not any(p.startswith(".") for p in file.relative_to(path).parts)
            )
            if not scripts:
                raise UserError(
                    f"no script below this folder ({', '.join(sorted(SCRIPTS))})", where=Where(source)
                )
            yield from ((str(file), False) for file in scripts)
        else:
            yield source, True
