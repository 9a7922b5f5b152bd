"""Scripts and YAMLs that the page Start offers, and texts of other pages as files to start."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.errors import UserError
from trinity_compat.common.path_ownership import not_own
from trinity_compat.studio import job_files
from trinity_compat.studio.jobs import is_job, shown_name
from trinity_compat.studio.private_files import data_folder

LARGEST = 1 << 20  # characters of a text, as many as the reader takes
_ENDS = (".sh", ".yaml", ".yml")
_MOST = 200  # files that are offered
_MOST_FOLDERS = 2000
_DEEPEST = 6
_NAME = re.compile(r"\w[\w.@+-]{0,99}", re.ASCII)


def offered(root: Path) -> dict[str, Path]:
    """Return name → path of scripts and YAMLs below the folder; links, jobs, hidden folders are left out."""
    found = {}
    for path in _below(root.resolve()):
        found[shown_name(path.relative_to(root.resolve()).as_posix())] = path
        if len(found) == _MOST:
            break
    return dict(sorted(found.items()))


def elsewhere(path: Path) -> Path:
    """Return a script or YAML that a user names by its path, free of links. Raises UserError."""
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise UserError(f"Script: {str(path)[:200]!r} does not exist") from None
    if not path.name.endswith(_ENDS) or not found.is_file():
        raise UserError(f"Script: {str(path)[:200]!r} is not a file that ends in {', '.join(_ENDS)}")
    return found


def _below(root: Path) -> Iterator[Path]:
    for number, (folder, children, files) in enumerate(os.walk(root)):
        here = Path(folder)
        if number == _MOST_FOLDERS:
            return
        if is_job(here):
            children.clear()
            continue
        deep = len(here.relative_to(root).parts) >= _DEEPEST
        children[:] = (
            [] if deep else sorted(name for name in children if name[0] != "." and name != "node_modules")
        )
        yield from (
            here / name for name in sorted(files) if name.endswith(_ENDS) and job_files.is_there(here / name)
        )


def saved(name: str, text: str) -> Path:
    """Write a text to a private folder that its content names, and return the file.

    A run resumes from it, also after other texts of that name. Raises UserError.
    """
    if not _NAME.fullmatch(name) or not name.endswith(_ENDS):
        raise UserError(f"{name[:60]!r} is not the name of a script or YAML, such as run.sh")
    if len(text) > LARGEST:
        raise UserError(f"the text has more than {LARGEST >> 20} MiB")
    content = text.encode(errors="backslashreplace")
    folder = data_folder() / "scripts" / hashlib.sha256(content).hexdigest()[:16]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(folder / name, content.decode(), mode=0o600)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from error
    return folder / name


def text_of(path: Path) -> str:
    """Return the content of a file that may be started. Raises UserError where others could change it."""
    if problem := not_own(path, or_root=True):
        raise UserError(f"The studio does not start it: {problem}")
    try:
        with job_files.opened(path) as file:
            data = file.read(4 * LARGEST)  # a character is at most four bytes
    except OSError as error:
        raise UserError(f"{path} {error.strerror}") from error
    text = data.decode(errors="replace")
    if len(text) > LARGEST:
        raise UserError(f"{path} has more than {LARGEST >> 20} MiB")
    return text
