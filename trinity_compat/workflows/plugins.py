"""The user's plugin folders, as trinity-rft has them: every Python file of a folder is run, and registers."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from trinity_compat.errors import RunError, UserError

VARIABLE = "TRINITY_PLUGIN_DIRS"  # upstream's


def folders(text: str) -> list[Path]:
    """Those of ``TRINITY_PLUGIN_DIRS``, joined as in PATH."""
    return [Path(part) for part in text.split(os.pathsep) if part]


def files_of(places: Sequence[Path]) -> Iterator[Path]:
    """The files that are run, in order of name. Raises UserError for a folder that is not there."""
    for place in places:
        if not place.is_dir():
            raise UserError(f"--plugin-dir {place}: no such folder")
        yield from sorted(file for file in place.glob("*.py") if not file.name.startswith("__"))


def registered_in(places: Sequence[Path]) -> set[str]:
    """Names that the files register, read without running them. Raises UserError for what is not Python."""
    return {name for file in files_of(places) for name in _names(file)}


def _names(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UserError(f"{file}:{line}: this plugin is not Python: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "register_module":
            keyword = [each.value for each in node.keywords if each.arg == "module_name"]
            for argument in [*node.args[:1], *keyword]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def load(places: Sequence[Path]) -> None:
    """Run every file, once for a process. Raises RunError with the file and what it raised."""
    for file in files_of(places):
        name = f"trinity_plugin_{file.stem}"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise RunError(f"the plugin {file} cannot be read")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise RunError(f"the plugin {file} failed: {type(error).__name__}: {error}") from error
