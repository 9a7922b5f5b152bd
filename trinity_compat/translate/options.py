"""The options of a translation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.common.releases import TRINITY, TRINITY_OLD


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """Options of one translation.

    ``target`` is the trinity-rft release; None means the newest, or the old one for ``as_published`` (the
    published guide's release). ``sync_offset`` counts veRL steps. ``env`` are variables that the
    user gives; with ``resolve`` they, then ``environ``, fill in what would stay ``${oc.env:…}``.
    ``assignments`` are ``--set path=value`` on the finished configuration. ``frozen`` are variables whose
    defaults are written in their place, since the script has computed something from them.
    """

    target: str | None = None
    verl_version: str | None = None
    fork_config: bool = True  # False: not the configuration of a fork that the script starts from
    rollout_gpus: int | None = None
    sync_offset: int = 0
    as_published: bool = False
    resolve: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    assignments: Mapping[str, object] = field(default_factory=dict)
    rules: str | None = None  # a file of rules, or a family of forks whose rules are shipped
    mains: Mapping[str, str] = field(default_factory=dict)  # modules that the user taught: taken for what
    comments: bool = True
    minimal: bool = False  # leave out the lines that trinity-rft and a run fill in with the same value
    command: str = ""  # what the header says wrote the file

    @property
    def trinity(self) -> str:
        """The trinity-rft release that the YAML is for."""
        return self.target or (TRINITY_OLD if self.as_published else TRINITY)
