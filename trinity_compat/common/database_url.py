"""Database URLs in SQLAlchemy's form: ``sqlite:///`` and the file's path, or a server's URL.

The path of an SQLite file is percent-encoded as ``sqlalchemy.URL.create("sqlite", database=path)`` writes
it, so that ``?``, ``#`` and ``%41`` stay characters of the path. The light side has no SQLAlchemy; a test
compares the two.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

from trinity_compat.common.errors import UserError
from trinity_compat.common.paths import from_home
from trinity_compat.common.redaction import without_passwords

_SQLITE = "sqlite:///"
_FORMS = "sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"


def of_file(path: Path) -> str:
    """Return the URL of an SQLite file."""
    return _SQLITE + quote(str(path), safe=" +/")


def file_of(url: str) -> Path | None:
    """Return the SQLite file of a URL, relative if the URL is; None for another database.

    Raises UserError for a URL with parameters.
    """
    if not url.startswith(_SQLITE):
        return None
    path, question, _ = url.removeprefix(_SQLITE).partition("?")
    if question:
        raise UserError(
            f"{url}: an SQLite database takes no parameters here",
            hint="leave out what follows the ?; a ? in the file's name is written %3F",
        )
    return Path(unquote(path))


def asked_for(text: str, cwd: Path) -> str:
    """Return the URL of ``--database``, with its file's path resolved.

    Raises UserError for a kind of database that a run cannot use.
    """
    if text.startswith(("postgresql:", "postgresql+")):
        return text
    file = file_of(text)
    if file is None:
        raise UserError(f"--database {without_passwords(text)}: no such kind of database", hint=_FORMS)
    if not file.name or file.name == ":memory:" or text.endswith("/"):
        raise UserError(
            f"--database {text} names no file; the processes of a run share one", hint="sqlite:///FILE"
        )
    file = Path(os.path.realpath(cwd / from_home(str(file))))
    if file.is_dir():
        raise UserError(f"--database {text}: {file} is a folder", hint="name a file: sqlite:///FILE")
    return of_file(file)


def relative(url: str, root: Path) -> str:
    """Return ``url`` with a file below ``root`` relative to it; other URLs remain unchanged."""
    file = file_of(url)
    inside = file is not None and file.is_absolute() and file.is_relative_to(root)
    return of_file(file.relative_to(root)) if file and inside else url


def absolute(url: str, root: Path) -> str:
    """Return ``url`` of a job's ``config/run.json`` for the job at ``root``."""
    file = file_of(url)
    return url if file is None or file.is_absolute() else of_file(root / file)
