"""Programs in Python that start a training main: calls of ``subprocess`` and ``os.system``.

Read by ``ast``, nothing is executed or imported. What isn't written out (an argument of a function that
nobody calls, the result of a call) stays open under its own text.
"""

from __future__ import annotations

import ast
import posixpath
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch.bash.limits import RECURSION, BudgetExceeded
from trinity_compat.launch.bash.traced_text import literal
from trinity_compat.launch.python import calls, statements
from trinity_compat.launch.python.evaluator import Evaluator, File
from trinity_compat.launch.python.hydra_main import hydra_mains
from trinity_compat.launch.python.items import Item, Known
from trinity_compat.launch.source_contents import Contents, SourceCommand

_NOTE = "a Python file: calls of subprocess and os.system are read, nothing is executed"
_MAIN = "a Python file that Hydra starts{}: read as `python3 {} ARGUMENTS`, whose arguments stand after --"
_COMPOSED = "a Python file that composes its configuration itself (compose({})): the rest is in its code"
_DEFAULTS = "; options of its own that are not given after -- have their defaults: {}"
_MODULES = ("subprocess", "os", "sys", "shlex", "pathlib", "argparse", "dataclasses", "types", "copy")


def read(name: str, text: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Contents:
    """What a Python file starts; one that Hydra starts is itself started with ``args``.

    Raises UserError for what isn't Python.
    """
    code = _parsed(text)
    if isinstance(code, Exception):
        line = getattr(code, "lineno", None) or 0
        told = getattr(code, "msg", str(code))
        raise UserError(f"not a Python file: {told}", where=Where(name, line))
    file = session(name, args, env)
    with bounded(file):
        run(file, names_of(name), code)
    commands = tuple(file.commands)
    if main := next(hydra_mains(text), None):
        place = Where(name, main.line)
        started = SourceCommand(place, words=tuple(literal(word, place) for word in ("python3", name, *args)))
        named = f" with its configuration {main.shown}" if main.shown else ""
        return Contents((*commands, started), _MAIN.format(named, posixpath.basename(name)))
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and _name(node.func) in ("compose", "hydra.compose"):
            started = _composed(node, name)
            return Contents((*commands, started), _COMPOSED.format(_shown(node)))
    taken = _DEFAULTS.format(", ".join(dict.fromkeys(file.defaults))) if file.defaults and commands else ""
    return Contents(commands, _NOTE + taken, told_of(file), file.stopped)


def session(name: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> File:
    """What is known before the first statement."""
    return File(name, args=args, env=env or {}, run=statements.run_function)


def told_of(file: File) -> tuple[tuple[Where, str], ...]:
    """The guesses that stand before a command, once each: later ones change nothing that is started."""
    return tuple(dict.fromkeys(file.guesses[: file.guesses_before_last]))


def names_of(name: str) -> dict[str, Item]:
    """The names that a file has from the start."""
    return {"__name__": Known("__main__", Where(name, 0)), "__file__": Known(name, Where(name, 0))}


def run(file: File, names: dict[str, Item], code: ast.Module) -> None:
    """Go through a module, or a cell with the names of those before it."""
    file.aliases.update(_aliases(code))
    statements.run_module(file, names, code.body)


@contextmanager
def bounded(file: File) -> Iterator[None]:
    """What code may cost; beyond it, what it started so far is kept."""
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
    """The tree, or why there is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error


def cell_of(text: str) -> ast.Module | None:
    """The tree of a cell; None where it isn't Python."""
    code = _parsed(text)
    return code if isinstance(code, ast.Module) else None


def _shown(call: ast.Call) -> str:
    name = next((word for word in call.keywords if word.arg == "config_name"), None)
    return ast.unparse(name) if name else "…"


def _composed(call: ast.Call, name: str) -> SourceCommand:
    """What ``compose(config_name=…, overrides=[…])`` stands for on a command line."""
    place = Where(name, call.lineno)
    ev = Evaluator(session(name), {}, calls.called)
    given = {word.arg: word.value for word in call.keywords}
    words = [literal("python3", place), literal(name, place)]
    if (config := given.get("config_name")) is not None:
        words += [literal("--config-name", place), ev.text(config)]
    overrides = given.get("overrides", ast.List(elts=[]))
    return SourceCommand(place, words=(*words, *calls.words_of(ev, overrides)))


def _name(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _aliases(code: ast.Module) -> dict[str, str]:
    """What imported names mean: ``run`` → ``subprocess.run``."""
    found: dict[str, str] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module in (*_MODULES, "os.path"):
            found |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
        elif isinstance(node, ast.Import):
            found |= {item.asname: item.name for item in node.names if item.asname}
    return found
