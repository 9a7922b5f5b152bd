"""A script's run: real bash, our programs in front of PATH, and what the launches inside tell back.

The outer process (``trinity-compat run``) starts bash and waits. Each launch that the script makes runs
inside the intercepting process, where the script put it: its environment, its folder, its pipe into tee.
The two share a folder: ``request.json`` in, one ``outcome-PID.json`` per launch out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trinity_compat.errors import UserError
from trinity_compat.runtime import foreseen, processes, shim
from trinity_compat.runtime.intercept import Invocation, die_of_ctrl_c


@dataclass(frozen=True, slots=True)
class Request:
    """What the intercepting process has to know. ``options`` are ``plan.Options`` as JSON."""

    script: str
    arguments: tuple[str, ...]
    options: Mapping[str, Any]
    cwd: str
    environ: Mapping[str, str]  # as the script found it


@dataclass(frozen=True, slots=True)
class Ended:
    """How one launch ended, for the outer process's last words."""

    code: int
    job: str | None
    message: str | None = None


def run_script(script: str, arguments: Sequence[str], options: Mapping[str, Any]) -> tuple[int, list[Ended]]:
    """Run ``script`` with bash under the shim. Returns its exit status and how its launches ended.

    The status is bash's own; when bash says 0 although a launch failed (``… | tee`` without pipefail)
    it is the launch's.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise UserError("bash is not on PATH: a script needs it")
    check_script(Path(script))
    environ = shim.without(os.environ)
    programs = foreseen.check(script, arguments, environ)
    with _folder(Request(script, tuple(arguments), options, str(Path.cwd()), environ)) as folder:
        text = Path(script).read_text(errors="replace")
        env = shim.install(folder / "bin", script_text=text, env=environ, programs=programs)
        env[shim.SESSION] = str(folder)
        # Without this process nobody would know of the run any more: it ends with it, however that ends.
        running = subprocess.Popen([bash, script, *arguments], env=env, preexec_fn=processes.die_with_parent)
        status = _wait(running, folder)
        ended = _outcomes(folder)
    failed = [launch.code for launch in ended if launch.code]
    return status or (failed[0] if failed else 0), ended


def check_script(path: Path) -> None:
    """Raises UserError for what is no script with something in it."""
    if path.is_dir():
        raise UserError(
            f"{path} is a folder", hint="name a veRL shell script or a Trinity YAML (x.yaml) in it"
        )
    if not path.is_file():
        raise UserError(f"no such script: {path}", hint="name a veRL shell script or a Trinity YAML (x.yaml)")
    try:
        empty = not path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if empty:
        raise UserError(f"{path} is empty", hint="it should start veRL: python3 -m verl.trainer.main_ppo …")


@contextlib.contextmanager
def _folder(request: Request) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="trinity-compat-"))
    try:
        # mkdtemp gives the folder to this user alone: the environment in it may hold secrets.
        (folder / "request.json").write_text(json.dumps(asdict(request)))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(bash: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait for bash. A terminal's Ctrl-C reaches bash and the launch by itself; SIGTERM we hand on."""

    def hand_on(number: int, frame: object) -> None:
        for pid in [*_launch_pids(folder), bash.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, frame: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, hand_on),
        signal.SIGHUP: signal.signal(signal.SIGHUP, hand_on),
    }
    try:
        code = bash.wait()
        _wait_for_launches(folder)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _launch_pids(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("running-")) for path in folder.glob("running-*")]


def _wait_for_launches(folder: Path) -> None:
    """Bash may die of a signal before the launch that cleans up after the same signal."""
    for pid in _launch_pids(folder):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                _until_readable(handle)
            finally:
                os.close(handle)


def _until_readable(handle: int) -> None:
    import select

    select.select([handle], [], [], 60.0)


def _outcomes(folder: Path) -> list[Ended]:
    files = sorted(folder.glob("outcome-*.json"), key=lambda path: path.stat().st_mtime)
    return [Ended(**json.loads(path.read_text())) for path in files]


def run_captured(found: Invocation) -> int:
    """Run a launch that the shim caught, in the process that bash waits for."""
    from trinity_compat.runtime import runs

    folder = Path(os.environ[shim.SESSION])
    data = json.loads((folder / "request.json").read_text())
    request = Request(**{**data, "arguments": tuple(data["arguments"])})
    env = {**shim.without(os.environ), **found.env}
    os.environ.clear()
    os.environ.update(env)
    if found.cwd:
        os.chdir(found.cwd)
    processes.die_with_parent()
    running = folder / f"running-{os.getpid()}"
    running.touch()
    ended = Ended(1, None)
    try:
        ended = runs.run_invocation(found, request)
    except UserError:
        ended = Ended(2, None)
        raise
    finally:
        with contextlib.suppress(OSError):
            (folder / f"outcome-{os.getpid()}.json").write_text(json.dumps(asdict(ended)))
            running.unlink()
    return die_of_ctrl_c() if ended.code == 128 + signal.SIGINT else ended.code
