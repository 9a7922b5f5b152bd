"""Python files that start a training main through ``subprocess`` or ``os.system``, or are started by Hydra.

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
from trinity_compat.launch.python import statements
from trinity_compat.launch.python.evaluator import ENVIRON, Evaluator, File
from trinity_compat.launch.python.hydra_main import hydra_mains
from trinity_compat.launch.python.values import Item, Known, Table, shown
from trinity_compat.launch.source_contents import Contents, SourceCommand

_NOTE = "a Python file: calls of subprocess and os.system are read, nothing is executed"
_MAIN = "a Python file that Hydra starts{}: read as `python3 {} ARGUMENTS`, whose arguments stand after --"
_COMPOSED = "a Python file that composes its configuration itself (compose({})): the rest is in its code"
_DEFAULTS = "; options of its own that are not given after -- have their defaults: {}"
_MODULES = ("subprocess", "os", "os.path", "sys", "shlex", "pathlib", "argparse")


def read(name: str, text: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Contents:
    """Return the commands that a Python file starts; a file that Hydra starts is itself one, with ``args``.

    Raises UserError for a file that is not Python.
    """
    code = _parsed(text)
    if isinstance(code, Exception):
        line = getattr(code, "lineno", None) or 0
        raise UserError(f"not a Python file: {getattr(code, 'msg', code)}", where=Where(name, line))
    file = session(name, args, env)
    with bounded(file):
        run(file, names_of(name), code)
    with bounded(file):
        return _contents(file, name, text, args, code)
    return Contents(tuple(file.commands), _NOTE, file.stopped, file.at)


def _contents(file: File, name: str, text: str, args: Sequence[str], code: ast.Module) -> Contents:
    """Return the commands of a file that has been read, or the one command that it is under Hydra."""
    commands = tuple(file.commands)
    if main := next(hydra_mains(text), None):
        place = Where(name, main.line)
        started = SourceCommand(place, words=tuple(literal(word, place) for word in ("python3", name, *args)))
        named = f" with its configuration {main.shown}" if main.shown else ""
        return Contents((*commands, started), _MAIN.format(named, posixpath.basename(name)))
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and _dotted(node.func) in ("compose", "hydra.compose"):
            return Contents((*commands, _composed(node, name, file)), _COMPOSED.format(_shown(node)))
    taken = _DEFAULTS.format(", ".join(dict.fromkeys(file.defaults))) if file.defaults and commands else ""
    return Contents(commands, _NOTE + taken, file.stopped, file.at)


def session(name: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> File:
    """Return the state before the first statement."""
    return File(name, args=args, env=env or {}, invoke=statements.invoke)


def names_of(name: str) -> dict[str, Item]:
    """Return the names that a file has from the start."""
    start = Where(name, 0)
    return {
        "__name__": Known("__main__", start),
        "__file__": Known(name, start),
        ENVIRON: Table({}, environment=True),
    }


def run(file: File, names: dict[str, Item], code: ast.Module) -> None:
    """Read a module, or a cell with the names of those before it."""
    file.aliases |= _aliases(code)
    declared = [node.names for node in ast.walk(code) if isinstance(node, ast.Global | ast.Nonlocal)]
    file.shared |= {name for each in declared for name in each}
    statements.run_module(file, names, code.body)


@contextmanager
def bounded(file: File) -> Iterator[None]:
    """Bound what reading may cost; beyond it, the commands found so far are kept."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    try:
        yield
    except BudgetExceeded as error:
        file.stopped = f"reading stopped: {error}"
    except RecursionError:
        file.stopped = "reading stopped: nested too deeply"
    finally:
        sys.setrecursionlimit(limit)


def _parsed(text: str) -> ast.Module | Exception:
    """Return the tree, or the error that prevents one."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error


def cell_of(text: str) -> ast.Module | None:
    """Return the tree of a cell; None where it is not Python."""
    code = _parsed(text)
    return code if isinstance(code, ast.Module) else None


def _shown(call: ast.Call) -> str:
    name = next((word for word in call.keywords if word.arg == "config_name"), None)
    return shown(name) if name else "…"


def _dotted(node: ast.expr) -> str:
    """Return the name that a call has: ``compose``, ``hydra.compose``; "" for others."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _composed(call: ast.Call, name: str, file: File) -> SourceCommand:
    """Return the command line that ``compose(config_name=…, overrides=[…])`` stands for."""
    place = Where(name, call.lineno)
    own = session(name)
    own.budget = file.budget
    ev = Evaluator(own, names_of(name))
    given = {word.arg: word.value for word in call.keywords}
    words = [literal("python3", place), literal(name, place)]
    if (config := given.get("config_name")) is not None:
        words += [literal("--config-name", place), ev.text(config)]
    overrides = given.get("overrides", ast.List(elts=[]))
    return SourceCommand(place, words=(*words, *ev.words(overrides)))


def _aliases(code: ast.Module) -> dict[str, str]:
    """Return the full names of imported ones: ``run`` → ``subprocess.run``."""
    found: dict[str, str] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            found |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
        elif isinstance(node, ast.Import):
            found |= {item.asname: item.name for item in node.names if item.asname}
    return found
