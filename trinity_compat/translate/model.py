"""The result of a translation: a Trinity configuration and one finding per key of the launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from trinity_compat.common.errors import Where
from trinity_compat.common.redaction import hidden, shown, shown_message
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.launch.model import Diagnostic


class _TextEnum(str, Enum):  # Python 3.10 has no StrEnum
    """Members are texts, also where they are printed."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, written: str) -> str:
        return format(str(self.value), written)


class Status(_TextEnum):
    """The treatment of a key, mildest first. The order and spelling serve --fail-on and JSON."""

    MAPPED = "mapped"
    DERIVED = "derived"
    PASSED_THROUGH = "passed_through"
    NO_EFFECT = "no_effect"
    APPROXIMATED = "approximated"
    UNSUPPORTED_UPSTREAM = "unsupported_upstream"  # ours runs it
    UNSUPPORTED = "unsupported"
    FORK_KEY = "fork_key"  # only the fork of veRL that the script starts from knows it
    UNKNOWN = "unknown"

    @property
    def rank(self) -> int:
        """Position in the order, 0 for the mildest."""
        return list(Status).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """The treatment of one key. ``code`` is stable (TC…) and has a page in docs/."""

    code: str
    status: Status
    key: str
    value: object
    where: Where | None  # None: a default of the launch's veRL release
    target: str | None = None  # dotted path in the Trinity configuration
    target_value: object = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Replace texts that look like secrets, since a finding is printed."""
        for name, key in (("value", self.key), ("target_value", self.target or self.key)):
            object.__setattr__(self, name, hidden(key, getattr(self, name)))
        object.__setattr__(self, "reason", shown(self.reason))


class Severity(_TextEnum):
    """Rank of a caution: error, decide or note."""

    NOTE = "note"  # routine: nothing is to be done
    DECIDE = "decide"  # the meaning changes, or something does not run, unless the user does something
    ERROR = "error"  # veRL itself refuses to start: there is nothing to translate


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning that concerns the launch, not one key (TW… codes)."""

    code: str
    message: str
    where: Where | None = None
    hint: str | None = None
    rank: Severity = Severity.DECIDE

    def __post_init__(self) -> None:
        """Hide secrets in the words that the message repeats."""
        object.__setattr__(self, "message", shown_message(self.message))

    def __str__(self) -> str:
        """Return the line that commands print."""
        place = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.rank} {self.code} {self.message}{hint}"


def notice(code: str, message: str, where: Where | None = None, hint: str | None = None) -> Caution:
    """Return a routine warning, of the lowest rank."""
    return Caution(code, message, where, hint, Severity.NOTE)


# Notes on the launch itself, which are always printed in full; the others are on how the YAML is written.
_OF_THE_LAUNCH = frozenset({"TW018", "TW021", "TW027", "TW028", "TW030", "TW031"})


def without_routine(cautions: Sequence[Caution]) -> tuple[list[Caution], str]:
    """Return the cautions to print, the worst first, and a line that counts several routine ones.

    The line is "" where at most one is routine: it is printed with the others.
    """
    routine = [each for each in cautions if each.rank is Severity.NOTE and each.code not in _OF_THE_LAUNCH]
    routine = routine if len(routine) > 1 else []
    ranks = list(Severity)[::-1]
    said = [each for each in cautions if each not in routine]
    said.sort(key=lambda each: ranks.index(each.rank))
    codes = ", ".join(dict.fromkeys(each.code for each in routine))
    return said, f"{len(routine)} notes on the YAML: {codes} (audit --all prints them)" if routine else ""


@dataclass(frozen=True, slots=True)
class Translation:
    """A Trinity configuration (plain containers), the reason for each path, and the findings.

    ``provenance`` maps a dotted path of ``config`` to its comment:
    ``data.train_batch_size=1024 ÷ actor.ppo_mini_batch_size=256 (run.sh:12,18)``. ``given`` are the paths
    about which the launch itself, or ``--set``, says something.
    """

    config: Mapping[str, object]
    provenance: Mapping[str, str]
    findings: tuple[Finding, ...]
    warnings: tuple[Caution, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)  # r, gpu split, verl version, …
    given: frozenset[str] = frozenset()
    environment: Mapping[str, tuple[str, Where]] = field(default_factory=dict)  # `EffectiveConfig.frozen`
    notes: tuple[Diagnostic, ...] = ()  # on how the configuration was composed

    def reaches(self, limit: str) -> bool:
        """Return True if ``--fail-on limit`` should fail: see ``reaches``."""
        return reaches(limit, self.findings, self.warnings)


def reaches(limit: str, findings: Iterable[Finding], cautions: Iterable[Caution]) -> bool:
    """Return True if a finding or warning is as bad as ``limit``.

    ``limit`` is a status or ``decide``: a warning of that rank, or a status that needs a decision
    (unsupported and worse).
    """
    if limit == Severity.DECIDE:
        if any(caution.rank is not Severity.NOTE for caution in cautions):
            return True
        limit = Status.UNSUPPORTED
    return any(finding.status.rank >= Status(limit).rank for finding in findings)


FAIL_ON = (*(status.value for status in Status), Severity.DECIDE.value)


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """Options of one translation.

    ``target`` is the trinity-rft release; None means the newest, or the old one for ``as_published`` (the
    published guide's release). ``sync_offset`` counts veRL steps. ``env`` are variables that the
    user gives; with ``resolve`` they, then ``environ``, fill in what would stay ``${oc.env:…}``.
    ``assignments`` are ``--set path=value`` on the finished configuration. ``frozen`` are variables whose
    defaults are written in their place, since the script has computed something from them. ``folder`` is the
    one where the YAML will be used, None for the folder that a script was read for (``--cwd``).
    ``surroundings`` are the variables that the script takes from its environment (`Reading`).
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
    mains: Mapping[str, str] = field(default_factory=dict)  # the main that each module of --main is taken for
    comments: bool = True
    minimal: bool = False  # leave out the lines that trinity-rft and a run fill in with the same value
    folder: str | None = None
    surroundings: frozenset[str] = frozenset()
    command: str = ""  # what the header says wrote the file

    @property
    def trinity(self) -> str:
        """The trinity-rft release that the YAML is for."""
        return self.target or (TRINITY_OLD if self.as_published else TRINITY)
