"""The options of ``trinity-compat run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.job.run_spec import Mode


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
    target: str | None = None  # the trinity-rft that a YAML is for; None: told by its keys
    mains: Mapping[str, str] = field(default_factory=dict)  # modules that the user taught: taken for what
    plugin_dirs: tuple[str, ...] = ()  # of a Trinity YAML: folders whose files register workflows
    rules: str | None = None  # a file of the user's rules, or a family of forks, over the shipped ones
