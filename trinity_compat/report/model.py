"""A report: sections of data, which text, HTML and the studio show alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trinity_compat.common import redaction
from trinity_compat.common.plain_numbers import is_whole

Verdict = Literal["proven", "broken", "open"]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report.

    ``verdict``: ``broken`` where the run did what it must not do; ``open`` where its records do not say.
    ``summary`` is the sentence that matters, ``unknown`` what cannot be said. Of ``data`` a list of mappings
    is a table, anything else a line.
    """

    title: str
    verdict: Verdict
    summary: str
    data: Mapping[str, Any]
    unknown: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Return the section's name for programs."""
        return self.title.split()[0].lower()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Return name and text of each value that is not a table."""
        yield from ((spaced(name), shown(value)) for name, value in self.data.items() if not is_table(value))

    def tables(self) -> Iterator[tuple[str, list[str], list[list[str]]]]:
        """Return title, head and rows of each table that has rows."""
        for name, rows in self.data.items():
            if is_table(rows):
                cells = [[shown(value) for value in row.values()] for row in rows]
                yield spaced(name), list(map(spaced, rows[0])), cells


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of one run, ``source`` as the user named it."""

    source: str
    sections: Sequence[Section] = field(default=())

    @property
    def broken(self) -> list[str]:
        """Return the names of the sections that found a fault."""
        return [section.name for section in self.sections if section.verdict == "broken"]

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        found = {
            each.name: {
                "verdict": each.verdict,
                "summary": each.summary,
                "unknown": [*each.unknown],
                **each.data,
            }
            for each in self.sections
        }
        return {"version": 1, "source": self.source, "broken": self.broken, **found}


def is_table(value: object) -> bool:
    """Return whether a value is shown as a table."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def spaced(name: object) -> str:
    """Return a field's name as words."""
    return str(name).replace("_", " ")


def shown(value: object) -> str:
    """Return a value as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{spaced(name)} {shown(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    if is_whole(value):
        return f"{value:,}"
    return "–" if value is None else redaction.shown(str(value))


def counted(number: int, noun: str) -> str:
    """Return ``1 step``, ``2,000 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
