"""The dataclasses that a tree of veRL's code makes of its sections (0.6 and later), as far as text tells.

A section with ``_target_`` becomes that class, so that it takes the class's fields and no others, whether its
YAML lists them or not. Classes are read from the source, never imported: annotated names of a class and of
its bases that the same package defines. What a metaclass or a function adds is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trinity_compat.errors import Where
from trinity_compat.verl_config.folders import readable_file, readable_folder, shown_below
from trinity_compat.verl_config.model import ForkKey

_LARGEST_FILE = 1_000_000  # bytes
_Classes = Mapping[str, tuple[tuple[str, ...], Mapping[str, ForkKey]]]  # name → bases, fields


@dataclass(frozen=True, slots=True)
class Sources:
    """``base`` is where the tree's Python files are imported from; nothing outside ``root`` is read."""

    base: Path
    root: Path

    def field(self, target: str, name: str) -> ForkKey | None:
        """Where the class ``target`` (``verl.workers.config.FSDPActorConfig``), or a base of its, has the
        field ``name``; None where that can't be read."""
        module, _, wanted = target.rpartition(".")
        classes: dict[str, tuple[tuple[str, ...], Mapping[str, ForkKey]]] = {}
        for file in self._files(module):
            classes |= _classes(file, shown_below(file, self.root), file.stat().st_mtime_ns)
        return _field(classes, wanted, name)

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


@lru_cache(maxsize=256)
def _classes(file: Path, shown: str, changed_at: int) -> _Classes:
    """The classes that a file defines at its top. Empty for one that can't be parsed."""
    try:
        text = file.read_text(encoding="utf-8") if file.stat().st_size <= _LARGEST_FILE else ""
        body = ast.parse(text).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    found = {}
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
