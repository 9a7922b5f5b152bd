"""Jupyter notebooks: ``!command`` lines and ``%%bash`` cells are shell code, the rest is Python.

``{expression}`` and ``$name`` of Python in a ``!`` line are filled in, as IPython does.
"""

from __future__ import annotations

import ast
import json
import re
import string
from collections.abc import Iterator, Mapping

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch.bash.traced_text import lines_of
from trinity_compat.launch.python.evaluator import Evaluator
from trinity_compat.launch.python.script import bounded, parsed
from trinity_compat.launch.source_contents import Contents

_NOTE = (
    "a notebook: shell commands (!, %%bash) and calls of subprocess and os.system are read, with the values"
    " that names have in the cells before"
)
_SHELL_CELL = re.compile(r"%%(bash|sh|script bash)\b")
_FILE_CELL = re.compile(r"%%writefile\s+(?P<append>-a\s+)?(?P<file>\S+)")
_END = "__END_OF_CELL__"
_SHELL_LINE = "__shell_line__"  # the call that `!command` becomes
_ENVIRONMENT = re.compile(r"\s*%(?:env|set_env)\s+(\w+)(?:\s*=\s*|\s+)(.*)")
_DOLLAR = re.compile(r"\$(\$?[\w.]+)")
_FOLDER = re.compile(r"\s*%cd\s+(?:-q\s+)?(.+)")


def read(name: str, text: str, env: Mapping[str, str] | None = None) -> Contents:
    """Return the commands of a notebook, in the order of its cells; a place is ``x.ipynb[cell]:line``.

    Raises UserError for a file that is not a notebook.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"not a notebook: {error}", where=Where(name)) from None
    reader = Evaluator(name, env=env or {})
    with bounded(reader):
        cells = [
            (number, source, _code(source))
            for number, (kind, source) in enumerate(sources, 1)
            if kind == "code"
        ]
        for _, _, code in cells:
            if code is not None:
                reader.names.learn(code, reader.budget)
        for number, source, code in cells:
            reader.name = f"{name}[{number}]"
            if code is None:
                _record_shell(reader, source)
            else:
                reader.read_module(_ShellLines(reader).visit(code).body)
        reader.read_functions()
    return Contents(tuple(reader.commands), _NOTE, reader.stopped, reader.at)


def _code(source: str) -> ast.Module | None:
    """Return the Python of a cell; None where it is shell code, a file, or not Python as it stands.

    Its ``!`` lines and magics are calls of Python, each line where it was.
    """
    if _SHELL_CELL.match(source) or _FILE_CELL.match(source):
        return None
    lines, out = source.split("\n"), list[str]()
    for start, end in _blocks(lines):
        line = lines[start]
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith("!"):
            command = "\n".join([line.lstrip()[1:], *lines[start + 1 : end]])
            out += [f"{indent}{_SHELL_LINE}({command!r})", *[""] * (end - start - 1)]
        elif found := _ENVIRONMENT.match(line):
            out.append(f"{indent}os.environ[{found[1]!r}] = {found[2].strip()!r}")
        elif found := _FOLDER.match(line):
            out.append(f"{indent}os.chdir({found[1].strip()!r})")
        else:
            out.append(f"{indent}pass" if line.lstrip().startswith("%") else line)
    code = parsed("\n".join(out))
    return code if isinstance(code, ast.Module) else None


def _record_shell(reader: Evaluator, source: str) -> None:
    lines = source.split("\n")
    found = [("\n".join(lines[1:]), 2)]
    if written := _FILE_CELL.match(source):
        begin = f"cat {'>>' if written['append'] else '>'} {written['file']} <<'{_END}'"
        found = [("\n".join([begin, *lines[1:], _END, ""]), 1)]
    elif not _SHELL_CELL.match(source):
        found = [
            ("\n".join([lines[start].lstrip()[1:], *lines[start + 1 : end]]), start + 1)
            for start, end in _blocks(lines)
            if lines[start].lstrip().startswith("!")
        ]
    for code, line in found:
        reader.record(ast.Constant(code, lineno=line), code=lines_of(code, Where(reader.name, line)))


def _blocks(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield (first line, line after the last) of each ``!`` command, and of every other line."""
    at = 0
    while at < len(lines):
        end = at + 1
        if lines[at].lstrip().startswith("!"):
            while end < len(lines) and lines[end - 1].rstrip().endswith("\\"):
                end += 1
        yield at, end
        at = end


class _ShellLines(ast.NodeTransformer):
    """Makes a call of ``os.system`` of each ``!`` line, with an f-string where it names values of Python."""

    def __init__(self, reader: Evaluator) -> None:
        self.reader = reader

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace the call that a ``!`` line has become."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(code))]) if (
                name == _SHELL_LINE
            ):
                try:
                    filled = [
                        part for each in self._braces(code, node.lineno) for part in self._dollars(each)
                    ]
                except (SyntaxError, ValueError):  # IPython leaves the whole line as it is
                    filled = [ast.Constant(code, lineno=node.lineno)]
                system = ast.Attribute(ast.Name("os", ast.Load()), "system", ast.Load())
                return ast.copy_location(ast.Call(system, [ast.JoinedStr(filled)], []), node)
        return self.generic_visit(node)

    def _braces(self, code: str, line: int) -> Iterator[ast.expr]:
        """Fill in ``{expression}`` and ``{expression:format}``. Raises ValueError and SyntaxError."""
        for before, name, spec, conversion in string.Formatter().parse(code):
            self.reader.budget.step()
            yield ast.Constant(before, lineno=line)
            line += before.count("\n")
            if name is not None:
                value = self._expression(name, line)
                if value is None:
                    raise ValueError(name)
                spec_node = ast.JoinedStr([ast.Constant(spec)]) if spec else None
                yield ast.FormattedValue(value, ord(conversion) if conversion else -1, spec_node, lineno=line)

    def _dollars(self, part: ast.expr) -> Iterator[ast.expr]:
        """Fill in ``$name``; a name that nothing binds is the shell's.

        As IPython's DollarFormatter: ``$$name`` is a dollar sign; a name before an odd number of single
        quotes stays as it is.
        """
        if not isinstance(part, ast.Constant):
            yield part
            return
        text, line = str(part.value), part.lineno
        end = counted = 0
        quotes = text.count("'")
        for found in _DOLLAR.finditer(text):
            quotes -= text.count("'", counted, found.end())
            counted = found.end()
            value = None if quotes % 2 or found[1].startswith("$") else self._expression(found[1], line)
            if quotes % 2 or (value is None and not found[1].startswith("$")):
                continue
            yield ast.Constant(text[end : found.start()], lineno=line)
            line += text.count("\n", end, found.end())
            yield (
                ast.Constant(found[1], lineno=line)
                if value is None
                else ast.FormattedValue(value, -1, None, lineno=line)
            )
            end = found.end()
        yield ast.Constant(text[end:], lineno=line)

    def _expression(self, text: str, line: int) -> ast.expr | None:
        """Return an expression; None where it names what nothing binds. Raises SyntaxError and ValueError."""
        value = ast.parse(text.strip(), mode="eval").body
        names = [part.id for part in ast.walk(value) if isinstance(part, ast.Name)]
        ast.increment_lineno(value, line - 1)
        return value if all(name in self.reader.names.bound for name in names) else None
