"""Called by the shim for words that could start a veRL training main; decides, and runs it or passes on.

``python -m trinity_compat.runtime.intercept REAL NAME WORDS…``: NAME is how the program was called, REAL
the path of the program that would run without us ("" when there is none).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trinity_compat import mains, ray_jobs
from trinity_compat.errors import RunError, UserError
from trinity_compat.runtime import shim


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a training main. ``wrapper``: what stands before it (``ray job submit``, ``torchrun``)."""

    module: str
    arguments: tuple[str, ...]
    wrapper: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # from ray's runtime environment
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """``ray job submit``: the words of its entry point, and what its options say."""

    entrypoint: tuple[str, ...]
    address: str
    env: Mapping[str, str]
    cwd: str | None


def find_main(words: Sequence[str]) -> Invocation | None:
    """The training main that the words start here, or None. Never raises for foreign words."""
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # the folder is gone
        here = "/"
    found = mains.find(words, here)
    return Invocation(found.module, tuple(words[found.arguments :]), found.wrapper) if found else None


def read_submission(words: Sequence[str], env: Mapping[str, str]) -> Submission:
    """Read ``ray job submit``'s options. ``words`` follow ``ray``. Reads runtime-env files.

    Raises UserError for a runtime environment that is not a mapping."""
    job = ray_jobs.read(words)
    entry = words[job.entry :]
    runtime = _runtime_env(job.options)
    return Submission(
        entrypoint=tuple(shlex.split(entry[0]) if len(entry) == 1 else entry),
        address=job.options.get("--address", env.get("RAY_ADDRESS", "")),
        env={str(k): str(v) for k, v in (runtime.get("env_vars") or {}).items()},
        cwd=job.options.get("--working-dir", runtime.get("working_dir")),
    )


def _runtime_env(options: Mapping[str, str]) -> dict[str, Any]:
    if text := options.get("--runtime-env-json"):
        loaded: Any = json.loads(text)
    elif name := options.get("--runtime-env"):
        import yaml

        loaded = yaml.safe_load(Path(name).read_text()) if Path(name).is_file() else {}
    else:
        return {}
    if not isinstance(loaded, dict):
        raise UserError(f"ray job submit: the runtime environment is not a mapping: {loaded!r}")
    return loaded


def _submitted(words: Sequence[str]) -> Invocation | Submission | None:
    """What a ``ray job submit`` becomes: a launch, a local submission of something else, or None."""
    if list(words[:2]) != ["job", "submit"]:
        return None
    submission = read_submission(words, os.environ)
    entry = submission.entrypoint
    found = find_main(entry) if entry else None
    if not found and not any(map(mains.trains, (*_script_texts(entry), *entry))):
        return None
    if not ray_jobs.is_local(submission.address):
        raise ray_jobs.remote(submission.address)
    if found is None:
        return submission
    where = submission.cwd if submission.cwd and Path(submission.cwd).is_dir() else None
    return replace(found, wrapper=("ray job submit", *found.wrapper), env=submission.env, cwd=where)


def _script_texts(words: Sequence[str]) -> list[str]:
    files = [Path(word) for word in words if word.endswith((".sh", ".bash"))]
    return [path.read_text(errors="replace") for path in files if path.is_file()]


def _found(name: str, words: Sequence[str]) -> Invocation | Submission | None:
    if mains.PYTHON.fullmatch(name) and words and Path(words[0]).name == "ray":
        name, words = "ray", words[1:]  # a program of Python's, started by its interpreter
    return _submitted(words) if name == "ray" else find_main([name, *words])


def _run_captured(found: Invocation) -> int:
    from trinity_compat.runtime.session import run_captured

    return run_captured(found)


def main(argv: Sequence[str], run: Callable[[Invocation], int] = _run_captured) -> int:
    """Run the launch that the words make, or become the program that was meant."""
    real, name, *words = argv
    found = _found(name, words)
    if isinstance(found, Submission):
        os.environ.update(found.env)
        os.execvp(found.entrypoint[0], list(found.entrypoint))
    if isinstance(found, Invocation):
        return run(found)
    if not real:
        print(f"{name}: command not found", file=sys.stderr)
        return 127
    os.environ[shim.ASKED] = str(os.getpid())  # a Python that this becomes need not ask again
    return os.execv(real, [real, *words])


def die_of_ctrl_c() -> int:
    """Bash goes on after a program that exits, and stops after one that died of Ctrl-C: so die of it."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return 128 + signal.SIGINT


def _guarded(argv: Sequence[str]) -> int:
    try:
        return main(argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return die_of_ctrl_c()


if __name__ == "__main__":
    sys.exit(_guarded(sys.argv[1:]))
