"""Recognition of a command line: a training main, and the options of launchers and ``ray job submit``."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import section_at
from trinity_compat.launch import entrypoints, ray_submit


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a training main. ``wrapper``: the commands before it (``ray job submit``, ``torchrun``).

    ``torchrun``: the options of the latter.
    """

    module: str
    arguments: tuple[str, ...]
    wrapper: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # from ray's runtime environment
    cwd: str | None = None
    main: str = ""  # the translated main that the module is taken for, where it is another
    torchrun: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RaySubmission:
    """A ``ray job submit``: its options, and its entry point as given and as a command's words."""

    options: Mapping[str, str]
    runtime: Mapping[str, object]
    entry_words: tuple[str, ...]
    entrypoint: tuple[str, ...]
    address: str
    env: Mapping[str, str]
    cwd: str | None


def find_main(words: Sequence[str]) -> Invocation | None:
    """Return the training main that the words start here, or None. Never raises for other commands."""
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # the folder is gone
        here = "/"
    found = entrypoints.find(words, here, json.loads(os.environ.get(entrypoints.VARIABLE, "{}")))
    if found is None:
        return None
    return Invocation(
        found.module,
        tuple(words[found.arguments :]),
        found.wrapper,
        main=found.main,
        torchrun=tuple(words[slice(*found.torchrun)]),
    )


def read_submission(words: Sequence[str], env: Mapping[str, str]) -> RaySubmission:
    """Read ``ray job submit``'s options. ``words`` follow ``ray``. Reads runtime-env files.

    Raises UserError for a runtime environment that is not a mapping.
    """
    job = ray_submit.read(words)
    entry = words[job.entry :]
    runtime = _runtime_env(job.options)
    address = next((env[name] for name in ray_submit.ADDRESSES if env.get(name)), "")
    return RaySubmission(
        options=job.options,
        runtime=runtime,
        entry_words=tuple(entry),
        entrypoint=tuple(shlex.split(entry[0]) if len(entry) == 1 else entry),
        address=job.options.get("--address", address),
        env={str(k): str(v) for k, v in section_at(runtime, "env_vars").items()},
        cwd=job.options.get("--working-dir", str(folder) if (folder := runtime.get("working_dir")) else None),
    )


def _runtime_env(options: Mapping[str, str]) -> dict[str, object]:
    from yaml import YAMLError

    from trinity_compat.common.bounded_yaml import safe_load

    try:
        if text := options.get("--runtime-env-json"):
            loaded: object = json.loads(text)
        elif name := options.get("--runtime-env"):
            loaded = safe_load(Path(name).read_text()) if Path(name).is_file() else {}
        else:
            return {}
    except (YAMLError, ValueError) as error:
        raise UserError(f"ray job submit: the runtime environment cannot be read: {error}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"ray job submit: the runtime environment is not a mapping: {loaded!r}")
    return loaded
