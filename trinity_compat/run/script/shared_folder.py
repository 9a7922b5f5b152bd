"""Folder of messages between the process that runs a script and those that run its launches.

``request.json`` goes in, one ``outcome-PID.json`` per launch comes out; ``running-PID`` lies there while a
launch runs, ``ended`` once a signal has ended the script.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.plan.source import RunOptions

_CALL = "request.json"
_RUNNING = "running-"
_ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """The call of a script, as the intercepting processes need it."""

    script: str
    arguments: tuple[str, ...]
    options: RunOptions
    cwd: str
    environ: Mapping[str, str]  # as the script found it


@contextlib.contextmanager
def folder_of(call: ScriptCall, place: Path | None = None) -> Iterator[Path]:
    """Yield the folder, with ``call`` in it, while the script runs; ``place``: where it lies."""
    folder = Path(tempfile.mkdtemp(prefix=".trinity-compat-" if place else "trinity-compat-", dir=place))
    try:
        # mkdtemp gives the folder to this user alone: the environment in it may hold secrets.
        (folder / _CALL).write_text(json.dumps(asdict(call)))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def running_pids(folder: Path) -> list[int]:
    """Return the pids of the launches that run now."""
    return [int(path.name.removeprefix(_RUNNING)) for path in folder.glob(f"{_RUNNING}*")]


def end_by_signal(folder: Path, number: int) -> None:
    """Pass on a signal that the script died of; a launch that is not announced yet ends when it is."""
    (folder / _ENDED).touch()
    for pid in running_pids(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def ends_of(folder: Path) -> list[LaunchEnd]:
    """Return the ends of the launches, in the order in which they ended."""
    # By time and not by name: process numbers start over.
    files = sorted(folder.glob("outcome-*.json"), key=lambda path: path.stat().st_mtime)
    return [LaunchEnd(**json.loads(path.read_text())) for path in files]


def killed_launches(folder: Path) -> list[LaunchEnd]:
    """Return an end for each launch whose process was killed, and could not write one."""
    dead = [pid for pid in running_pids(folder) if has_ended(pid)]
    return [
        LaunchEnd(
            128 + signal.SIGKILL,
            None,
            f"the run's own process (pid {pid}) was killed, and its sides end with it;"
            " the same command continues from its newest checkpoint",
        )
        for pid in dead
    ]


def has_ended(pid: int, *, within_s: float | None = 0.0) -> bool:
    """Return whether a process ends within a time; None: wait for its end."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


def read_call(folder: Path) -> ScriptCall:
    """Read the file that ``folder_of`` wrote."""
    data = json.loads((folder / _CALL).read_text())
    given = data["options"]
    lists = {name: tuple(given[name]) for name in ("profiles", "sets", "joined", "plugin_dirs")}
    options = RunOptions(**{**given, **lists})
    return ScriptCall(**{**data, "arguments": tuple(data["arguments"]), "options": options})


@contextlib.contextmanager
def announced(folder: Path) -> Iterator[None]:
    """Mark this process as running a launch inside the block: it gets the script's signals as well.

    Raises SystemExit where a signal has ended the script before.
    """
    mark = folder / f"{_RUNNING}{os.getpid()}"
    mark.touch()
    try:
        if (folder / _ENDED).exists():
            raise SystemExit(128 + signal.SIGTERM)
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def write_end(folder: Path, end: LaunchEnd) -> None:
    """Write the end of this process's launch for ``ends_of``; nothing where the folder was deleted."""
    with contextlib.suppress(OSError):
        (folder / f"outcome-{os.getpid()}.json").write_text(json.dumps(asdict(end)))
