"""Toys that are made once for each recipe and source, not once for each test module."""

import fcntl
import hashlib
import os
import shutil
from importlib.metadata import version
from pathlib import Path

from trinity_compat.run import toy
from trinity_compat.run.toy import ToySpec, make_toy

KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trinity-compat-tests" / "toys"


def made_toy(directory: Path, spec: ToySpec | None = None) -> Path:
    """Copy the kept toy of ``spec`` to ``directory``, made first where there is none; returns the folder."""
    spec = spec or ToySpec()
    kept = KEPT / key(spec)
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{kept.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            part = kept.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            make_toy(part, spec).rename(kept)
    return shutil.copytree(kept, directory, dirs_exist_ok=True)


def key(spec: ToySpec) -> str:
    """Hash of all that decides a toy: its recipe, the source that makes it, the packages that compute it."""
    packages = [version(name) for name in ("torch", "transformers", "tokenizers", "pyarrow")]
    told = repr((spec, packages)).encode() + Path(toy.__file__).read_bytes()
    return hashlib.sha256(told).hexdigest()[:16]
