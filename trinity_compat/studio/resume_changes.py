"""Differences between a run's last start and one by the studio now: its configuration and its environment.

The script or YAML is read, never executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from trinity_compat.common.bounded_yaml import safe_load
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves
from trinity_compat.common.redaction import hidden, is_secret, shown
from trinity_compat.launch import Word, read_script
from trinity_compat.run.job_dir import environment
from trinity_compat.run.job_dir.environment import RecordedEnvironment
from trinity_compat.studio import job_files
from trinity_compat.studio.jobs import Job

_ABSENT = "–"
_BARE = re.compile(r"([:,\[{-]\s+)\*\*\*")
_LONGEST = 400  # characters of a value


@dataclass(frozen=True, slots=True)
class ResumeChange:
    """One setting or variable. ``recorded`` and ``now`` are texts for people, – where it is not set."""

    name: str
    recorded: str
    now: str
    where: str = ""


def recorded_environment(job: Job) -> RecordedEnvironment | None:
    """Return the environment of the last start, None where the run recorded none.

    Raises UserError for a file that no run wrote.
    """
    path = job.dir.root / "config" / environment.FILE
    try:
        return RecordedEnvironment.of_text(job_files.text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"config/{environment.FILE} cannot be read: {error}") from error


def environment_changes(recorded: RecordedEnvironment, environ: Mapping[str, str]) -> list[ResumeChange]:
    """Return the variables that this process has otherwise than the run had: a resume gets the run's."""
    ours = {
        name
        for name in environ
        if name in recorded.unset or (environment.is_a_library_s(name) and not is_secret(name))
    } - recorded.secrets
    names = sorted({*recorded.values, *ours})
    return [
        ResumeChange(name, _cut(recorded.values.get(name, _ABSENT)), _cut(_variable(name, environ)))
        for name in names
        if recorded.values.get(name) != environ.get(name)
    ]


def missing_secrets(recorded: RecordedEnvironment, environ: Mapping[str, str]) -> list[str]:
    """Return the secrets that the run had and a resume would not have."""
    return sorted(recorded.secrets - environ.keys())


def configuration_changes(
    job: Job, record: Mapping[str, object], folder: Path, environ: Mapping[str, str]
) -> list[ResumeChange]:
    """Return what the script or YAML says now in another way than the run recorded it.

    Raises UserError where that cannot be told.
    """
    try:
        if "script" in record:
            return _of_script(record, folder, environ)
        path = folder / str(record["yaml"])
        recorded = _flat(job_files.text(job.dir.root / "config" / "trinity.yaml"))
        now = _flat(path.read_text())
        names = sorted(name for name in {*recorded, *now} if recorded.get(name) != now.get(name))
        return [
            ResumeChange(name, _cut(recorded.get(name, _ABSENT)), _cut(now.get(name, _ABSENT)), path.name)
            for name in names
        ]
    except KeyError as error:
        raise UserError(f"config/launch.json has no {error}") from error
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError, RecursionError) as error:
        raise UserError(shown(str(error)) or type(error).__name__) from error


def _of_script(record: Mapping[str, object], folder: Path, environ: Mapping[str, str]) -> list[ResumeChange]:
    words = record["arguments"]
    if not isinstance(words, list):
        raise TypeError("config/launch.json has no words")
    recorded = _by_key((str(word["text"]), str(word["where"])) for word in words)
    script, arguments = str(record["script"]), record.get("script_arguments")
    given = [str(word) for word in arguments] if isinstance(arguments, list) else []
    mains = _mains(record)
    # As a start does: without the environment, else with it, whichever gives the launch that was recorded.
    found = []
    for known in ({}, environ):
        launches = read_script(
            folder / script, cwd=folder, env=known, args=given, name=script, given=(), mains=mains
        ).launches
        found += [launch for launch in launches if launch.module == record["module"]]
    if not found:
        raise UserError(f"{script} starts no {record['module']} any more")
    return min((_of_words(recorded, launch.arguments) for launch in found), key=len)


def _mains(record: Mapping[str, object]) -> dict[str, str]:
    options = record.get("options")
    mains = options.get("mains") if isinstance(options, dict) else None
    return {str(key): str(value) for key, value in mains.items()} if isinstance(mains, dict) else {}


def _of_words(recorded: Mapping[str, tuple[str, str]], words: Sequence[Word]) -> list[ResumeChange]:
    now = _by_key((shown(word.text), str(word.where)) for word in words)
    unknown = {word.text.partition("=")[0] for word in words if word.open}  # only bash knows their value
    names = sorted({*recorded, *now} - {name for name in unknown if name in recorded})
    nothing = (_ABSENT, "")
    found = []
    for name in names:
        (before, _), (after, where) = recorded.get(name, nothing), now.get(name, nothing)
        # A word of --set was joined to the launch, and is added again.
        if before != after and recorded.get(name, nothing)[1] != "--set":
            found.append(ResumeChange(name, _cut(before), _cut(after), where))
    return found


def _by_key(words: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return key → (value, place); the last of several words of a key counts, as Hydra has it."""
    found: dict[str, tuple[str, str]] = {}
    for text, where in words:
        key, equals, value = text.partition("=")
        found[key] = (value if equals else "given", where)
    return found


def _flat(text: str) -> dict[str, str]:
    # Masked as the record is, so that a secret alone makes no difference; in YAML a bare * is a reference.
    masked = "".join(map(shown, text.splitlines(keepends=True)))
    tree = safe_load(_BARE.sub(r'\1"***"', masked))
    if not isinstance(tree, dict):
        raise TypeError("not a section of YAML")
    return {name: str(hidden(name, value)) for name, value in leaves(tree)}


def _variable(name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        return _ABSENT
    return shown(f"{name}={environ[name]}").partition("=")[2]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
