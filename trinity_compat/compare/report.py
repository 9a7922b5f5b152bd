"""A comparison as text, JSON or Markdown; ``html.py`` writes the HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trinity_compat.common.output_text import markdown, markdown_row
from trinity_compat.compare.conclusion import VERDICTS, group_rows, headline, needed
from trinity_compat.compare.curves import SideCurves
from trinity_compat.compare.decide import IDENTICAL, UNCLEAR
from trinity_compat.compare.model import Side
from trinity_compat.compare.verdict import Comparison, MetricVerdict

_STYLES = {"differs": "bold red", "unclear": "yellow", "same": "green", "identical": "dim green"}
COLUMNS = (
    "metric",
    "verdict",
    "A level",
    "B level",
    "B − A",
    "95 % interval",
    "p",
    "q",
    "same within",
    "A last",
    "B last",
    "distance",
)
_OPEN_COLUMNS = ("unclear", "why", "same within", "detectable (80 % power)", "seeds per side needed")


def row_of(metric: MetricVerdict) -> list[str]:
    """Return a metric's cells of COLUMNS."""
    d = metric.difference
    interval = "–" if math.isnan(d.low) else f"{d.low:+.3g} … {d.high:+.3g}"
    return [
        metric.name + (" *" if metric.differs_in_meaning else ""),
        metric.verdict,
        f"{metric.a.summary.level:.4g}",
        f"{metric.b.summary.level:.4g}",
        f"{d.value:+.3g}",
        interval,
        _number(d.p),
        _number(d.q),
        f"±{metric.evidence.margin.size:.2g}",
        f"{metric.a.summary.last:.4g}",
        f"{metric.b.summary.last:.4g}",
        f"{metric.area:.3g}",
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def data_needed(comparison: Comparison) -> list[list[str]]:
    """Return the row of each tested, unclear metric: the reason and the data that would decide."""
    return [
        [
            metric.name,
            metric.why,
            f"±{metric.evidence.margin.size:.2g}",
            _number(metric.evidence.least),
            needed(metric),
        ]
        for metric in comparison.metrics
        if metric.verdict == UNCLEAR and metric.evidence.least is not None
    ]


def _footnotes(comparison: Comparison) -> list[str]:
    notes = [f"* {m.name}: {m.differs_in_meaning}" for m in comparison.metrics if m.differs_in_meaning]
    for label, missing in ((comparison.a.label, comparison.only_a), (comparison.b.label, comparison.only_b)):
        if missing:
            shown = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
            notes.append(f"only in {label}: {shown}")
    return notes + comparison.notes


def _sides(comparison: Comparison) -> list[str]:
    pairs = (("A", comparison.a), ("B", comparison.b))
    return [f"{letter} = {side.label}: {len(side.runs)} run(s)" for letter, side in pairs]


def print_text(comparison: Comparison, console: Console) -> None:
    """Print the conclusion, a table per group, the notes, and the conclusion's first line again.

    The first line is repeated because a terminal may have scrolled.
    """
    conclusion = headline(comparison)
    for line in (*_sides(comparison), "", *conclusion, ""):
        console.print(Text(line))
    for group, metrics in comparison.groups.items():
        _print_group(group, metrics, console)
    rows = data_needed(comparison)
    if rows:
        table = Table(box=None, pad_edge=False)
        for index, column in enumerate(_OPEN_COLUMNS):
            table.add_column(column, justify="left" if index < 2 else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        console.print()
    for note in _footnotes(comparison):
        console.print(Text(note))
    console.print(Text(f"\n{conclusion[0]}", style="bold"))


def _print_group(group: str, metrics: list[MetricVerdict], console: Console) -> None:
    """Print a row for each metric except identical ones, which are only named."""
    table = Table(title=Text(group), title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if index < 2 else "right", overflow="fold")
    for metric in metrics:
        if metric.verdict != IDENTICAL:
            cells = row_of(metric)
            table.add_row(
                Text(cells[0]), Text(cells[1], style=_STYLES[metric.verdict]), *map(Text, cells[2:])
            )
    if table.row_count:
        console.print(table)
    equal = ", ".join(metric.name for metric in metrics if metric.verdict == IDENTICAL)
    if equal:
        console.print(Text(f"{'' if table.row_count else f'{group}; '}identical: {equal}", style="dim"))
    console.print()


def as_markdown(comparison: Comparison) -> str:
    """Return the report as Markdown, for a pull request."""
    conclusion, *details = headline(comparison)
    lines = [f"**{markdown(conclusion)}**", ""]
    lines += [*(f"- {markdown(line)}" for line in (*_sides(comparison), *details)), ""]
    counted = (
        (group, *map(str, counts.values()), ", ".join(n)) for group, counts, n in group_rows(comparison)
    )
    lines += _markdown(("group", *VERDICTS, "which differ"), counted)
    for group, metrics in comparison.groups.items():
        lines += ["", f"### {markdown(group)}", "", *_markdown(COLUMNS, map(row_of, metrics))]
    if unclear := data_needed(comparison):
        lines += ["", "### Data needed for a verdict", "", *_markdown(_OPEN_COLUMNS, unclear)]
    notes = [f"- {markdown(note)}" for note in _footnotes(comparison)]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head, *body = [markdown_row(map(markdown, row)) for row in (columns, *rows)]
    return [head, "|---" * len(columns) + "|", *body]


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return version 1 of the JSON form; NaN becomes null."""
    return {
        "version": 1,
        "a": _side_dict(comparison.a),
        "b": _side_dict(comparison.b),
        "axis": comparison.options.axis,
        "conclusion": headline(comparison),
        "lost_by_stock": [lost.as_dict() for lost in comparison.lost_by_stock],
        "ignored_by_stock": [ignored.as_dict() for ignored in comparison.ignored_by_stock],
        "groups": [
            {"group": g, "counts": counts, "differs": names} for g, counts, names in group_rows(comparison)
        ],
        "metrics": [metric_dict(m) for m in comparison.metrics],
        "only_a": comparison.only_a,
        "only_b": comparison.only_b,
        "notes": _footnotes(comparison),
    }


def _side_dict(side: Side) -> dict[str, object]:
    return {
        "label": side.label,
        "runs": [{"name": r.name, "source": r.source, "kind": r.kind} for r in side.runs],
    }


def metric_dict(metric: MetricVerdict) -> dict[str, Any]:
    """Return one metric of ``as_dict``."""
    d, margin = metric.difference, metric.evidence.margin
    return {
        "name": metric.name,
        "group": metric.group,
        "verdict": metric.verdict,
        "why": metric.why or None,
        "better": metric.better_side or None,
        "a": _summary_dict(metric.a),
        "b": _summary_dict(metric.b),
        "not_finite": {"a": _broken_dict(metric.a), "b": _broken_dict(metric.b)},
        "difference": {
            "value": _finite(d.value),
            "low": _finite(d.low),
            "high": _finite(d.high),
            "effect": _finite(d.effect),
            "p": d.p,
            "q": d.q,
            "method": d.method,
        },
        # the equivalence test: p is that of B − A not being within the margin
        "same": {"margin": _finite(margin.size), "of": margin.origin, "p": metric.evidence.p_same},
        "takes": {"least_seen": _finite(metric.evidence.least), "seeds": metric.evidence.seeds},
        "parts": _band_dict(metric),
        "distance": _finite(metric.area),
        "differs_in_meaning": metric.differs_in_meaning or None,
    }


def _band_dict(metric: MetricVerdict) -> dict[str, object] | None:
    """Return the band of B − A over windows of x; ``at`` is the first window that excludes 0, or None."""
    band = metric.evidence.band
    if band is None:
        return None
    at = metric.separating_band
    return {
        "at": None if at is None or at.first is None else [at.starts[at.first], at.ends[at.first]],
        "outside": band.outside,
        "p": band.p,
        "q": metric.band_q,
        "from": band.starts,
        "to": band.ends,
        "low": [_finite(value) for value in band.low],
        "high": [_finite(value) for value in band.high],
    }


def _summary_dict(side: SideCurves) -> dict[str, object]:
    s = side.summary
    return {
        "level": _finite(s.level),
        "slope": _finite(s.slope),
        "last": _finite(s.last),
        "points": s.points,
    }


def _broken_dict(side: SideCurves) -> dict[str, object] | None:
    b = side.broken
    if b is None:
        return None
    return {"kind": b.kind, "count": b.count, "first": b.first, "to_the_end": b.to_the_end}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def as_json(comparisons: Sequence[Comparison]) -> str:
    """Return indented JSON with a final newline: the comparison, or ``comparisons`` of several."""
    found = [as_dict(comparison) for comparison in comparisons]
    data = found[0] if len(found) == 1 else {"version": 1, "comparisons": found}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
