"""Recognition of the kind of a source: by its ending, and of a YAML by its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trinity_compat.common.errors import UserError
from trinity_compat.common.readable_files import named_content
from trinity_compat.launch.job_files import hydra_records, job_spec
from trinity_compat.launch.python import notebook, script
from trinity_compat.launch.source_contents import Contents

_YAML = (".yaml", ".yml")
_LARGEST = 1 << 20  # bytes


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
    try:
        text = named_content(path, _LARGEST).decode()
    except (UserError, UnicodeDecodeError):
        return False
    return job_spec.kind_of(text) is not None if path.endswith(_YAML) else hydra_records.is_log(text)


def is_configuration(path: str) -> bool:
    """Return whether a source is a YAML configuration of veRL's or Trinity's."""
    return path.endswith(_YAML) and not is_job(path)
