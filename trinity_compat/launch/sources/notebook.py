"""Jupyter notebooks: ``!command`` lines and ``%%bash`` cells are shell code, the rest is Python."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from trinity_compat.errors import UserError, Where
from trinity_compat.launch.core.values import lines_of
from trinity_compat.launch.sources import python_file
from trinity_compat.launch.sources.model import Command, Contents

_NOTE = "a notebook: shell commands (!, %%bash) and literal calls of subprocess and os.system are read"
_SHELL_CELL = re.compile(r"%%(bash|sh|script bash)\b")


def read(name: str, text: str) -> Contents:
    """The commands of a notebook, in the order of its cells; a place is a line of a cell, ``x.ipynb[3]:2``.

    Raises UserError for a file that isn't a notebook.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"not a notebook: {error}", where=Where(name)) from None
    commands = (
        command
        for number, (kind, source) in enumerate(sources, start=1)
        if kind == "code"
        for command in _cell(f"{name}[{number}]", source)
    )
    return Contents(tuple(commands), _NOTE)


def _cell(name: str, source: str) -> Iterator[Command]:
    lines = source.split("\n")
    if _SHELL_CELL.match(source):
        yield Command(Where(name, 2), lines_of("\n".join(lines[1:]), Where(name, 2)))
        return
    code, rest = _shell_lines(lines)
    if any(code):
        yield Command(Where(name, 1), lines_of("\n".join(code), Where(name, 1)))
    yield from python_file.commands_of(name, "\n".join(rest))


def _shell_lines(lines: list[str]) -> tuple[list[str], list[str]]:
    """(the shell's lines, Python's), each with an empty one in place of the other's."""
    code, rest, goes_on = [], [], False
    for line in lines:
        shell = goes_on or line.lstrip().startswith("!")
        code.append(line if goes_on else line.lstrip()[1:] if shell else "")
        rest.append("" if shell or line.startswith("%") else line)
        goes_on = shell and line.rstrip().endswith("\\")
    return code, rest
