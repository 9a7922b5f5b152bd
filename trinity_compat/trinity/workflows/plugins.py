"""The user's plugin folders, as trinity-rft has them: every Python file of a folder is run, and registers.

Classes of installed distributions (``common.plugin_packages``) are registered beside them, those alone that
a run names.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from trinity_compat.common import plugin_packages
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.plugin_packages import Kind

VARIABLE = "TRINITY_PLUGIN_DIRS"  # upstream's


def folders(text: str) -> list[Path]:
    """Folders of ``TRINITY_PLUGIN_DIRS``, joined as in PATH."""
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


def _parsed(file: Path, called: str) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UserError(f"{file}:{line}: {called} is not Python: {error}") from error


def _names(file: Path) -> Iterator[str]:
    tree = _parsed(file, "this plugin")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "register_module":
            keyword = [each.value for each in node.keywords if each.arg == "module_name"]
            for argument in [*node.args[:1], *keyword]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def check_dotted(name: str, where: str, cwd: Path) -> bool:
    """Return whether ``name`` is the dotted path of a class that the run's processes can import.

    The class is in a file below ``cwd``, which is read and not run, or in an installed package. Raises
    UserError for a missing file, one without this name, or one that is not Python.
    """
    module, _, attribute = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        return False
    path = cwd.joinpath(*module.split("."))
    found = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
    if found is None:
        top = module.partition(".")[0]
        if top == "trinity":
            return False
        if (cwd / top).is_dir() or importlib.util.find_spec(top) is None:
            raise UserError(
                f"{where}={name}: {path}.py does not exist",
                hint=f"start the run in the folder that holds {top}: classes are imported from there",
            )
        return True
    if attribute not in _top_level(_parsed(found, "this file")):
        raise UserError(f"{where}={name}: {found} has no {attribute}", hint="name a class of that file")
    return True


def _top_level(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


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


# The registry of each kind, trinity-rft's or its stub.
_REGISTRIES: Mapping[Kind, tuple[str, str]] = {
    "workflow": ("trinity.common.workflows", "WORKFLOWS"),
    "reward": ("trinity.common.rewards", "REWARD_FUNCTIONS"),
    "operator": ("trinity.buffer.operators", "EXPERIENCE_OPERATORS"),
}
_registered: set[tuple[Kind, str]] = set()


def register(kind: Kind, names: Iterable[str | None], *, known: Collection[str] = ()) -> None:
    """Register the classes that installed plugins have under ``names``, once for a process.

    ``known``: names of this package. After ``load``, so that a name that a folder has too is found. Raises
    UserError for a plugin that is unfit.
    """
    for name in {name for name in names if name and name not in known}:
        plugin = plugin_packages.find(kind, name)
        if plugin is None or (kind, name) in _registered:
            continue
        module, attribute = _REGISTRIES[kind]
        registry = getattr(importlib.import_module(module), attribute)
        if name in getattr(registry, "modules", {}):
            raise UserError(
                f"{plugin.title} cannot be used: a file of --plugin-dir registers that name too",
                hint=f"rename it there, or pip uninstall {plugin.distribution}",
            )
        registry.register_module(name)(plugin_packages.load(plugin))
        _registered.add((kind, name))
