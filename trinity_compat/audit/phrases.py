"""Wording shared by all formats: a value's origin, its text, and the meaning of a status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trinity_compat.audit.model import Audit, LaunchAudit
from trinity_compat.launch import merged
from trinity_compat.translate.model import Finding, Status
from trinity_compat.verl_config.model import default_of

STATUS_MEANS: Mapping[Status, str] = {
    Status.MAPPED: "same meaning, other name",
    Status.DERIVED: "computed from several keys",
    Status.PASSED_THROUGH: "passed unchanged to veRL's trainer configuration",
    Status.NO_EFFECT: "dropped, has no effect",
    Status.APPROXIMATED: "nearly the same",
    Status.UNSUPPORTED_UPSTREAM: "supported by trinity-compat only",
    Status.UNSUPPORTED: "supported by neither Trinity-RFT nor trinity-compat",
    Status.FORK_KEY: "defined by the fork only",
    Status.UNKNOWN: "veRL has no such key",
}


def without_repeated_notes(launches: Sequence[LaunchAudit]) -> list[LaunchAudit]:
    """Return the launches without repeated notes.

    A note or warning of an earlier launch of the same source is dropped, and diagnostics that differ in
    their line only are merged into the first.
    """
    seen: set[tuple[str, object]] = set()
    out = []
    for launch in launches:
        notes = [note for note in launch.diagnostics if (launch.source, note) not in seen]
        cautions = [caution for caution in launch.warnings if (launch.source, caution) not in seen]
        seen |= {(launch.source, note) for note in (*notes, *cautions)}
        out.append(replace(launch, diagnostics=tuple(merged(notes)), warnings=tuple(cautions)))
    return out


def errors(audit: Audit) -> list[str]:
    """Return what stops a launch, one line each.

    These are files that cannot be read, errors of the script, errors that end veRL itself, and refusals.
    """
    lines = [f"{source}: {problem}" for source, problem in audit.problems.items()]
    for launch in without_repeated_notes(audit.launches):
        notes = [note for note in launch.diagnostics if note.severity == "error"]
        lines += [str(note) for note in notes]
        lines += [f"{found.where}: {found.code} {found.message}" for found in launch.errors]
        if launch.refused is not None:
            lines.append(f"{launch.where}: cannot be translated: {launch.refused}")
    return lines


def kept(launch: LaunchAudit) -> str:
    """Count the keys that a format leaves out, and name the option that lists them; "" for none."""
    number = len(launch.kept())
    keep = "keeps its" if number == 1 else "keep their"
    return f"{plural(number, 'key')} {keep} meaning (--all lists them)" if number else ""


def key_counts(launch: LaunchAudit) -> str:
    """Format the counts per status: ``12 keys: 9 mapped, 3 derived``."""
    counts = ", ".join(f"{number} {status.value}" for status, number in launch.counts.items())
    return f"{plural(launch.keys, 'key')}: {counts}"


def origin(finding: Finding, launch: LaunchAudit) -> str:
    """Format the origin of a value: ``run.sh:12``, ``default of verl 0.5.0`` or ``default of the fork``."""
    return str(finding.where) if finding.where else default_of(launch.version, launch.fork, finding.key)


def short(value: object, limit: int = 60) -> str:
    """Format a value on one line of at most ``limit`` characters, as a veRL user would write it."""
    text = "null" if value is None else str(value)
    text = " ".join(text.split()) if text.strip() else repr(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def assignment(finding: Finding) -> str:
    """Format a finding's key and value: ``data.train_batch_size=1024``."""
    return f"{finding.key}={short(finding.value)}"


def target(finding: Finding) -> str:
    """Format a finding's target: ``buffer.batch_size=256``; "" for a key without one."""
    if finding.target is None:
        return ""
    return (
        finding.target if finding.target_value is None else f"{finding.target}={short(finding.target_value)}"
    )


def plural(number: int, word: str) -> str:
    """Format a count: ``1 launch``, ``2 launches``."""
    ending = "" if number == 1 else "es" if word.endswith(("ch", "s")) else "s"
    return f"{number} {word}{ending}"


def listed(places: Sequence[str], limit: int = 5, between: str = ", ") -> str:
    """Join the first ``limit`` places, and count the rest: ``a.sh:1, b.sh:2 and 3 more``."""
    more = len(places) - limit
    return between.join(places[:limit]) + (f" and {more} more" if more > 0 else "")
