"""Source of a run: a Trinity YAML as written, and the launch behind it, if there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from trinity_compat.common.errors import Where
from trinity_compat.common.nested import Tree
from trinity_compat.common.redaction import shown
from trinity_compat.job.run_spec import Mode
from trinity_compat.translate.frozen_variables import set_without_effect
from trinity_compat.trinity.config.read import load
from trinity_compat.trinity.config.stages import Stage


class LaunchWord(TypedDict):
    """One word of a launch. ``where``: file:line."""

    text: str
    where: str


class LaunchRecord(TypedDict, total=False):
    """config/launch.json: a YAML's path alone, or a launch with its words as they were said."""

    yaml: str
    stage: str
    script: str
    script_arguments: list[str]
    module: str
    where: str
    arguments: list[LaunchWord]
    exported: list[str]
    wrapper: list[str]
    cwd: str
    verl_version: str  # the release whose defaults the launch has
    started_in: str  # the folder that a relative ``script`` counts from


@dataclass(frozen=True, slots=True)
class Source:
    """``record`` goes to config/launch.json, ``audit`` (JSON text) to config/audit.json."""

    config: Tree
    yaml_text: str
    record: LaunchRecord
    audit: str | None = None
    notes: tuple[str, ...] = ()
    release: str = ""  # of the notes the one on releases that fit as well as the one that is taken
    stage: Stage | None = None  # of a YAML that has several: the one that this is
    # As the script found it; None: as it is. Not shown: it may hold secrets.
    environ: Mapping[str, str] | None = field(default=None, repr=False)


def from_yaml(path: Path) -> Source:
    """Read and check a Trinity YAML.

    Variables that are set and that it has frozen go to stderr. Raises UserError with file and line.
    """
    config = load(path)
    for warning in set_without_effect(config, os.environ, Where(str(path))):
        print(warning, file=sys.stderr)
    text = "".join(map(shown, path.read_text().splitlines(keepends=True)))
    return Source(config, text, {"yaml": str(path.absolute())})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of the command line, apart from the launch itself."""

    profiles: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()  # KEY=VALUE, veRL's or Trinity's spelling
    joined: tuple[str, ...] = ()  # those of them that became words of the script's launch
    mode: Mode | None = None  # None: the configuration's, else both
    checkpoints: str | None = None  # of mode bench
    job: str | None = None
    database: str | None = None
    explorers: int = 1
    explorer: int | None = None  # the one of them that this command starts; None: all
    restarts: int = 0
    dry_run: bool = False
    device: str | None = None  # cpu or cuda; None: what this machine has
    allow_fork_keys: bool = False  # run without the keys that only the script's fork of veRL knows
    gpus: int | None = None  # of a dry run: how many the cluster has
    mains: Mapping[str, str] = field(default_factory=dict)  # the main that each module of --main is taken for
    plugin_dirs: tuple[str, ...] = ()  # of a Trinity YAML: folders whose files register workflows
    rules: str | None = None  # a file of the user's rules, or a family of forks, over the shipped ones
    verl_version: str | None = None  # the release that a script is for; None: told by its keys
