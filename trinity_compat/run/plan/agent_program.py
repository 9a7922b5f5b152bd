"""``workflow_args`` of the workflow ``agent_program``: which program of the user's asks the model."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Mapping
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.paths import from_home
from trinity_compat.common.suggestions import nearest, question

_KNOWN = ("function", "command", "places")
_WANTED = "write function: FILE.py:NAME, or command: [program, argument, …]"


def program_arguments(given: Mapping[str, object], where: str, cwd: Path) -> dict[str, object]:
    """Return the explorer's arguments for the program, with paths resolved from ``cwd``.

    Raises UserError. Reads the file of a function, and runs nothing of it.
    """
    for name in given:
        if name not in _KNOWN:
            raise UserError(f"{where}.{name}: agent_program does not take this argument", hint=_hint(name))
    function, command = given.get("function"), given.get("command")
    if bool(function) == bool(command):
        raise UserError(f"{where}: agent_program runs a function or a command", hint=_WANTED)
    places = given.get("places", 1)
    if isinstance(places, bool) or not isinstance(places, int) or places < 1:
        raise UserError(f"{where}.places is {places!r}: write how many agents may run at a time, 1 or more")
    found = (
        {"function": _function(function, where, cwd)}
        if function
        else {"command": _command(command, where, cwd)}
    )
    return {**{name: given[name] for name in given if name == "places"}, **found, "directory": str(cwd)}


def _hint(name: str) -> str:
    return question(nearest(name, _KNOWN)) or _WANTED


def _function(said: object, where: str, cwd: Path) -> str:
    file, _, name = str(said).rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise UserError(f"{where}.function is {said!r}", hint="write FILE.py:NAME")
    path = cwd / from_home(file)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{where}.function: {path} cannot be read ({error.strerror})") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UserError(f"{where}.function: not Python: {error}", where=Where(str(path), line)) from error
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if name not in functions:
        has = question(nearest(name, functions)) or f"it has {', '.join(functions) or 'none'}"
        raise UserError(f"{where}.function: {path} has no function {name}", hint=has)
    return f"{path.resolve()}:{name}"


def _command(said: object, where: str, cwd: Path) -> list[str]:
    if not isinstance(said, list) or not all(isinstance(word, str) for word in said):
        raise UserError(f"{where}.command is {said!r}", hint="write a list of words: [python, agent.py]")
    if not shutil.which(said[0]) and not (cwd / said[0]).is_file():
        raise UserError(f"{where}.command: the program {said[0]!r} does not exist")
    return list(said)
