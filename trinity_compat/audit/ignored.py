"""Findings silenced by a directive in the source: ``# trinity-compat: ignore=TC012``.

A directive names codes or keys, separated by commas. Above the first command of the file it holds for the
whole file; elsewhere for the statement that it stands in or above, with its continuation lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trinity_compat.common.errors import Where
from trinity_compat.translate.model import Finding

_DIRECTIVE = re.compile(r"#\s*trinity-compat:\s*ignore=([\w.,\- ]+)")


@dataclass(frozen=True, slots=True)
class Directive:
    """Names that are silenced from line ``first`` to ``last``, both counted from 1."""

    names: frozenset[str]
    first: int
    last: int

    def covers(self, line: int) -> bool:
        """Return True if the directive applies to ``line``."""
        return self.first <= line <= self.last


def directives(text: str) -> list[Directive]:
    """Return the directives of a script or YAML text."""
    lines = text.splitlines()
    commands = [n for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    found = []
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.search(line)
        if match is None:
            continue
        names = frozenset(name.strip() for name in match[1].split(",") if name.strip())
        if not commands or number < commands[0]:
            found.append(Directive(names, 1, len(lines)))
        else:
            first = number if number in commands else next((n for n in commands if n > number), number)
            last = first
            while last < len(lines) and lines[last - 1].rstrip().endswith("\\"):
                last += 1
            found.append(Directive(names, first, last))
    return found


def silenced(found: list[Directive], findings: tuple[Finding, ...], launch: Where) -> frozenset[str]:
    """Return the keys whose finding a directive silences.

    A default has no line of its own: directives on the launch's first line apply to it.
    """
    return frozenset(
        finding.key
        for finding in findings
        for directive in found
        if {finding.code, finding.key} & directive.names
        and directive.covers((finding.where or launch).line)
        and (finding.where is None or finding.where.file == launch.file)
    )
