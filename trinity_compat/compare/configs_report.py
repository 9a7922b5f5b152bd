"""Differences of configurations as text for a terminal, Markdown, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trinity_compat.common.output_text import markdown, markdown_code, markdown_row
from trinity_compat.common.redaction import hidden
from trinity_compat.common.releases import VERL
from trinity_compat.compare.configs import KeyDifference, SettingsDifference

_STYLES = ("bold", "", "dim")


def print_text(found: SettingsDifference, console: Console) -> None:
    """Print one table per group, in the order of their weight."""
    for line in _head(found):
        console.print(Text(line), soft_wrap=True)
    for (title, rows, of_why), style in zip(_groups(found), _STYLES, strict=True):
        if not rows:
            continue
        console.print(Text(f"\n{title}", style="bold"), soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        for name in ("key", "A", "B", of_why):
            table.add_column(name, overflow="fold", no_wrap=name == "key")
        for row in rows:
            table.add_row(*(Text(cell) for cell in _cells(row)), style=style)
        console.print(table)


def as_markdown(found: SettingsDifference) -> str:
    """Return one table per group."""
    lines = [f"{markdown(line)}  " for line in _head(found)]
    for title, rows, of_why in _groups(found):
        if rows:
            lines += ["", f"**{title}**", "", f"| key | A | B | {of_why} |", "|---|---|---|---|"]
            for row in rows:
                key, a, b, last = _cells(row)
                lines.append(
                    markdown_row([markdown(key), markdown_code(a), markdown_code(b), markdown(last)])
                )
    return "\n".join(lines) + "\n"


def as_json(found: Sequence[SettingsDifference]) -> str:
    """Return the differences of each source from the first."""
    comparisons = [
        {
            "a": one.a.source,
            "b": one.b.source,
            "same": not one.differs,
            "differences": [{**_row(row), "stock": row.stock} for row in one.effective],
            "following": [{**_row(row), "follows": row.why} for row in one.following],
            "without_effect": [{**_row(row), "why": row.why} for row in one.idle],
        }
        for one in found
    ]
    data = {"version": 1, "comparisons": comparisons}
    return json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"


def _row(row: KeyDifference) -> dict[str, object]:
    a, b = (hidden(row.key, value) for value in (row.a, row.b))
    return {"key": row.key, "a": a, "b": b, "a_place": row.a_place, "b_place": row.b_place}


def _head(found: SettingsDifference) -> Iterator[str]:
    yield f"A = {found.a.source} ({found.a.why})"
    yield f"B = {found.b.source} ({found.b.why})"
    if not found.differs:
        yield f"no difference in effect, as veRL {VERL} understands them"


def _groups(found: SettingsDifference) -> Iterator[tuple[str, Sequence[KeyDifference], str]]:
    """Yield title, rows, and the name of the last column of each group, empty ones too."""
    yield (
        f"{_number(found.effective)} in effect, as veRL {VERL} understands them",
        found.effective,
        "set at (A / B)",
    )
    yield f"{_number(found.following)} as a consequence", found.following, "follows"
    yield f"{_number(found.idle)} without effect", found.idle, "why"


def _number(rows: Sequence[KeyDifference]) -> str:
    return "1 setting differs" if len(rows) == 1 else f"{len(rows)} settings differ"


def _cells(row: KeyDifference) -> tuple[str, str, str, str]:
    a, b = (_shown(hidden(row.key, value)) for value in (row.a, row.b))
    places = f"{row.a_place or '–'} / {row.b_place or '–'}"
    stock = f"; a run here honours it, stock {row.stock}" if row.stock else ""
    return row.key, a, b, row.why or f"{places}{stock}"


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return " ".join(str(value).split()) if value != "" else "''"
