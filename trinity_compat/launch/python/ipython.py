"""IPython's own syntax in the cells of a notebook: ``!command``, magics, ``{expression}`` and ``$name``."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.traced_text import TextPiece, Value, lines_of, literal
from trinity_compat.launch.python.evaluator import Evaluator
from trinity_compat.launch.python.values import NotKnown, formatted, plain

SHELL_LINE = "__shell_line__"  # the call that `!command` becomes
_ENVIRONMENT = re.compile(r"\s*%(?:env|set_env)\s+(\w+)(?:\s*=\s*|\s+)(.*)")
_DOLLAR = re.compile(r"\$(\$?[\w.]+)")
_FOLDER = re.compile(r"\s*%cd\s+(?:-q\s+)?(.+)")


def as_python(lines: list[str]) -> str:
    """Return a cell with its ``!`` lines and magics as calls of Python, each line where it was."""
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
    """Yield (first line, line after the last) of each ``!`` command, and of every other line."""
    at = 0
    while at < len(lines):
        end = at + 1
        if lines[at].lstrip().startswith("!"):
            while end < len(lines) and lines[end - 1].rstrip().endswith("\\"):
                end += 1
        yield at, end
        at = end


def run_line(ev: Evaluator, node: ast.Call) -> None:
    """Record the command of a ``!`` line."""
    (code,) = node.args
    ev.record(ev.where(node), code=_expanded(ev, str(ast.literal_eval(code)), ev.where(node)))


def _expanded(ev: Evaluator, code: str, where: Where) -> Value:
    """Return a ``!`` line with ``{expression}`` and ``$name`` of Python filled in.

    IPython leaves the whole line as it is where one of the expressions fails; so does this function where a
    name in one of them is not bound.
    """

    def variable(name: str) -> Value | None:
        head, _, _ = name.partition(".")
        return ev.text(_expression(name)) if head in ev.names else None

    try:
        filled = _braces(ev, code, where)
    except (NotKnown, ValueError):
        return lines_of(code, where)
    return tuple(
        piece
        for bit in filled
        for piece in ((bit,) if bit.source else _dollars(bit.text, variable, bit.where))
    )


def _braces(ev: Evaluator, code: str, where: Where) -> Value:
    """Fill in ``{expression}`` and ``{expression:format}``. Raises NotKnown and ValueError."""
    out: list[TextPiece] = []
    line = where.line
    for before, name, spec, conversion in string.Formatter().parse(code):
        ev.file.budget.step()
        out += lines_of(before, Where(where.file, line))
        line += before.count("\n")
        if name is None:
            continue
        node = _expression(name)
        if conversion or (spec and "{" in spec) or not _is_bound(ev, node):
            raise NotKnown
        item = ev.item(node)
        out += literal(formatted(plain(item), spec), where) if spec else ev.text_of_item(item, node, where)
    return tuple(out)


def _dollars(text: str, variable: Callable[[str], Value | None], where: Where) -> Value:
    """Fill in ``$name``; a name that ``variable`` does not know is the shell's.

    As IPython's DollarFormatter: ``$$name`` is a dollar sign; a name before an odd number of single quotes
    stays as it is.
    """
    out: list[TextPiece] = []
    end = counted = 0
    quotes = text.count("'")
    for found in _DOLLAR.finditer(text):
        quotes -= text.count("'", counted, found.end())
        counted = found.end()
        if quotes % 2:
            continue
        out += lines_of(text[end : found.start()], where)
        word = found[1]
        value = lines_of(word, where) if word.startswith("$") else variable(word)
        out += lines_of(f"${word}", where) if value is None else value
        end = found.end()
    return (*out, *lines_of(text[end:], where))


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise NotKnown from None


def _is_bound(ev: Evaluator, node: ast.expr) -> bool:
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return all(name in ev.names or name in ev.file.aliases or name in ("str", "int", "os") for name in names)
