"""Differences of a script's own tree of veRL from the releases: its config files, keys that its code knows.

Code is read as text, never imported. A section with ``_target_`` becomes that class, so that it takes the
annotated names of the class and of its bases in the same package; fields that a metaclass or a function adds
are not found.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from trinity_compat.common.errors import Where
from trinity_compat.common.nested import leaves
from trinity_compat.common.readable_files import content
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.launch.model import Launch
from trinity_compat.verl_config.arguments import HydraFlags, LaunchArguments
from trinity_compat.verl_config.compose import Choices, CompositionError, defaults_list, merge_parts
from trinity_compat.verl_config.config_folders import (
    ConfigFolder,
    comment_at,
    readable_file,
    readable_folder,
    shown_below,
)
from trinity_compat.verl_config.config_search import SearchPath, search_path, user_keys
from trinity_compat.verl_config.model import EffectiveConfig, Fork, ForkKey, VersionChoice
from trinity_compat.verl_config.pinned import pinned_release
from trinity_compat.verl_config.releases import FLAVOURS, key_index
from trinity_compat.verl_config.upgrade import misfit_of, row_for
from trinity_compat.verl_config.yaml_files import ConfigFile

_Leaves = Mapping[str, object]
_DEPTH = 3  # verl/trainer/config


def compared(
    path: SearchPath, choices: Choices, module: str, version: str | None
) -> tuple[Fork | None, VersionChoice]:
    """Compare ``path``'s config files, with the launch's choices of config groups, with a release.

    With ``version``, or with the release that differs in the fewest keys; None where nothing differs. Raises
    UserError.
    """
    chosen = tuple((key, str(value)) for key, value in choices.overrides.items())
    parts = _parts(path, choices)
    own = dict(leaves(merge_parts(parts)))
    flavour = user_keys(path)[0] or FLAVOURS[0]
    of_release = partial(_of_release, module, path.primary, flavour, chosen)
    nearest = version or min(reversed(VERL_RELEASES), key=lambda release: _distance(own, of_release(release)))
    release = of_release(nearest)
    added = {key: _defined(key, parts) for key in own if key not in release}
    changed = {k: (own[k], release[k]) for k in own if k in release and not _same(own[k], release[k])}
    fork = Fork(
        folder=folder_of(path, parts),
        added=added,
        removed=tuple(key for key in release if key not in own),
        changed=changed,
        keys={key: place for key, place in added.items() if not _known(key, flavour)},
        misfits={k: _defined(k, parts) for k in (*added, *changed) if misfit_of(k, own[k], flavour)},
    )
    # `adds 12 keys, lacks 1, has 3 other defaults`.
    differences = [
        _counted("adds", len(fork.added), "key"),
        _counted("lacks", len(fork.removed), "key"),
        _counted("changes", len(fork.changed), "default"),
    ]
    if not (differs := ", ".join(filter(None, differences))):
        return None, VersionChoice(nearest, f"the config files in {fork.folder} are this release's")
    return fork, VersionChoice(nearest, f"nearest to the fork in {fork.folder}, which {differs}")


def folder_of(path: SearchPath, parts: Sequence[tuple[str, ConfigFile]] = ()) -> str:
    """Return the folder of a tree's config files as messages name it.

    Where only files of the user's own are used (``parts``), that of the last one.
    """
    if isinstance(path.tree, ConfigFolder):
        return path.tree.shown
    return str(Path(parts[-1][1].source).parent) if parts else ""


def _parts(path: SearchPath, choices: Choices) -> list[tuple[str, ConfigFile]]:
    """The files that give defaults; where the user's own stand for all, those."""
    try:
        parts = defaults_list(path.find, path.primary, choices)
    except CompositionError as error:
        error.where = error.where or path.where
        raise
    return [part for part in parts if not path.sets(part[1])] or parts


def _counted(what: str, number: int, noun: str) -> str:
    return f"{what} {number} {noun}{'s' * (number > 1)}" if number else ""


@lru_cache(maxsize=64)
def _of_release(
    module: str, primary: str, flavour: str, chosen: tuple[tuple[str, str], ...], release: str
) -> _Leaves:
    """Return the defaults of a release for the main ``module``.

    Of its config of that name, else of ``flavour``, with the config groups ``chosen`` where it has them.
    """
    launch = Launch(module, (), Where(module))
    path = search_path(launch, release, LaunchArguments(HydraFlags(), (), (), ()), Path("/nonexistent"))
    path.primary = primary if path.find(primary) else flavour
    for choices in (Choices(dict(chosen)), Choices()):
        try:
            return dict(leaves(merge_parts(defaults_list(path.find, path.primary, choices))))
        except CompositionError:
            continue
    return {}


def _distance(own: _Leaves, release: _Leaves) -> int:
    """Keys that one of the two lacks, and those whose defaults differ."""
    common = own.keys() & release.keys()
    differing = sum(not _same(own[key], release[key]) for key in common)
    return len(own) + len(release) - 2 * len(common) + differing


def _same(value: object, other: object) -> bool:
    # To Python True equals 1; a configuration that says one does not say the other.
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _defined(key: str, parts: list[tuple[str, ConfigFile]]) -> ForkKey:
    """The line that gives ``key`` its default, and the comment there."""
    for package, file in reversed(parts):
        inner = key.removeprefix(f"{package}.") if package else key
        if inner in file.lines and (not package or inner != key):
            return ForkKey(Where(file.source, file.lines[inner]), comment_at(file, file.lines[inner]))
    return ForkKey(Where(parts[-1][1].source))


def _known(key: str, flavour: str) -> bool:
    """Return whether some release has ``key``, or the pinned one a place for it."""
    index = key_index()
    return (
        any(key in index[name] for name in FLAVOURS)
        or row_for(key, flavour) is not None
        or pinned_release(flavour).takes(key) is True
    )


def sources_of(path: SearchPath) -> Sources | None:
    """The Python files that a tree's config files belong to; None for a release's."""
    tree = path.tree
    if not isinstance(tree, ConfigFolder) or len(tree.path.absolute().parents) < _DEPTH:
        return None
    return Sources(tree.path.absolute().parents[_DEPTH - 1], tree.root)


def with_keys_of_code(config: EffectiveConfig, sources: Sources, folder: str) -> EffectiveConfig:
    """Return ``config`` with the added (``+``) keys that the fork's code knows as the fork's own.

    The code knows a key as a field of a dataclass, or by a line that reads it. ``folder``: the tree's, for
    messages.
    """
    found = {}
    for key in config.unknown:
        section, _, name = key.rpartition(".")
        target = config.get(f"{section}._target_")
        place = sources.field(target, name) if isinstance(target, str) else sources.read_at(key)
        if place is not None:
            found[key] = place
    if not found:
        return config
    places = {config.settings[key].where for key in found}
    fork = config.fork or Fork(folder, {}, (), {}, {})
    return replace(
        config,
        fork=replace(fork, keys={**fork.keys, **found}),
        unknown=tuple(key for key in config.unknown if key not in found),
        diagnostics=tuple(
            d for d in config.diagnostics if d.code not in ("TP214", "TP215") or d.where not in places
        ),
    )


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
