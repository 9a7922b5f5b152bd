"""What IPython does with the lines of a notebook's cell before Python sees them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.traced_text import Value, lines_of, literal
from trinity_compat.launch.python import operators, templates
from trinity_compat.launch.python.calls import SHELL_LINE
from trinity_compat.launch.python.evaluator import Evaluator
from trinity_compat.launch.python.items import NotKnown, plain, text

_ENVIRONMENT = re.compile(r"\s*%(?:env|set_env)\s+(\w+)(?:\s*=\s*|\s+)(.*)")
_FOLDER = re.compile(r"\s*%cd\s+(?:-q\s+)?(.+)")


def as_python(lines: list[str]) -> str:
    """A cell with its ``!`` lines and magics as calls of Python, each line where it was."""
    out: list[str] = []
    for start, end in blocks(lines):
        line = lines[start]
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith("!"):
            code = "\n".join([line.lstrip()[1:], *lines[start + 1 : end]])
            out += [f"{indent}{SHELL_LINE}({code!r})", *[""] * (end - start - 1)]
        else:
            out.append(_magic(line, indent))
    return "\n".join(out)


def _magic(line: str, indent: str) -> str:
    if found := _ENVIRONMENT.match(line):
        return f"{indent}os.environ[{found[1]!r}] = {found[2].strip()!r}"
    if found := _FOLDER.match(line):
        return f"{indent}os.chdir({found[1].strip()!r})"
    return f"{indent}pass" if line.lstrip().startswith("%") else line


def blocks(lines: list[str]) -> Iterator[tuple[int, int]]:
    """(first line, the line after the last) of each statement that is IPython's, and of every other line."""
    at = 0
    while at < len(lines):
        end = at + 1
        if lines[at].lstrip().startswith("!"):
            while end < len(lines) and lines[end - 1].rstrip().endswith("\\"):
                end += 1
        yield at, end
        at = end


def expanded(ev: Evaluator, code: str, where: Where) -> Value:
    """A ``!`` line with ``{expression}`` and ``$name`` of Python in it.

    IPython leaves the whole line as it is where one of the expressions fails; so do we where a name of one is
    bound to nothing.
    """

    def field(name: str, spec: str) -> Value:
        node = _expression(name)
        if not _is_bound(ev, node):
            raise NotKnown
        item = ev.item(node)
        return literal(operators.formatted(plain(item), spec), where) if spec else text(item, node, where)

    def variable(name: str) -> Value | None:
        head, _, _ = name.partition(".")
        return ev.text(_expression(name)) if head in ev.names else None

    try:
        filled = templates.braces(code, field, where)
    except NotKnown:
        return lines_of(code, where)
    return tuple(
        piece
        for bit in filled
        for piece in ((bit,) if bit.source else templates.dollars(bit.text, variable, bit.where))
    )


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise NotKnown from None


def _is_bound(ev: Evaluator, node: ast.expr) -> bool:
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return all(name in ev.names or name in ev.file.aliases or name in ("str", "int", "os") for name in names)
