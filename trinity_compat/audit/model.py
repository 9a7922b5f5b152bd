"""The audit of one launch and of many: findings, what was silenced, and the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import Where
from trinity_compat.launch.model import Diagnostic
from trinity_compat.translate.model import Caution, Finding, Severity, Status, reaches
from trinity_compat.verl_config.model import Fork, VersionChoice

# From here on a key no longer means upstream what it meant in veRL.
CHANGES_MEANING = Status.APPROXIMATED
OTHER_MAIN, REFUSED = "TC003", "TC004"
WHOLE_LAUNCH = frozenset({OTHER_MAIN, REFUSED})


@dataclass(frozen=True, slots=True)
class LaunchAudit:
    """One launch with exactly one finding per key.

    ``refused`` is the reason why no configuration can be written for it, None when one can.
    ``silenced`` holds the keys whose finding the source itself asks not to hear about. ``fork`` is the tree
    that the script starts from, where its configuration is none of a release of veRL's.
    """

    source: str
    where: Where
    module: str
    version: VersionChoice
    findings: tuple[Finding, ...]
    warnings: tuple[Caution, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    refused: str | None = None
    silenced: frozenset[str] = frozenset()
    fork: Fork | None = None

    def __post_init__(self) -> None:
        keys = Counter(finding.key for finding in self.findings)
        twice = [key for key, times in keys.items() if times > 1]
        if twice:
            raise AssertionError(f"{self.where}: more than one finding for {', '.join(twice)}")
        if sum(self.counts.values()) != self.keys:
            raise AssertionError(f"{self.where}: counts {dict(self.counts)} do not add up to {self.keys}")

    @property
    def errors(self) -> tuple[Caution, ...]:
        """What ends veRL itself, unless the source silences the whole launch."""
        return tuple(found for found in self.warnings if found.rank is Severity.ERROR and self.heard)

    @property
    def keys(self) -> int:
        """Number of keys that are accounted for."""
        return len({finding.key for finding in self.findings})

    @property
    def counts(self) -> Mapping[Status, int]:
        """Keys per status, mildest status first; statuses without a key are left out."""
        found = Counter(finding.status for finding in self.findings)
        return {status: found[status] for status in Status if found[status]}

    @property
    def heard(self) -> tuple[Finding, ...]:
        """The findings that the source doesn't silence."""
        return tuple(finding for finding in self.findings if finding.key not in self.silenced)

    @property
    def worst(self) -> Status:
        """The gravest status among the findings that are heard; at least unsupported where it is refused."""
        statuses = [finding.status for finding in self.heard]
        if self.refused is not None:
            statuses.append(Status.UNSUPPORTED)
        return max(statuses, key=lambda status: status.rank, default=Status.MAPPED)

    def changed(self) -> list[Finding]:
        """Findings that change what the launch means, gravest first, then in the launch's order.

        Those that only repeat for each key why the launch is ``refused`` are left out.
        """
        changed = [
            finding
            for finding in self.heard
            if finding.status.rank >= CHANGES_MEANING.rank and finding.code not in WHOLE_LAUNCH
        ]
        return sorted(changed, key=lambda finding: -finding.status.rank)

    def kept(self) -> list[Finding]:
        """The findings of keys that keep their meaning, in the launch's order."""
        return [finding for finding in self.heard if finding.status.rank < CHANGES_MEANING.rank]


@dataclass(frozen=True, slots=True)
class Audit:
    """All launches of all sources, in the order in which they were read.

    ``problems`` are the sources that could not be read, with the reason; ``empty`` those that start
    no training, with what reading them told about it. ``every``: text
    and Markdown list the keys that keep their meaning too, as the other formats always do.
    """

    launches: tuple[LaunchAudit, ...]
    problems: Mapping[str, str] = field(default_factory=dict)
    empty: Mapping[str, str] = field(default_factory=dict)
    every: bool = False

    @property
    def refused(self) -> tuple[LaunchAudit, ...]:
        """The launches that cannot be translated, or that veRL itself would not start, but those that their
        source silences whole."""
        launches = self.launches
        return tuple(each for each in launches if each.errors or (each.refused is not None and each.heard))

    def reaches(self, limit: str) -> bool:
        """Whether a launch is as bad as ``limit`` (see ``translate.model``), silenced findings left out."""
        return bool(self.refused) or any(
            reaches(limit, launch.heard, launch.warnings) for launch in self.launches
        )
