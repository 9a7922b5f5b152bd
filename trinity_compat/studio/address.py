"""Addresses of this user's running studios, one file each, for ``trinity-compat status``."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote


def _folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"trinity-compat-studio-{os.getuid()}"


def _is_mine(folder: Path) -> bool:
    """Return whether this user owns the folder: in a shared /tmp another user may have created it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


@contextlib.contextmanager
def announced(url: str, root: Path) -> Iterator[None]:
    """Publish a studio's folder and ``url`` (without its token) while the block runs."""
    path = _folder() / f"{os.getpid()}.json"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not _is_mine(path.parent):
            raise PermissionError(path.parent)
        path.write_text(json.dumps({"url": url, "root": str(root.resolve())}))
    except OSError:  # `status` will not show the address
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def of_job(job: Path) -> str | None:
    """Return the address of the job's page in a running studio that shows the job, else None."""
    folder = _folder()
    if not _is_mine(folder):
        return None
    pages = (_page(path, job.resolve()) for path in sorted(folder.glob("*.json")))
    return next((page for page in pages if page is not None), None)


def _page(path: Path, job: Path) -> str | None:
    try:
        found = json.loads(path.read_text())
        root = Path(found["root"])
        if not _lives(int(path.stem)) or not job.is_relative_to(root):
            return None
        name = job.relative_to(root).as_posix() if job != root else job.name
        return f"{found['url']}run/{quote(name)}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
