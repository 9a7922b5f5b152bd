"""Recognition of the kind of a source: by its ending, and of a YAML by its keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trinity_compat.common.errors import UserError
from trinity_compat.common.readable_files import named_content, named_start
from trinity_compat.launch.job_files import hydra_records, job_spec
from trinity_compat.launch.job_files.printed_configuration import (
    BEGINS,
    PrintedConfiguration,
    printed_configuration,
)
from trinity_compat.launch.python import notebook, script
from trinity_compat.launch.source_contents import Contents

_YAML = (".yaml", ".yml")
_LARGEST = 1 << 20  # bytes
_OF_WANDB = re.compile(r"(?m)^(wandb_version|_wandb):")


def contents_of(
    name: str, text: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Contents | None:
    """Return the commands that the file ``name`` starts; None for a shell script.

    ``args``: its own arguments, ``env``: the environment that is known.

    Raises UserError for a file that isn't what its ending says.
    """
    if name.endswith(".py"):
        return script.read(name, text, args, env)
    if name.endswith(".ipynb"):
        return notebook.read(name, text, env)
    return job_spec.read(name, text) if name.endswith(_YAML) else hydra_records.of_log(name, text)


def is_job(path: str) -> bool:
    """Return whether a file is the specification of a job or the record of a run."""
    text = _text(path)
    return job_spec.kind_of(text) is not None if path.endswith(_YAML) else hydra_records.is_log(text)


def _text(path: str) -> str:
    """Return a file's text, empty for one that is not read."""
    try:
        return named_content(path, _LARGEST).decode()
    except (UserError, UnicodeDecodeError):
        return ""


def is_hydras_record(path: str) -> bool:
    """Return whether a source is what Hydra leaves of a run: ``overrides.yaml``, or a log with its error."""
    return is_job(path) and (not path.endswith(_YAML) or job_spec.kind_of(_text(path)) == job_spec.OVERRIDES)


def is_configuration_of_a_run(path: str) -> bool:
    """Return whether a source is a log with the configuration that veRL printed, or W&B's config.yaml."""
    return bool(_OF_WANDB.search(_text(path))) if path.endswith(_YAML) else is_configuration(path)


def is_configuration(path: str) -> bool:
    """Return whether a source is a YAML of veRL's or Trinity's, or a log in which veRL printed its own.

    The overrides in Hydra's error are what the user wrote, so that a log that has both is a job.
    """
    return not is_job(path) if path.endswith(_YAML) else bool(printed_in(path)) and not is_job(path)


def printed_in(path: str) -> PrintedConfiguration:
    """Return the configuration that veRL printed at the beginning of a log; none in a YAML or a program."""
    if path.endswith((*_YAML, ".py", ".ipynb")):
        return PrintedConfiguration()
    try:
        text = named_start(path, _LARGEST).decode(errors="replace")
    except UserError:
        text = ""
    return printed_configuration(text.splitlines()) if BEGINS in text else PrintedConfiguration()
