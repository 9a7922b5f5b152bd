"""A report as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trinity_compat.report.model import RunReport, Section

_MOST = 8  # rows of a table; JSON and HTML have all


def as_text(report: RunReport) -> str:
    """Return the report, a paragraph for each section."""
    return "\n\n".join("\n".join(_section(each)) for each in report.sections)


def _section(section: Section) -> Iterator[str]:
    yield f"{section.title} [{section.verdict}]: {section.summary}"
    yield from (f"  {name:<18} {text}" for name, text in section.lines())
    for title, head, rows in section.tables():
        yield f"  {title}:"
        yield from (f"    {line}" for line in _table(head, rows))
    yield from (f"  not known: {what}" for what in section.unknown)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    left = len(rows) - _MOST
    shown = (
        [head, *rows] if left <= 0 else [head, *rows[: _MOST // 2], ["…"] * len(head), *rows[-_MOST // 2 :]]
    )
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    if left > 0:
        yield f"({left} more in --json)"
