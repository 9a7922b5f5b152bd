"""A run that the page Start would start: its fields as a user gave them, its command and its environment."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.path_ownership import not_own
from trinity_compat.common.redaction import is_secret, masked, shown
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.run.job_dir.environment import RecordedEnvironment
from trinity_compat.studio import launch_files
from trinity_compat.studio.control import command_of
from trinity_compat.studio.jobs import Jobs, is_job

MODES = ("both", "colocate", "train", "explore", "bench", "serve")
DEVICES = ("cpu", "cuda")
_RUN_NAME = re.compile(r"\w[\w.@+=-]{0,99}(?:/\w[\w.@+=-]{0,99}){0,4}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNSET = "unset "
_HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class StartFields:
    """The form's fields. ``source``: a file that the studio offers, or an absolute path; else ``text``.

    ``settings``: a KEY=VALUE for --set in each line. ``environment``: a NAME=VALUE in each line, or
    ``unset NAME``.
    """

    source: str = ""
    text: str = field(default="", repr=False)
    file_name: str = ""
    name: str = ""
    folder: str = ""
    profiles: str = ""
    settings: str = field(default="", repr=False)
    mode: str = ""
    device: str = ""
    release: str = ""
    arguments: str = field(default="", repr=False)
    environment: str = field(default="", repr=False)

    def hidden(self) -> StartFields:
        """Return the fields as a page shows them: ``***`` for secrets."""
        return replace(
            self,
            settings="\n".join(map(shown, self.settings.splitlines())),
            environment="\n".join(map(shown, self.environment.splitlines())),
            arguments=_hidden_words(self.arguments),
        )

    def with_secrets_of(self, earlier: StartFields) -> StartFields:
        """Return the fields with what ``earlier`` had where a line is still as a page showed it."""
        return replace(
            self,
            settings=_lines_of(self.settings, earlier.settings),
            environment=_lines_of(self.environment, earlier.environment),
            arguments=earlier.arguments
            if self.arguments == _hidden_words(earlier.arguments)
            else self.arguments,
        )


@dataclass(frozen=True, slots=True)
class StartPlan:
    """All that a start needs. ``root``: the run's folder; ``digest``: a hash of the file's content."""

    fields: StartFields
    name: str
    root: Path
    source: Path
    folder: Path
    digest: int
    recorded: RecordedEnvironment
    changed: frozenset[str]
    environ: Mapping[str, str] = field(repr=False)

    def command(self, root: Path | None = None, **more: object) -> list[str]:
        """Return the arguments that start it; ``more`` are further options, ``root`` another folder."""
        fields = self.fields
        options: dict[str, object] = {
            "profiles": fields.profiles.split(),
            "sets": _lines(fields.settings),
            "mode": fields.mode or None,
            "device": fields.device or None,
            "verl_version": fields.release or None,
            "job": str(root or self.root),
            **more,
        }
        kind = "yaml" if is_configuration(str(self.source)) else "script"
        record = {
            kind: str(self.source),
            "options": options,
            "script_arguments": shlex.split(fields.arguments),
        }
        return command_of(record, root or self.root)

    def variables(self) -> list[tuple[str, str | None, bool]]:
        """Return each variable that is set and read: its value as a page shows it, and whether it is changed.

        None for one that was taken away.
        """
        named = {*self.recorded.values, *self.recorded.secrets, *self.changed}
        values = {
            name: _HIDDEN if is_secret(name) else shown(f"{name}={self.environ[name]}").partition("=")[2]
            for name in named & self.environ.keys()
        }
        return [(name, values.get(name), name in self.changed) for name in sorted(named)]

    def shell_line(self) -> str:
        """Return the command as a shell takes it, secrets hidden."""
        words = shlex.join(masked(self.command()))
        changes = [f"-u {name}" for name in sorted(self.changed - self.environ.keys())]
        for name in sorted(self.changed & self.environ.keys()):
            changes.append(shlex.quote(shown(f"{name}={self.environ[name]}")))
        return f"cd {shlex.quote(str(self.folder))}\n" + " ".join(
            ["env", *changes, words] if changes else [words]
        )

    def refusal(self) -> str:
        """Return why it cannot be started now, '' where it can: nothing has changed since it was planned."""
        if os.path.lexists(self.root):
            return f"{self.root} exists: give the run another name."
        above = next(folder for folder in self.root.parents if os.path.lexists(folder))
        problems = (not_own(above), not_own(self.folder, or_root=True))
        if problem := next(filter(None, problems), ""):
            return f"The studio does not start it: {problem}"
        try:
            content = launch_files.text_of(self.source)
        except UserError as error:
            return str(error)
        return "" if hash(content) == self.digest else f"{self.source} has changed: check it again."


def plan_of(fields: StartFields, jobs: Jobs) -> StartPlan:
    """Return the plan of the fields. Raises UserError with what is wrong with which of them."""
    if is_job(jobs.root):
        raise UserError("This studio shows one job: start a studio for the folder above it to start another")
    source = _source(fields, jobs)
    content = launch_files.text_of(source)
    name = fields.name.strip() or free_name(jobs.root, source.stem)
    if not _RUN_NAME.fullmatch(name):
        raise UserError(f"Name: {name[:60]!r} is not a folder below {jobs.root}, such as grpo-1")
    choices = (
        ("Mode", fields.mode, MODES),
        ("Device", fields.device, DEVICES),
        ("Release", fields.release, VERL_RELEASES),
    )
    for label, value, known in choices:
        if value and value not in known:
            raise UserError(f"{label}: {value[:40]!r} is not one of {', '.join(known)}")
    folder = Path(fields.folder.strip() or jobs.root)
    if not folder.is_absolute() or not folder.is_dir():
        raise UserError(f"Started in: {str(folder)[:200]!r} is not the absolute path of a folder here")
    _check_words(fields)
    changes = dict(_variables(fields.environment))
    environ = {key: value for key, value in {**os.environ, **changes}.items() if value is not None}
    plan = StartPlan(
        replace(fields, name=name),
        name,
        jobs.root.resolve() / name,
        source,
        folder,
        hash(content),
        RecordedEnvironment.of(environ, content),
        frozenset(changes),
        environ,
    )
    if refusal := plan.refusal():
        raise UserError(refusal)
    return plan


def dry_run_of(text: str, job: Path) -> list[str]:
    """Return the words that try a Trinity YAML, which is written beside the job. Raises OSError."""
    file = job.with_name("trinity.yaml")
    file.write_bytes(text.encode(errors="backslashreplace"))
    return command_of(
        {"yaml": str(file), "options": {"dry_run": True, "format": "json", "job": str(job)}}, job
    )


def free_name(root: Path, stem: str) -> str:
    """Return a name that no folder has yet: the file's, else with a number."""
    stem = re.sub(r"[^\w.@+=-]", "-", stem).lstrip("-.@+=") or "run"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 10_000)))
    return next((name for name in names if not os.path.lexists(root / name)), stem)


def _source(fields: StartFields, jobs: Jobs) -> Path:
    if fields.text.strip():
        return launch_files.saved(fields.file_name or "run.sh", fields.text)
    if not fields.source:
        raise UserError("Script: choose a script or a YAML")
    if Path(fields.source).is_absolute():
        return launch_files.elsewhere(Path(fields.source))
    found = launch_files.offered(jobs.root).get(fields.source)
    if found is None:
        hint = "choose one, or write an absolute path"
        raise UserError(f"Script: the studio's folder has no script {fields.source[:200]!r}", hint=hint)
    return found


def _check_words(fields: StartFields) -> None:
    """Raise UserError for words that no command line can have, or that a page had hidden."""
    try:
        arguments = shlex.split(fields.arguments)
    except ValueError as error:
        raise UserError(f"Arguments: {error}") from error
    given = (
        ("Profiles", fields.profiles.split()),
        ("Set", _lines(fields.settings)),
        ("Arguments", arguments),
        ("Environment", _lines(fields.environment)),
    )
    for label, words in given:
        for word in words:
            if "\0" in word:
                raise UserError(f"{label}: a word has a null byte")
            if _HIDDEN in word:
                raise UserError(f"{label}: {word[:100]}: *** stands for a secret; write its value again")
    for word in _lines(fields.settings):
        if "=" not in word or word.startswith("-"):
            raise UserError(f"Set: {word[:100]!r} is not NAME=VALUE")
    for word in fields.profiles.split():
        if word.startswith("-"):
            raise UserError(f"Profiles: {word[:100]!r} is not the name of a profile")


def _variables(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield name and value of each line; None for a variable that is taken away."""
    for line in _lines(text):
        is_unset = line.startswith(_UNSET)
        name, equals, value = (line.removeprefix(_UNSET).strip(), "", "") if is_unset else line.partition("=")
        if not _VARIABLE.fullmatch(name) or not (equals or is_unset):
            raise UserError(f"Environment: {shown(line)[:100]!r} is neither NAME=VALUE nor unset NAME")
        yield name, None if is_unset else value


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _lines_of(text: str, earlier: str) -> str:
    """Return the lines, those as a page showed them as ``earlier`` had them."""
    had = {shown(line): line for line in _lines(earlier)}
    return "\n".join(had.get(line, line) for line in _lines(text))


def _hidden_words(text: str) -> str:
    try:
        words: Sequence[str] = shlex.split(text)
    except ValueError:
        return shown(text)
    hidden = list(masked(words))
    return text if hidden == list(words) else shlex.join(hidden)
