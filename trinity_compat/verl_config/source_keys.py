"""Keys that a tree of veRL's code defines or reads, found in its text.

A section with ``_target_`` becomes that class, so that it takes the class's fields and no others. Classes are
read from the source, never imported: annotated names of a class and of its bases in the same package. Fields
that a metaclass or a function adds are not found.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trinity_compat.common.errors import Where
from trinity_compat.common.readable_files import content
from trinity_compat.verl_config.config_folders import readable_file, readable_folder, shown_below
from trinity_compat.verl_config.model import ForkKey

_LARGEST_FILE = 1_000_000  # bytes
_MOST_FILES = 3_000  # veRL 0.9.1 has 700
_LONG_NAME = 9  # letters of a name that is not everybody's
_Classes = Mapping[str, tuple[tuple[str, ...], Mapping[str, ForkKey]]]  # name → bases, fields


@dataclass(frozen=True, slots=True)
class Sources:
    """``base`` is where the tree's Python files are imported from; nothing outside ``root`` is read."""

    base: Path
    root: Path

    def field(self, target: str, name: str) -> ForkKey | None:
        """Return the place of the field ``name`` of the class ``target`` or of its bases.

        ``target``: such as ``verl.workers.config.FSDPActorConfig``. None where the field cannot be found.
        """
        module, _, wanted = target.rpartition(".")
        classes: dict[str, tuple[tuple[str, ...], Mapping[str, ForkKey]]] = {}
        for file in self._files(module):
            classes |= _classes(file, self.root, file.stat().st_mtime_ns)
        return _field(classes, wanted, name)

    def read_at(self, key: str) -> ForkKey | None:
        """Return the first line of the tree's code that reads ``key``, or None.

        A line reads a key if its name stands there as an attribute or a text, for a short name (``mode``)
        with the name of its section.
        """
        section, _, name = key.rpartition(".")
        section = section.rpartition(".")[2]
        reads = re.compile(rf"""\.{re.escape(name)}\b|["']{re.escape(name)}["']""")
        short = len(name) < _LONG_NAME and "_" not in name
        for file in self._package():
            for number, line in enumerate(_lines(file, self.root, file.stat().st_mtime_ns), 1):
                if reads.search(line) and not (short and section not in line):
                    return ForkKey(Where(shown_below(file, self.root), number), line.strip())
        return None

    def _package(self) -> Iterator[Path]:
        """Python files of the tree's ``verl`` and of the recipes beside it, at most ``_MOST_FILES``."""
        folders = [
            self.base / name for name in ("verl", "recipe") if readable_folder(self.base / name, self.root)
        ]
        found = (path for folder in folders for path in sorted(folder.rglob("*.py")))
        return itertools.islice((path for path in found if readable_file(path, self.root)), _MOST_FILES)

    def _files(self, module: str) -> Iterator[Path]:
        """The module's file, or those of the package, which may define what its __init__ hands on."""
        path = self.base.joinpath(*module.split("."))
        if readable_file(path.with_suffix(".py"), self.root):
            yield path.with_suffix(".py")
        elif module and readable_folder(path, self.root):
            yield from (file for file in sorted(path.glob("*.py")) if readable_file(file, self.root))


def _field(classes: _Classes, wanted: str, name: str) -> ForkKey | None:
    pending, seen = [wanted], set()
    while pending:
        current = pending.pop(0)
        if current in seen or current not in classes:
            continue
        seen.add(current)
        bases, fields = classes[current]
        if name in fields:
            return fields[name]
        pending += bases
    return None


@lru_cache(maxsize=_MOST_FILES)
def _lines(file: Path, root: Path, changed_at: int) -> tuple[str, ...]:
    try:
        return tuple(content(file, (root,), _LARGEST_FILE).decode(errors="replace").splitlines())
    except OSError:
        return ()


@lru_cache(maxsize=256)
def _classes(file: Path, root: Path, changed_at: int) -> _Classes:
    """The classes that a file defines at its top. Empty for one that can't be parsed."""
    try:
        body = ast.parse(content(file, (root,), _LARGEST_FILE).decode()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    found, shown = {}, shown_below(file, root)
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
            fields = {
                line.target.id: ForkKey(Where(shown, line.lineno))
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            }
            found[node.name] = (bases, fields)
    return found
