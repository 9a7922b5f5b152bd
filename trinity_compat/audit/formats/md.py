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
from trinity_compat.common.output_text import markdown, markdown_code, markdown_row
from trinity_compat.translate.model import Finding, without_routine


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
        yield f"- refused: {markdown(refusal)} ({markdown(listed(places))})"
    for source, problem in audit.problems.items():
        yield f"- not read: {markdown_code(source)}: {markdown(problem)}"
    yield ""
    if summary.causes:
        yield "## What changes, and why"
        yield ""
        yield from _rows(
            ("set in", "default in", "status", "key", "why"),
            (
                (
                    str(len(c.set_in)),
                    str(len(c.default_in)),
                    c.status.value,
                    f"{markdown_code(c.key)} {c.code}",
                    markdown(c.reason),
                )
                for c in summary.causes
            ),
        )


def _launch(launch: LaunchAudit, *, every: bool) -> Iterator[str]:
    yield f"## {markdown(str(launch.where))}"
    yield ""
    yield f"{markdown_code(launch.module)}, verl {launch.version.value}: {markdown(launch.version.why)}"
    yield ""
    yield key_counts(launch)
    yield ""
    if launch.refused is not None:
        yield f"**Cannot be translated**: {markdown(launch.refused)}"
        yield ""
    said, routine = (launch.warnings, "") if every else without_routine(launch.warnings)
    for warning in said:
        yield f"- **{warning.code}** {markdown('; '.join(filter(None, (warning.message, warning.hint))))}" + (
            f" ({markdown(str(warning.where))})" if warning.where else ""
        )
    for diagnostic in launch.diagnostics:
        yield f"- {markdown(str(diagnostic.where))}: {diagnostic.code} {markdown(diagnostic.message)}"
    if routine:
        yield f"- {routine}"
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
                (
                    f.code,
                    f.status.value,
                    markdown_code(assignment(f)),
                    *map(markdown, (origin(f, launch), target(f), f.reason)),
                )
                for f in findings
            ),
        )


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield a table; the cells are Markdown."""
    yield markdown_row(head)
    yield f"|{'---|' * len(head)}"
    yield from map(markdown_row, rows)
    yield ""
