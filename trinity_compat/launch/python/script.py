"""Python files that start a training main through ``subprocess`` or ``os``, or are started by Hydra.

They are parsed with ``ast``; nothing is executed or imported. A value that is not computed stays open under
its own text.
"""

from __future__ import annotations

import ast
import posixpath
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.limits import RECURSION, BudgetExceeded
from trinity_compat.launch.bash.traced_text import literal
from trinity_compat.launch.python.evaluator import Evaluator, shown
from trinity_compat.launch.python.hydra_main import hydra_mains
from trinity_compat.launch.source_contents import Contents, SourceCommand

_NOTE = "a Python file: calls of subprocess and os.system are read, nothing is executed"
_MAIN = "a Python file that Hydra starts{}: read as `python3 {} ARGUMENTS`, whose arguments stand after --"
_COMPOSED = "a Python file that composes its configuration itself (compose({})): its code is not read"


def read(name: str, text: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Contents:
    """Return the commands that a Python file starts; a file that Hydra starts is itself one, with ``args``.

    Raises UserError for a file that is not Python.
    """
    code = parsed(text)
    if isinstance(code, Exception):
        line = getattr(code, "lineno", None) or 0
        raise UserError(f"not a Python file: {getattr(code, 'msg', code)}", where=Where(name, line))
    reader = Evaluator(name, args, env or {})
    with bounded(reader):
        reader.names.learn(code, reader.budget)
        reader.read_module(code.body)
        reader.read_functions()
    with bounded(reader):
        return _contents(reader, name, text, args, code)
    return Contents(tuple(reader.commands), _NOTE, reader.stopped, reader.at)


def _contents(reader: Evaluator, name: str, text: str, args: Sequence[str], code: ast.Module) -> Contents:
    """Return the commands of a file that has been read, or the one command that it is under Hydra."""
    commands = tuple(reader.commands)
    if main := next(hydra_mains(text), None):
        place = Where(name, main.line)
        started = SourceCommand(place, words=tuple(literal(word, place) for word in ("python3", name, *args)))
        named = f" with its configuration {main.shown}" if main.shown else ""
        return Contents((*commands, started), _MAIN.format(named, posixpath.basename(name)))
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and reader.names.dotted(node.func) in ("compose", "hydra.compose"):
            given = {word.arg: word.value for word in node.keywords}
            config = given.get("config_name")
            note = _COMPOSED.format(f"config_name={shown(config)}" if config else "…")
            return Contents((*commands, _composed(node, name, reader)), note)
    return Contents(commands, _NOTE, reader.stopped, reader.at)


@contextmanager
def bounded(reader: Evaluator) -> Iterator[None]:
    """Bound what reading may cost; beyond it, the commands found so far are kept."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    try:
        yield
    except BudgetExceeded as error:
        reader.stopped = f"reading stopped: {error}"
    except RecursionError:
        reader.stopped = "reading stopped: nested too deeply"
    finally:
        sys.setrecursionlimit(limit)


def parsed(text: str) -> ast.Module | Exception:
    """Return the tree, or the error that prevents one."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error


def _composed(call: ast.Call, name: str, reader: Evaluator) -> SourceCommand:
    """Return the command line that ``compose(config_name=…, overrides=[…])`` stands for."""
    place = Where(name, call.lineno)
    alone = Evaluator(name, budget=reader.budget)
    given = {word.arg: word.value for word in call.keywords}
    words = [literal("python3", place), literal(name, place)]
    if (config := given.get("config_name")) is not None:
        words += [literal("--config-name", place), alone.text(config)]
    return SourceCommand(place, words=(*words, *alone.words(given.get("overrides", ast.List(elts=[])))))
