"""Where this user's studios listen, for ``trinity-compat status``: a file each, gone with its process."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def _folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"trinity-compat-studio-{os.getuid()}"


@contextlib.contextmanager
def told(url: str, root: Path) -> Iterator[None]:
    """Say for the duration that a studio over ``root`` listens at ``url`` (without its token)."""
    path = _folder() / f"{os.getpid()}.json"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(json.dumps({"url": url, "root": str(root.resolve())}))
    except OSError:  # nobody is told, that is all
        path = Path(os.devnull)
    try:
        yield
    finally:
        if path != Path(os.devnull):
            path.unlink(missing_ok=True)


def of_job(job: Path) -> str | None:
    """The address of a running studio whose folder has ``job`` in it."""
    folder = _folder()
    if not folder.is_dir() or folder.stat().st_uid != os.getuid():
        return None
    for path in sorted(folder.glob("*.json")):
        try:
            found = json.loads(path.read_text())
            if _lives(int(path.stem)) and job.resolve().is_relative_to(found["root"]):
                return str(found["url"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
