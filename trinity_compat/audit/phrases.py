"""The same words in every format: where a value comes from, how a value and a status read."""

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
    Status.PASSED_THROUGH: "handed to veRL's part of the trainer",
    Status.NO_EFFECT: "dropped, cannot matter",
    Status.APPROXIMATED: "nearly the same",
    Status.UNSUPPORTED_UPSTREAM: "only trinity-compat's runtime does it",
    Status.UNSUPPORTED: "neither side does it",
    Status.FORK_KEY: "only the fork knows it",
    Status.UNKNOWN: "veRL has no such key",
}


def said_once(launches: Sequence[LaunchAudit]) -> list[LaunchAudit]:
    """The launches without what was said of one before them in the same source, and what is said of several
    lines said of the first."""
    told: set[tuple[str, object]] = set()
    out = []
    for launch in launches:
        notes = [note for note in launch.diagnostics if (launch.source, note) not in told]
        cautions = [caution for caution in launch.warnings if (launch.source, caution) not in told]
        told |= {(launch.source, note) for note in (*notes, *cautions)}
        out.append(replace(launch, diagnostics=tuple(merged(notes)), warnings=tuple(cautions)))
    return out


def errors(audit: Audit) -> list[str]:
    """What stops a launch, one line each: files that cannot be read, errors of the script, what ends veRL
    itself, and that it cannot be translated."""
    lines = [f"{source}: {problem}" for source, problem in audit.problems.items()]
    for launch in said_once(audit.launches):
        notes = [note for note in launch.diagnostics if note.severity == "error"]
        lines += [str(note) for note in notes]
        lines += [f"{found.where}: {found.code} {found.message}" for found in launch.errors]
        if launch.refused is not None:
            lines.append(f"{launch.where}: cannot be translated: {launch.refused}")
    return lines


def kept(launch: LaunchAudit) -> str:
    """How many keys a format doesn't list, and what lists them; empty where there is none."""
    number = len(launch.kept())
    keep = "keeps its" if number == 1 else "keep their"
    return f"{plural(number, 'key')} {keep} meaning (--all lists them)" if number else ""


def key_counts(launch: LaunchAudit) -> str:
    """``12 keys: 9 mapped, 3 derived``."""
    counts = ", ".join(f"{number} {status.value}" for status, number in launch.counts.items())
    return f"{plural(launch.keys, 'key')}: {counts}"


def origin(finding: Finding, launch: LaunchAudit) -> str:
    """``run.sh:12``, ``default of verl 0.5.0`` or ``default of the fork``."""
    return str(finding.where) if finding.where else default_of(launch.version, launch.fork, finding.key)


def short(value: object, limit: int = 60) -> str:
    """A value on one line of at most ``limit`` characters, as a veRL user would write it."""
    text = "null" if value is None else str(value)
    text = " ".join(text.split()) if text.strip() else repr(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def assignment(finding: Finding) -> str:
    """``data.train_batch_size=1024``."""
    return f"{finding.key}={short(finding.value)}"


def target(finding: Finding) -> str:
    """``buffer.batch_size=256``, or nothing where the key leads nowhere."""
    if finding.target is None:
        return ""
    return (
        finding.target if finding.target_value is None else f"{finding.target}={short(finding.target_value)}"
    )


def plural(number: int, word: str) -> str:
    """``1 launch``, ``2 launches``."""
    ending = "" if number == 1 else "es" if word.endswith(("ch", "s")) else "s"
    return f"{number} {word}{ending}"


def listed(places: Sequence[str], limit: int = 5, between: str = ", ") -> str:
    """The first places, and how many more there are."""
    more = len(places) - limit
    return between.join(places[:limit]) + (f" and {more} more" if more > 0 else "")
