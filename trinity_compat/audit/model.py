"""The audit of one launch and of many: findings, silenced keys, and counts."""

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
NOT_TRANSLATED = "not translated: "  # how the reason of a REFUSED key begins


@dataclass(frozen=True, slots=True)
class LaunchAudit:
    """The audit of one launch, with exactly one finding per key.

    ``refused`` is the reason why no configuration can be written for it, None when one can. ``silenced``
    holds the keys whose findings a directive in the source suppresses. ``fork`` is the source tree that the
    script starts from, if its configuration is not that of a veRL release.
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
        """The warnings that end veRL itself; none if the source silences every finding."""
        return tuple(found for found in self.warnings if found.rank is Severity.ERROR and self.reported)

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
    def reported(self) -> tuple[Finding, ...]:
        """The findings that no directive silences."""
        return tuple(finding for finding in self.findings if finding.key not in self.silenced)

    @property
    def worst(self) -> Status:
        """The worst status among the reported findings; at least unsupported for a refused launch."""
        statuses = [finding.status for finding in self.reported]
        if self.refused is not None:
            statuses.append(Status.UNSUPPORTED)
        return max(statuses, key=lambda status: status.rank, default=Status.MAPPED)

    def changed(self) -> list[Finding]:
        """Return the findings that change what the launch means, worst first, then in the launch's order.

        Those that only repeat for each key why the launch is ``refused`` are left out.
        """
        changed = [
            finding
            for finding in self.reported
            if finding.status.rank >= CHANGES_MEANING.rank and not self._repeats(finding)
        ]
        return sorted(changed, key=lambda finding: -finding.status.rank)

    def _repeats(self, finding: Finding) -> bool:
        if finding.code not in WHOLE_LAUNCH or self.refused is None:
            return False
        why = finding.reason.removeprefix(NOT_TRANSLATED)
        return why in self.refused or self.refused in why

    def kept(self) -> list[Finding]:
        """Return the findings of keys that keep their meaning, in the launch's order."""
        return [finding for finding in self.reported if finding.status.rank < CHANGES_MEANING.rank]


@dataclass(frozen=True, slots=True)
class Audit:
    """All launches of all sources, in the order in which they were read.

    ``problems`` maps sources that could not be read to the reason, ``empty`` sources that start no training
    to the notes of reading them. With ``every``, text and Markdown also list the keys that keep their
    meaning, as the other formats always do.
    """

    launches: tuple[LaunchAudit, ...]
    problems: Mapping[str, str] = field(default_factory=dict)
    empty: Mapping[str, str] = field(default_factory=dict)
    every: bool = False

    @property
    def refused(self) -> tuple[LaunchAudit, ...]:
        """The launches that cannot be translated or that veRL itself would not start.

        Launches with every finding silenced are left out.
        """
        launches = self.launches
        return tuple(each for each in launches if each.errors or (each.refused is not None and each.reported))

    def reaches(self, limit: str) -> bool:
        """Return True if a launch is as bad as ``limit`` (``translate.model``), silenced findings aside."""
        return bool(self.refused) or any(
            reaches(limit, launch.reported, launch.warnings)
            or (limit == Severity.DECIDE and any(note.loses for note in launch.diagnostics))
            for launch in self.launches
        )
