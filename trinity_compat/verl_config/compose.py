"""Hydra's defaults list: the config files of a configuration, in the order in which they merge.

Follows hydra 1.3's ``_internal/defaults_list.py`` and ``core/default_element.py`` for the config trees of
veRL and its users: groups with a package, relative paths, ``override``, ``optional``, ``_self_``,
interpolated choices, options lists.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.limits import DEPTH, KEYS, LEVELS
from trinity_compat.common.nested import put
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS, MODEL_ENGINE, Find, Tree
from trinity_compat.verl_config.yaml_files import ConfigFile, merge

_MOST_FILES = 1_000  # a configuration of veRL's has some thirty
_CHOICE_REF = re.compile(r"\$\{([^}]+)\}")


class CompositionError(UserError):
    """Hydra would refuse to compose this configuration."""


@dataclass
class Choices:
    """The config groups that a launch picks: ``overrides`` replace, ``appended`` add, ``deleted`` drop."""

    overrides: dict[str, object] = field(default_factory=dict)
    appended: list[tuple[str, str | None, object]] = field(default_factory=list)  # group, package, value
    deleted: dict[str, str | None] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    known: dict[str, object] = field(default_factory=dict)
    files: int = 0  # that the defaults lists have named so far
    level: int = 0  # of the file that is expanded
    place: Where | None = None  # of the defaults list that was read last


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of a defaults list, placed: ``path`` is absolute, ``package`` final."""

    path: str | None  # None: a group set to null
    package: str
    key: str | None = None  # the group's override key; None for a plain config
    optional: bool = False


def compose(find: Find, primary: str, choices: Choices) -> dict[str, object]:
    """Merge ``primary`` and all that its defaults list names, in Hydra's order.

    Raises CompositionError (a UserError) with Hydra's reason: a file that isn't there, a group
    override without a match, ….
    """
    return merge_parts(defaults_list(find, primary, choices))


def composed_as(tree: Tree, flavour: str, groups: Iterable[tuple[str, str]] = ()) -> dict[str, object]:
    """Return the defaults of ``flavour`` in a release's tree; empty where that release lacks it.

    ``groups``: choices of config groups, of which the release's own count.
    """
    engine = ENGINE_FLAVOURS.get(flavour)
    primary = "ppo_trainer" if engine else flavour
    if not tree.find(primary) or (engine and not tree.find(f"{MODEL_ENGINE}/{engine}")):
        return {}
    chosen: dict[str, object] = {MODEL_ENGINE: engine} if engine else {}
    chosen |= {group: name for group, name in groups if tree.find(f"{group}/{name}")}
    return compose(tree.find, primary, Choices(chosen))


def defaults_list(find: Find, primary: str, choices: Choices) -> list[tuple[str, ConfigFile]]:
    """The final defaults list: (package, file), later ones over earlier ones. Raises like compose."""
    parts = _expand(find, _Entry(primary, ""), choices, root=True)
    for key, value in choices.overrides.items():
        if key not in choices.used and key not in choices.known:
            group = key.split("@")[0]
            near = sorted(known for known in choices.known if known.split("@")[0] == group)
            hint = f"write {near[0]}={value}" if near else f"append it: +{key}={value}"
            raise CompositionError(f"Could not override '{key}': no match in the defaults list", hint=hint)
    for key in choices.deleted:
        if "~" + key not in choices.used:
            raise CompositionError(f"Could not delete '{key}': no match in the defaults list")
    return parts


def merge_parts(parts: list[tuple[str, ConfigFile]]) -> dict[str, object]:
    """The configuration of a defaults list, without Hydra's own node."""
    config: dict[str, object] = {}
    keys = 0
    for package, file in parts:
        keys += _count(file.config) + package.count(".")
        if keys > 4 * KEYS:
            raise CompositionError(
                f"the files of the defaults list have more than {4 * KEYS} keys", where=Where(file.source)
            )
        config = merge(config, _at_package(package, file))
    config.pop("hydra", None)
    return config


def _count(tree: Mapping[str, object]) -> int:
    return len(tree) + sum(_count(value) for value in tree.values() if isinstance(value, Mapping))


def _at_package(package: str, file: ConfigFile) -> Mapping[str, object]:
    """Return the content of a file below its package.

    Raises CompositionError for a list outside of a group.
    """
    if not package and file.items is not None:
        raise CompositionError(
            "a configuration file must be a mapping of keys, not a list",
            where=Where(file.source),
            hint="a config group can be a list: name the file by its group (group: option)",
        )
    if not package:
        return file.config
    if package.count(".") > LEVELS:
        raise CompositionError(
            f"the package of a file has more than {LEVELS} parts", where=Where(file.source)
        )
    nested: dict[str, object] = {}
    put(nested, package, file.config if file.items is None else list(file.items))
    return nested


def _expand(
    find: Find, entry: _Entry, choices: Choices, *, root: bool = False
) -> list[tuple[str, ConfigFile]]:
    """The (package, file) pairs of ``entry`` and its defaults, in the order of merging."""
    if entry.path is None:
        return []
    file = find(entry.path)
    if file is None:
        if entry.optional:
            return []
        raise _not_found(entry)
    choices.files += 1
    choices.level += 1
    _check_size(choices, file)
    lines = list(file.defaults)
    if "_self_" not in lines:  # where the file doesn't say, it comes last (Hydra ≥ 1.1)
        lines.append("_self_")
    if root:
        lines += [
            {f"{group}@{package}" if package else group: value} for group, package, value in choices.appended
        ]
    _note_overrides(lines, entry, choices)
    slots: dict[int, list[tuple[str, ConfigFile]]] = {}
    late = []
    for position in reversed(range(len(lines))):
        line = lines[position]
        if line == "_self_":
            slots[position] = [(entry.package, file)]
        elif not _is_override(line):
            # It refers to the choice of another group, which may stand further down: that one comes first.
            if "${" in str(_value_of(line, entry, choices)):
                late.append(position)
            else:
                slots[position] = _expand_line(find, line, entry, choices)
    for position in late:
        slots[position] = _expand_line(find, lines[position], entry, choices)
    choices.level -= 1
    return [pair for position in sorted(slots) for pair in slots[position]]


def _check_size(choices: Choices, file: ConfigFile) -> None:
    """Raise CompositionError where files name each other without end, or too many of them."""
    if file.defaults and file.source:
        choices.place = Where(file.source, file.lines.get("defaults", 0))
    if choices.level <= DEPTH and choices.files <= _MOST_FILES:
        return
    if choices.level > DEPTH:
        raise CompositionError(
            f"the defaults lists name each other more than {DEPTH} files deep",
            where=choices.place,
            hint="a file that includes itself, directly or through another, never ends",
        )
    raise CompositionError(f"the defaults lists name more than {_MOST_FILES} files", where=choices.place)


def _is_override(line: object) -> bool:
    return isinstance(line, Mapping) and str(next(iter(line))).split(" ")[0] == "override"


def _note_overrides(lines: list[Any], parent: _Entry, choices: Choices) -> None:
    """``override group: x`` lines; the outermost file (and the command line before it) wins."""
    for line in lines:
        if _is_override(line):
            key = _place(line, parent)[0]
            if key not in choices.overrides:
                choices.overrides[key] = next(iter(line.values()))


def _words(line: object) -> tuple[str, str | None, object, bool]:
    """(group or path, package, value, optional) of a defaults line."""
    if isinstance(line, Mapping):
        spelled, value = next(iter(line.items()))
        *flags, name = str(spelled).split(" ")
        group, _, package = name.partition("@")
        return group, package or None, value, "optional" in flags
    *flags, name = str(line).split(" ")
    path, _, package = name.partition("@")
    return path, package or None, None, "optional" in flags


def _place(line: object, parent: _Entry) -> tuple[str, str]:
    """(override key, group path) of a group line: Hydra's GroupDefault.get_override_key."""
    group, package, _, _ = _words(line)
    path = _absolute(group, parent)
    default = _join_package(parent.package, _relative_package(group))
    final = _join_package(parent.package, package) if package else default
    same = final == path.replace("/", ".")
    return (path if same or package is None else f"{path}@{final or '_global_'}"), path


def _absolute(path: str, parent: _Entry) -> str:
    if path.startswith("/"):
        return path[1:]
    return posixpath.normpath(posixpath.join(posixpath.dirname(parent.path or ""), path))


def _relative_package(group: str) -> str:
    return group.strip("/").replace("../", "").replace("/", ".")


def _join_package(parent: str, package: str) -> str:
    if package == "_global_" or package.startswith("_global_."):
        return package[len("_global_.") :]
    if package == "_here_":
        return parent
    return f"{parent}.{package}" if parent and package else parent or package


def _value_of(line: object, parent: _Entry, choices: Choices) -> object:
    if not isinstance(line, Mapping):
        return None
    key = _place(line, parent)[0]
    if key in choices.overrides:
        choices.used.add(key)
        return choices.overrides[key]
    return _words(line)[2]


def _expand_line(find: Find, line: object, parent: _Entry, choices: Choices) -> list[tuple[str, ConfigFile]]:
    out: list[tuple[str, ConfigFile]] = []
    for entry in _entries(find, line, parent, choices):
        out += _expand(find, entry, choices)
    return out


def _entries(find: Find, line: object, parent: _Entry, choices: Choices) -> Iterator[_Entry]:
    name, package, _, optional = _words(line)
    if not isinstance(line, Mapping):
        plain = _absolute(name, parent)
        folder = posixpath.dirname(name.lstrip("/"))
        yield _Entry(plain, _final_package(find, plain, folder, package, parent), None, optional)
        return
    key, group = _place(line, parent)
    value = _chosen(_value_of(line, parent, choices), choices, key)
    choices.known[key] = value
    if key in choices.deleted and choices.deleted[key] in (None, value):
        choices.used.add("~" + key)
        return
    for option in value if isinstance(value, list) else [value]:
        path = None if option is None else f"{group}/{option}"
        final = _final_package(find, path, name, package, parent)
        yield _Entry(path, final, key, optional)


def _chosen(value: object, choices: Choices, key: str) -> object:
    """A choice with ``${other_group}`` filled in. Raises CompositionError when it isn't chosen."""
    if not isinstance(value, str):
        return value
    if value == "???":
        raise CompositionError(f"You must specify '{key}', e.g. {key}=<OPTION>")

    def known(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in choices.known:
            raise CompositionError(f"the defaults list refers to '{name}', which no config group sets")
        return str(choices.known[name])

    return _CHOICE_REF.sub(known, value)


def _final_package(find: Find, path: str | None, folder: str, package: str | None, parent: _Entry) -> str:
    file = find(path) if path else None
    if package is None and file is not None and file.package is not None:
        package = file.package
        if package == "_group_":
            package = None
    return _join_package(parent.package, package if package is not None else _relative_package(folder))


def _not_found(entry: _Entry) -> CompositionError:
    if entry.key:
        group, _, option = (entry.path or "").rpartition("/")
        return CompositionError(f"In '{group}': could not find '{option}' (config group {entry.key})")
    return CompositionError(f"Cannot find the config '{entry.path}'")
