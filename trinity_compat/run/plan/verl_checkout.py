"""Keeps a checkout of veRL, from which scripts are often started, out of the run's Python path.

The runtime needs the veRL that it is pinned to. Python and Ray put the working directory in front of the
installed packages, so a ``verl/`` there would be imported instead, of whatever release it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trinity_compat.run.plan.verl_view import Step, VerlView


def holds_verl(folder: Path) -> bool:
    """Return whether ``import verl`` would find sources in ``folder`` that are not installed there.

    What pip installed (also with ``--target``, found by PYTHONPATH) has its metadata beside it.
    """
    return (folder / "verl" / "__init__.py").is_file() and not any(folder.glob("verl-*.dist-info"))


def without_checkout(verl: VerlView, cwd: Path) -> Step:
    """Make relative paths absolute for a run that starts outside ``cwd``, which holds a veRL checkout.

    Every string that is a relative path to something below ``cwd`` changes. A note names each folder, of
    PYTHONPATH too, whose veRL is not used.
    """
    searched = [Path(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    notes = [
        f"veRL's sources in {folder} are not used: the run needs the installed veRL"
        for folder in dict.fromkeys([cwd, *searched])
        if holds_verl(folder)
    ]
    if not holds_verl(cwd):
        return verl, notes
    tree = {key: _absolute(value, cwd) for key, value in verl.tree.items()}
    return VerlView.of(tree), notes


def _absolute(tree: object, cwd: Path) -> object:
    if isinstance(tree, Mapping):
        return {key: _absolute(value, cwd) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_absolute(item, cwd) for item in tree]
    return str(cwd / tree) if isinstance(tree, str) and _is_path_below(tree, cwd) else tree


def _is_path_below(text: str, cwd: Path) -> bool:
    # A text that cannot be a path must not reach the file system: "\0" raises, a prompt is too long a name.
    if not text or len(text) > 1024 or text.startswith(("/", "~")) or "\n" in text or "\0" in text:
        return False
    # A bare word is a name (adamw, vllm), even where a folder is called so.
    return ("/" in text or Path(text).suffix != "") and (cwd / text).exists()


def python_path(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without the entries of PYTHONPATH that hold a veRL."""
    if "PYTHONPATH" not in env:
        return dict(env)
    kept = [part for part in env["PYTHONPATH"].split(os.pathsep) if not holds_verl(Path(part or "."))]
    rest = {name: value for name, value in env.items() if name != "PYTHONPATH"}
    return {**rest, "PYTHONPATH": os.pathsep.join(kept)} if any(kept) else rest
