"""Summary of many launches: the number per outcome, and the causes of changes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from trinity_compat.audit.model import Audit, LaunchAudit
from trinity_compat.translate.model import Status

# Outcome of a launch → its meaning, from the best to the worst.
OUTCOMES: Mapping[str, str] = {
    "same": "runs on Trinity-RFT; every key keeps its meaning or has no effect",
    "approximated": "runs on Trinity-RFT; the listed keys keep their meaning only approximately",
    "ours only": "runs on trinity-compat with its meaning kept, but not on Trinity-RFT",
    "open": "has keys that neither Trinity-RFT nor trinity-compat supports, or that veRL does not have:"
    " decide what becomes of them",
    "refused": "cannot be translated, or veRL itself cannot start it, until the named cause is removed",
}


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """One reason why launches change, with the launches that it affects.

    ``set_in`` are the launches that set the key themselves, ``default_in`` those that have it by default.
    """

    status: Status
    code: str
    key: str
    reason: str
    set_in: tuple[str, ...]
    default_in: tuple[str, ...]

    @property
    def launches(self) -> int:
        """Number of affected launches."""
        return len(self.set_in) + len(self.default_in)


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Counts over all launches: launches per outcome, and causes with the worst and most frequent first."""

    launches: int
    scripts: int
    outcomes: Mapping[str, int]
    causes: tuple[ChangeCause, ...]
    refusals: Mapping[str, tuple[str, ...]]
    warnings: Mapping[tuple[str, str], tuple[str, ...]]


def outcome(launch: LaunchAudit) -> str:
    """Return the outcome of a launch, a key of OUTCOMES."""
    if launch.refused is not None or launch.errors:
        return "refused"
    if launch.worst.rank >= Status.UNSUPPORTED.rank:
        return "open"
    if launch.worst is Status.UNSUPPORTED_UPSTREAM:
        return "ours only"
    return "approximated" if launch.worst is Status.APPROXIMATED else "same"


def summarise(audit: Audit) -> AuditSummary:
    """Count the launches per outcome and gather the causes over all of them."""
    outcomes = Counter(outcome(launch) for launch in audit.launches)
    return AuditSummary(
        launches=len(audit.launches),
        scripts=len({launch.source for launch in audit.launches}),
        outcomes={each: outcomes[each] for each in OUTCOMES},
        causes=_causes(audit),
        refusals=_grouped([(launch.refused, name(launch)) for launch in audit.launches if launch.refused]),
        warnings=_grouped(
            [((w.code, w.message), name(launch)) for launch in audit.launches for w in launch.warnings]
        ),
    )


def name(launch: LaunchAudit) -> str:
    """Name a launch by its script and line."""
    return str(launch.where)


def _causes(audit: Audit) -> tuple[ChangeCause, ...]:
    places: dict[tuple[Status, str, str, str], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for launch in audit.launches:
        if launch.refused is None:
            for finding in launch.changed():
                cause = finding.status, finding.code, finding.key, finding.reason
                set_in, default_in = places[cause]
                (default_in if finding.where is None else set_in).append(name(launch))
    causes = [
        ChangeCause(*cause, tuple(dict.fromkeys(a)), tuple(dict.fromkeys(b)))
        for cause, (a, b) in places.items()
    ]
    return tuple(sorted(causes, key=lambda c: (-c.status.rank, -len(c.set_in), -c.launches, c.key)))


_Key = TypeVar("_Key", bound=Hashable)


def _grouped(pairs: list[tuple[_Key, str]]) -> dict[_Key, tuple[str, ...]]:
    groups: dict[_Key, list[str]] = defaultdict(list)
    for key, where in pairs:
        groups[key].append(where)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return {key: tuple(dict.fromkeys(places)) for key, places in ordered}
