"""Many launches at a glance: how many keep their meaning, and what changes in the others and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from trinity_compat.audit.model import Audit, LaunchAudit
from trinity_compat.translate.model import Finding, Status

# What a decision is taken on, in its order: outcome → what it means for a launch.
OUTCOMES: Mapping[str, str] = {
    "same": "runs on Trinity-RFT; every key keeps its meaning, or loses it without effect",
    "approximated": "runs on Trinity-RFT; the listed keys mean nearly, not exactly, the same",
    "ours only": "runs on trinity-compat's runtime with its meaning kept; Trinity-RFT itself cannot do it",
    "open": "has keys that neither can honour, or that veRL doesn't know: someone has to decide",
    "refused": "cannot be translated, or started by veRL itself, until the named cause is removed",
}


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """One reason why launches change, and which ones.

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
        return len(self.set_in) + len(self.default_in)


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """``outcomes`` counts launches, ``causes`` come gravest and most frequent first."""

    launches: int
    scripts: int
    outcomes: Mapping[str, int]
    causes: tuple[ChangeCause, ...]
    refusals: Mapping[str, tuple[str, ...]]
    warnings: Mapping[tuple[str, str], tuple[str, ...]]


def outcome(launch: LaunchAudit) -> str:
    """Return the key of OUTCOMES that a launch falls under."""
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
        outcomes={name: outcomes[name] for name in OUTCOMES},
        causes=_causes(audit),
        refusals=_grouped([(launch.refused, name(launch)) for launch in audit.launches if launch.refused]),
        warnings=_grouped(
            [((w.code, w.message), name(launch)) for launch in audit.launches for w in launch.warnings]
        ),
    )


def name(launch: LaunchAudit) -> str:
    """How a launch is called in lists: its script and line."""
    return str(launch.where)


def _causes(audit: Audit) -> tuple[ChangeCause, ...]:
    places: dict[tuple[Status, str, str, str], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for launch in audit.launches:
        if launch.refused is None:
            for finding in launch.changed():
                set_in, default_in = places[_cause(finding)]
                (default_in if finding.where is None else set_in).append(name(launch))
    causes = [
        ChangeCause(*cause, tuple(dict.fromkeys(a)), tuple(dict.fromkeys(b)))
        for cause, (a, b) in places.items()
    ]
    return tuple(sorted(causes, key=lambda c: (-c.status.rank, -len(c.set_in), -c.launches, c.key)))


def _cause(finding: Finding) -> tuple[Status, str, str, str]:
    return finding.status, finding.code, finding.key, finding.reason


_Key = TypeVar("_Key", bound=Hashable)


def _grouped(pairs: list[tuple[_Key, str]]) -> dict[_Key, tuple[str, ...]]:
    groups: dict[_Key, list[str]] = defaultdict(list)
    for key, where in pairs:
        groups[key].append(where)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return {key: tuple(dict.fromkeys(places)) for key, places in ordered}
