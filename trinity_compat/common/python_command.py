"""Command lines of our Python processes, which never import from the working directory.

``python -m`` and ``python -c`` put the working directory in front of everything installed: a ``json.py`` or
a ``trinity_compat/`` of the user's would be imported in place of ours. So each of our commands has ``-P``,
which Python hands on to the processes that multiprocessing starts; PYTHONSAFEPATH would reach what users'
code starts, too. Stock veRL has the launch's folder on ``sys.path``, and a script's own modules are imported
from there: in processes that run users' code it comes last.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from trinity_compat.common.network import LOOPBACK

USER_FOLDER = "TRINITY_COMPAT_USER_FOLDER"  # the launch's folder, in the environment of a run's processes
_OMP = "OMP_WAIT_POLICY"
# Python 3.10, for commands that read and compare, lacks -P; -I leaves the user's PYTHON… variables out, too.
_SAFE = "-P" if sys.version_info >= (3, 11) else "-I"


def of_module(module: str, *words: str) -> list[str]:
    """Return the command line that runs a module."""
    return [sys.executable, _SAFE, "-m", module, *words]


def of_code(code: str, *words: str) -> list[str]:
    """Return the command line that runs code."""
    return [sys.executable, _SAFE, "-c", code, *words]


def share_cores(environ: MutableMapping[str, str]) -> None:
    """Make OpenMP's waiting threads release their core, unless the variable is already set.

    Called before torch is loaded.

    Explorer and trainer compute side by side, and threads that spin take the other's core: a toy beside other
    work took 12 minutes instead of two.
    """
    environ.setdefault(_OMP, "PASSIVE")


def add_user_folder() -> None:
    """Add the launch's folder to the end of the module search path, for users' own modules."""
    folder = os.environ.get(USER_FOLDER)
    if folder and folder not in sys.path:
        sys.path.append(folder)


def leave_working_directory() -> None:
    """Remove the working directory from the module search path, if ``-P`` was not given."""
    safe = getattr(sys.flags, "safe_path", False)  # not in Python 3.10
    if not safe and sys.path and Path(sys.path[0]).absolute() == Path.cwd():
        del sys.path[0]


def ray_environment(environment: dict[str, Any]) -> dict[str, Any]:
    """Return a ``runtime_env`` that gives Ray's workers the launch's folder, OpenMP's policy and ``-P``.

    ``-P`` needs a Ray on this machine: elsewhere this Python may have another path.
    """
    own = {name: os.environ[name] for name in (USER_FOLDER, _OMP) if name in os.environ}
    here = os.environ.get("RAY_ADDRESS", LOOPBACK).startswith(LOOPBACK)
    safe = {"py_executable": f"{shlex.quote(sys.executable)} -P"} if here else {}
    return {**safe, **environment, "env_vars": {**own, **environment.get("env_vars", {})}}


@contextlib.contextmanager
def outside_user_folder() -> Iterator[None]:
    """Run ``ray.init`` in a working directory that only root can write.

    Ray puts that directory in front of its workers' ``sys.path``.
    """
    with working_directory("/"):
        yield


@contextlib.contextmanager
def working_directory(folder: str) -> Iterator[None]:
    """Make ``folder`` the working directory for a while; contextlib has one only since Python 3.11."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
