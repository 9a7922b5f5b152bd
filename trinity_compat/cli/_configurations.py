"""The effective configurations of a command's SOURCE."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from trinity_compat.cli._shared import name_and_value
from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script, read_text, refuse_lost_arguments
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.verl_config import config_from_yaml, effective_config
from trinity_compat.verl_config.model import EffectiveConfig


@dataclass(frozen=True, slots=True)
class ComposeOptions:
    """The options of a command that say how scripts are read and composed."""

    cwd: Path | None
    env: dict[str, str]
    arguments: tuple[str, ...]
    version: str | None
    fork_config: bool

    @classmethod
    def of(
        cls,
        cwd: Path | None,
        env: tuple[str, ...],
        arguments: tuple[str, ...],
        version: str | None,
        *,
        fork_config: bool,
    ) -> ComposeOptions:
        """Take the options as click gives them; ``env`` are texts NAME=VALUE."""
        known = dict(name_and_value("--env", text) for text in env)
        return cls(cwd, known, arguments, version, fork_config)


def launch_facts(config: EffectiveConfig) -> dict[str, object]:
    """Return what the JSON of a command says of a launch itself."""
    return {
        "source": str(config.launch.where),
        "module": config.launch.module,
        "verl_version": {"value": config.version.value, "why": config.version.why},
    }


def composed(source: str, how: ComposeOptions) -> list[EffectiveConfig]:
    """Return the configuration of each launch of a script (``-``: of stdin), or that of a YAML.

    Raises UserError for a script without a launch and for what Hydra refuses.
    """
    if is_configuration(source):
        return [config_from_yaml(source, how.version, fork_config=how.fork_config)]
    if source == "-":
        text = sys.stdin.buffer.read().decode(errors="surrogateescape")
        script = read_text(text, name="<stdin>", cwd=how.cwd, env=how.env, args=how.arguments)
    else:
        script = read_script(source, cwd=how.cwd, env=how.env, args=how.arguments)
    refuse_lost_arguments(script)
    if not script.launches:
        notes = "; ".join(f"{note.where}: {note.message}" for note in script.diagnostics)
        raise UserError(f"{source} starts no veRL training" + (f": {notes}" if notes else ""))
    configs = []
    for launch in script.launches:
        config = effective_config(launch, version=how.version, root=how.cwd, fork_config=how.fork_config)
        for note in config.diagnostics:
            if note.severity == "error":
                raise UserError(note.message, where=note.where)
        configs.append(config)
    return configs
