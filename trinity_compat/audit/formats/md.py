"""The audit as Markdown, for a pull request or a wiki page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trinity_compat.audit.model import Audit, LaunchAudit
from trinity_compat.audit.phrases import (
    assignment,
    kept,
    key_counts,
    listed,
    origin,
    plural,
    target,
    without_repeated_notes,
)
from trinity_compat.audit.summary import OUTCOMES, AuditSummary, summarise
from trinity_compat.translate.model import Finding


def render(audit: Audit) -> str:
    """Return the audit as Markdown."""
    lines = ["# Audit of veRL launches for Trinity-RFT", "", *_summary(summarise(audit), audit)]
    for launch in without_repeated_notes(audit.launches):
        lines += _launch(launch, every=audit.every)
    return "\n".join(lines)


def _summary(summary: AuditSummary, audit: Audit) -> Iterator[str]:
    yield f"{plural(summary.launches, 'launch')} in {plural(summary.scripts, 'script')}."
    yield ""
    yield from _rows(
        ("launches", "outcome", "meaning"),
        ((str(number), name, OUTCOMES[name]) for name, number in summary.outcomes.items() if number),
    )
    for refusal, places in summary.refusals.items():
        yield f"- refused: {_inline(refusal)} ({_inline(listed(places))})"
    for source, problem in audit.problems.items():
        yield f"- not read: `{source}`: {_inline(problem)}"
    yield ""
    if summary.causes:
        yield "## What changes, and why"
        yield ""
        yield from _rows(
            ("set in", "default in", "status", "key", "why"),
            (
                (str(len(c.set_in)), str(len(c.default_in)), c.status.value, f"`{c.key}` {c.code}", c.reason)
                for c in summary.causes
            ),
        )


def _launch(launch: LaunchAudit, *, every: bool) -> Iterator[str]:
    yield f"## {_inline(str(launch.where))}"
    yield ""
    yield f"`{launch.module}`, verl {launch.version.value}: {_inline(launch.version.why)}"
    yield ""
    yield key_counts(launch)
    yield ""
    if launch.refused is not None:
        yield f"**Cannot be translated**: {_inline(launch.refused)}"
        yield ""
    for warning in launch.warnings:
        yield f"- **{warning.code}** {_inline('; '.join(filter(None, (warning.message, warning.hint))))}" + (
            f" ({warning.where})" if warning.where else ""
        )
    for diagnostic in launch.diagnostics:
        yield f"- {_inline(str(diagnostic.where))}: {diagnostic.code} {_inline(diagnostic.message)}"
    if launch.warnings or launch.diagnostics:
        yield ""
    yield from _findings("What changes", launch.changed(), launch)
    if every:
        yield from _findings("What keeps its meaning", launch.kept(), launch)
    elif rest := kept(launch):
        yield rest
        yield ""


def _findings(title: str, findings: list[Finding], launch: LaunchAudit) -> Iterator[str]:
    if findings:
        yield f"### {title}"
        yield ""
        yield from _rows(
            ("code", "status", "key", "where", "target", "why"),
            (
                (f.code, f.status.value, f"`{assignment(f)}`", origin(f, launch), target(f), f.reason)
                for f in findings
            ),
        )


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_inline, row))} |"
    yield ""


def _inline(text: str) -> str:
    """Escape one table cell: line ends, column separators and tags."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
