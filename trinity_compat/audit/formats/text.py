"""The audit as text for a terminal: the changes launch by launch, then the summary of all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trinity_compat.audit.model import Audit, LaunchAudit
from trinity_compat.audit.phrases import (
    assignment,
    kept,
    listed,
    origin,
    plural,
    target,
    without_repeated_notes,
)
from trinity_compat.audit.summary import OUTCOMES, AuditSummary, outcome, summarise
from trinity_compat.common.output_text import styled
from trinity_compat.translate.model import Finding, Severity, Status, without_routine

_COLOUR = {
    Status.MAPPED: "green",
    Status.DERIVED: "green",
    Status.PASSED_THROUGH: "green",
    Status.NO_EFFECT: "dim",
    Status.APPROXIMATED: "yellow",
    Status.UNSUPPORTED_UPSTREAM: "magenta",
    Status.UNSUPPORTED: "red",
    Status.FORK_KEY: "red",
    Status.UNKNOWN: "bold red",
}
_OUTCOME_COLOUR = {"same": "green", "approximated": "yellow", "ours only": "magenta"}  # others: red
_MARK = {Severity.NOTE: ("-", "dim"), Severity.DECIDE: ("!", "yellow"), Severity.ERROR: ("✗", "red")}
_WIDTH_OF_A_FILE = 140


def render(audit: Audit) -> str:
    """Return the audit as text; in colour when stdout is a terminal."""
    return styled(partial(_print, audit), width=_WIDTH_OF_A_FILE)


def _print(audit: Audit, console: Console) -> None:
    for launch in without_repeated_notes(audit.launches):
        for piece in _launch(launch, every=audit.every):
            console.print(piece)
        console.print()
    for source, problem in audit.problems.items():
        console.print(Text(f"{source}: {problem}", style="red"))
    for piece in _summary(summarise(audit), audit):
        console.print(piece)


def _launch(launch: LaunchAudit, *, every: bool) -> Iterator[RenderableType]:
    found = outcome(launch)
    colour = _OUTCOME_COLOUR.get(found, "red")
    yield Text.assemble((found, f"bold {colour}"), "  ", (str(launch.where), "bold"), f"  {launch.module}")
    yield _indented(Text(OUTCOMES[found]))
    if launch.refused is not None:
        yield _indented(Text(f"cannot be translated: {launch.refused}", style="red"))
    sums = ", ".join(f"{number} [{_COLOUR[s]}]{s.value}[/]" for s, number in launch.counts.items())
    yield Text.from_markup(f"  {plural(launch.keys, 'key')}: {sums or 'none'}")
    yield _indented(Text(f"verl {launch.version.value}: {launch.version.why}"))
    said, routine = (launch.warnings, "") if every else without_routine(launch.warnings)
    for warning in said:
        place = f" ({warning.where})" if warning.where else ""
        cure = f"; {warning.hint}" if warning.hint else ""
        mark, style = _MARK[warning.rank]
        note = Text(f"{mark} {warning.code} {warning.message}{cure}{place}", style=style)
        yield _indented(note)
    for diagnostic in launch.diagnostics:
        found = f"{diagnostic.where}: {diagnostic.code} {diagnostic.message}"
        yield _indented(Text(found, style="red" if diagnostic.severity == "error" else "yellow"))
    listed_here = [*launch.changed(), *(launch.kept() if every else ())]
    if listed_here:
        yield _table(listed_here, launch)
    for rest in (kept(launch), routine):
        if rest and not every:
            yield f"  {rest}"
    if launch.silenced:
        yield f"  {plural(len(launch.silenced), 'finding')} silenced in the source"


def _indented(text: Text) -> Padding:
    """Return a text whose further lines begin where its first one does."""
    return Padding(text, (0, 0, 0, 2))


def _table(findings: list[Finding], launch: LaunchAudit) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("code", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("key", overflow="fold", ratio=4)
    table.add_column("where", overflow="fold", ratio=2)
    table.add_column("what becomes of it", overflow="fold", ratio=6)
    for finding in findings:
        reason = finding.reason + (f" → {target(finding)}" if finding.target else "")
        table.add_row(
            finding.code,
            Text(finding.status.value, style=_COLOUR[finding.status]),
            Text(assignment(finding)),
            Text(origin(finding, launch)),
            Text(reason),
        )
    return Padding(table, (0, 0, 0, 2))


def _summary(summary: AuditSummary, audit: Audit) -> Iterator[RenderableType]:
    if audit.empty:
        named = [f"{source} ({why})" if why else source for source, why in audit.empty.items()]
        yield f"{plural(len(audit.empty), 'file')} without a training launch: {escape(listed(named))}"
    if summary.launches < 2:
        return
    yield Text(f"{plural(summary.launches, 'launch')} in {plural(summary.scripts, 'script')}", style="bold")
    for name, number in summary.outcomes.items():
        if number:
            yield f"  {number:4d}  {name}: {OUTCOMES[name]}"
    for refusal, places in summary.refusals.items():
        yield Text(f"  refused: {refusal}: {listed(places, 3)}")
    if summary.causes:
        yield Text("What changes, and why", style="bold")
        yield _causes(summary)


def _causes(summary: AuditSummary) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("set in", justify="right")
    table.add_column("default in", justify="right")
    table.add_column("status", no_wrap=True)
    table.add_column("key", overflow="fold", ratio=3)
    table.add_column("why", overflow="fold", ratio=5)
    for cause in summary.causes:
        table.add_row(
            str(len(cause.set_in)),
            str(len(cause.default_in)),
            Text(cause.status.value, style=_COLOUR[cause.status]),
            Text(f"{cause.key} ({cause.code})"),
            Text(cause.reason),
        )
    return Padding(table, (0, 0, 0, 2))
