"""Dataset classes of the user's (``data.custom_cls``) that change while they are trained on.

veRL's trainer calls their ``on_batch_end`` after each step (``fit`` in trainer/ppo/ray_trainer.py, 0.9.1).
The explorer draws tasks in a process of its own, and makes a lost one again from its number alone: out of
such data it would be another. Nothing of torch or veRL is imported here.
"""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

from trinity_compat.containers import Tree, section_at
from trinity_compat.errors import UserError, Where

_CHANGES = "on_batch_end"


def check_text(verl: Tree, *, cwd: Path) -> None:
    """Raises UserError with the line of the method where the class's own text has it."""
    custom = section_at(verl, "data.custom_cls")
    path, name = str(custom.get("path") or ""), custom.get("name")
    if not path or "://" in path or path.startswith("pkg:"):
        return
    file = cwd / Path(path).expanduser()
    with contextlib.suppress(OSError, SyntaxError, UnicodeDecodeError):  # who loads it says what is wrong
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and node.name == name:
                _check_methods(node, file)


def _check_methods(kind: ast.ClassDef, file: Path) -> None:
    for part in kind.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name == _CHANGES:
            raise _changing(kind.name, Where(str(file), part.lineno))


def check(dataset: object) -> None:
    """The same of a dataset that has been opened, whose class may have the method from another. Raises
    UserError."""
    if hasattr(dataset, _CHANGES):
        raise _changing(type(dataset).__name__)


def _changing(kind: str, where: Where | None = None) -> UserError:
    return UserError(
        f"data.custom_cls.name={kind}: its {_CHANGES} changes the data by what was trained, and the explorer"
        " draws them in a process of its own, each task by its number alone",
        where=where,
        hint=f"leave {_CHANGES} out, or run on stock veRL; a curriculum can be several runs in turn",
    )
