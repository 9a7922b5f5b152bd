"""Refusal of dataset classes (``data.custom_cls``) with an ``on_batch_end`` method.

veRL's trainer calls the method after each step (``fit`` in trainer/ppo/ray_trainer.py, 0.9.1), so that the
rows to come depend on the batches trained. The explorer reads rows before those steps are trained.
"""

from __future__ import annotations

import ast
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at
from trinity_compat.common.paths import from_home

METHOD = "on_batch_end"


def check_source(verl: Tree, *, cwd: Path) -> None:
    """Raise UserError where the text of the class in ``data.custom_cls.path`` defines the method.

    The file is parsed, not imported. A method inherited from another class is found by ``check_instance``.
    """
    custom = section_at(verl, "data.custom_cls")
    path, name = str(custom.get("path") or ""), custom.get("name")
    if not path or "://" in path or path.startswith("pkg:"):
        return
    file = cwd / from_home(path)
    try:
        tree = ast.parse(file.read_bytes())  # bytes: the first line may name an encoding
    except (OSError, SyntaxError, ValueError, RuntimeError, MemoryError):
        return  # the import of the class reports it
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    for definition in classes:
        for node in definition.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == METHOD:
                raise _refusal(definition.name, f"{METHOD} ({file}:{node.lineno})")


def check_instance(dataset: object) -> None:
    """Raise UserError where an opened dataset has the method."""
    if hasattr(dataset, METHOD):
        raise _refusal(type(dataset).__name__, METHOD)


def _refusal(name: str, method: str) -> UserError:
    return UserError(
        f"data.custom_cls.name={name}: its method {method} changes the rows after each trained step, which a"
        " run with a separate explorer does not support",
        hint=f"remove {METHOD} from the class, or train with veRL itself (python3 -m verl.trainer.main_ppo)",
    )
