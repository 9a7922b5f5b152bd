"""Jupyter notebooks: ``!command`` lines and ``%%bash`` cells are shell code, the rest is Python."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch.bash.traced_text import lines_of
from trinity_compat.launch.python import ipython, script
from trinity_compat.launch.python.evaluator import Evaluator, File
from trinity_compat.launch.python.values import Item
from trinity_compat.launch.source_contents import Contents

_NOTE = (
    "a notebook: shell commands (!, %%bash) and calls of subprocess and os.system are read, with the values"
    " that names have in the cells before"
)
_SHELL_CELL = re.compile(r"%%(bash|sh|script bash)\b")
_FILE_CELL = re.compile(r"%%writefile\s+(?P<append>-a\s+)?(?P<file>\S+)")
_END = "__END_OF_CELL__"


def read(name: str, text: str, env: Mapping[str, str] | None = None) -> Contents:
    """Return the commands of a notebook, in the order of its cells; a place is ``x.ipynb[cell]:line``.

    Raises UserError for a file that is not a notebook.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"not a notebook: {error}", where=Where(name)) from None
    file, names = script.session(name, env=env), script.names_of(name)
    with script.bounded(file):
        for number, (kind, source) in enumerate(sources, start=1):
            if kind == "code":
                file.name = f"{name}[{number}]"
                _cell(file, names, source)
    return Contents(tuple(file.commands), _NOTE, file.stopped, file.at)


def _cell(file: File, names: dict[str, Item], source: str) -> None:
    def record(code: str, line: int) -> None:
        place = Where(file.name, line)
        Evaluator(file, names).record(place, code=lines_of(code, place))

    lines = source.split("\n")
    if _SHELL_CELL.match(source):
        record("\n".join(lines[1:]), 2)
    elif written := _FILE_CELL.match(source):
        begin = f"cat {'>>' if written['append'] else '>'} {written['file']} <<'{_END}'"
        record("\n".join([begin, *lines[1:], _END, ""]), 1)
    elif (code := script.cell_of(ipython.as_python(lines))) is not None:
        script.run(file, names, code)
    else:
        for line, command in _shell_lines(lines):
            record(command, line)


def _shell_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the ``!`` lines of a cell that is not Python as it stands, each with its number."""
    for start, end in ipython.blocks(lines):
        if lines[start].lstrip().startswith("!"):
            yield start + 1, "\n".join([lines[start].lstrip()[1:], *lines[start + 1 : end]])
