"""Called by the shim for words that could start a veRL training main; decides, and runs it or passes on.

``python -m trinity_compat.runtime.intercept REAL NAME WORDS…``: NAME is how the program was called, REAL
the path of the program that would run without us ("" when there is none).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trinity_compat.errors import RunError, UserError

_MAIN = re.compile(r"(?:[\w]+\.)*main_(?:ppo|dapo)")
_MAIN_FILE = re.compile(r"(?:.*/)?((?:verl/trainer|recipe/dapo(?:/src)?)/main_(?:ppo|dapo))\.py")
_PYTHON = re.compile(r"python[\d.]*")
_PYTHON_OPTIONS_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
_HERE = {"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "auto"}


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a training main. ``wrapper``: the words that stand before it (``ray job submit``)."""

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

    @property
    def is_local(self) -> bool:
        """Whether the cluster is this machine's."""
        host = urlsplit(self.address).hostname if "//" in self.address else self.address.split(":")[0]
        return (host or "") in _HERE


def find_main(name: str, words: Sequence[str]) -> Invocation | None:
    """The training main that ``name words…`` starts, or None. Pure; never raises for foreign words."""
    if _PYTHON.fullmatch(name):
        return _python_main(words)
    if name in ("torchrun", "accelerate", "uv"):
        return _wrapped_main(name, words)
    return None


def _python_main(words: Sequence[str]) -> Invocation | None:
    """Reads Python's own options, so that the ``-m`` of somebody else's program is left alone."""
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        word = words[index]
        if word in _PYTHON_OPTIONS_WITH_VALUE:
            index += 2
        elif module := re.match(r"-[^-mcWX]*m(.*)", word):
            rest = [module[1], *words[index + 1 :]] if module[1] else list(words[index + 1 :])
            return _invocation(rest[0], rest[1:]) if rest and _MAIN.fullmatch(rest[0]) else None
        elif re.match(r"-[^-mcWX]*c", word):
            return None
        else:
            index += 1
    if index < len(words) and (file := _MAIN_FILE.fullmatch(words[index])):
        return _invocation(file[1].replace("/", "."), words[index + 1 :])
    return None


def _wrapped_main(name: str, words: Sequence[str]) -> Invocation | None:
    """``torchrun|accelerate launch|uv run … [python] -m module …``: only their launching forms."""
    for index, word in enumerate(words[:-1]):
        following = words[index + 1]
        if word in ("-m", "--module") and _MAIN.fullmatch(following):
            return _invocation(following, words[index + 2 :], (name, *words[:index]))
        if _MAIN_FILE.fullmatch(following) and not word.startswith("--"):
            file = _MAIN_FILE.fullmatch(following)
            assert file
            return _invocation(file[1].replace("/", "."), words[index + 2 :], (name, *words[: index + 1]))
    return None


def _invocation(module: str, arguments: Sequence[str], wrapper: Sequence[str] = ()) -> Invocation:
    return Invocation(module=module, arguments=tuple(arguments), wrapper=tuple(wrapper))


_RAY_FLAGS = {"--no-wait", "--verbose", "-v", "--help"}


def read_submission(words: Sequence[str], env: Mapping[str, str]) -> Submission:
    """Read ``ray job submit``'s options. ``words`` follow ``ray``. Reads runtime-env files.

    Raises UserError for a runtime environment that is no mapping."""
    options: dict[str, str] = {}
    index = 2
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        name, sep, value = words[index].partition("=")
        if sep or name in _RAY_FLAGS:
            index += 1
        else:
            value = words[index + 1] if index + 1 < len(words) else ""
            index += 2
        options[name] = value
    entry = words[index + 1 :] if index < len(words) and words[index] == "--" else words[index:]
    entry = shlex.split(entry[0]) if len(entry) == 1 else entry
    runtime = _runtime_env(options)
    return Submission(
        entrypoint=tuple(entry),
        address=options.get("--address", env.get("RAY_ADDRESS", "")),
        env={str(k): str(v) for k, v in (runtime.get("env_vars") or {}).items()},
        cwd=options.get("--working-dir", runtime.get("working_dir")),
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
        raise UserError(f"ray job submit: the runtime environment is no mapping: {loaded!r}")
    return loaded


def _submitted(words: Sequence[str]) -> Invocation | Submission | None:
    """What a ``ray job submit`` becomes: a launch, a local submission of something else, or None."""
    if list(words[:2]) != ["job", "submit"]:
        return None
    submission = read_submission(words, os.environ)
    entry = submission.entrypoint
    found = find_main(Path(entry[0]).name, entry[1:]) if entry else None
    starts_us = found or any("main_ppo" in text or "main_dapo" in text for text in _script_texts(entry))
    if not starts_us:
        return None
    if not submission.is_local:
        raise UserError(
            f"ray job submit --address {submission.address}: the job would run on that cluster, where"
            " this `trinity-compat run` cannot stand in front of python3",
            hint="install trinity-compat[run] and vllm on that cluster's head node and submit"
            f" `ray job submit --address {submission.address} … -- trinity-compat run SCRIPT`,"
            " or leave --address away to run on this machine",
        )
    if found is None:
        return submission
    where = submission.cwd if submission.cwd and Path(submission.cwd).is_dir() else None
    return Invocation(
        found.module, found.arguments, ("ray job submit", *found.wrapper), submission.env, where
    )


def _script_texts(words: Sequence[str]) -> list[str]:
    files = [Path(word) for word in words if word.endswith((".sh", ".bash"))]
    return [path.read_text(errors="replace") for path in files if path.is_file()]


def main(argv: Sequence[str]) -> int:
    """Run the launch that the words make, or become the program that was meant."""
    real, name, *words = argv
    found = _submitted(words) if name == "ray" else find_main(name, words)
    if isinstance(found, Submission):
        os.environ.update(found.env)
        os.execvp(found.entrypoint[0], list(found.entrypoint))
    if isinstance(found, Invocation):
        from trinity_compat.runtime.session import run_captured

        return run_captured(found)
    if not real:
        print(f"{name}: command not found", file=sys.stderr)
        return 127
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
