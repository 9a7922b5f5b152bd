"""Nested containers by dotted key: read, set, flatten, copy; sections of JSON files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from trinity_compat.common.limits import LEVELS

# A section: name → section, list or scalar. Its values are ``object`` and not ``Any``, so that each reader
# states the type that it expects.
Tree: TypeAlias = Mapping[str, object]
_Value = TypeVar("_Value")
_Container: TypeAlias = dict[str, object] | list[object]
_NOTHING = object()


def value_at(tree: object, key: str, default: object = None) -> Any:
    """Return the value at a dotted key of nested mappings and lists, ``default`` if it does not exist.

    Positions in a list are numbers.
    """
    for part in key.split("."):
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return default
    return tree


def holds(tree: object, key: str) -> bool:
    """Return whether a dotted key exists, also with the value None."""
    return value_at(tree, key, _NOTHING) is not _NOTHING


def joined(path: str, key: object) -> str:
    """Return the dotted path of ``key`` below ``path``, which is "" at the top."""
    return f"{path}.{key}" if path else str(key)


def sections_above(key: str) -> list[str]:
    """Return the prefixes of a dotted key, longest first: ``a.b.c`` → ``a.b``, ``a``.

    Those beyond the levels that a configuration may have are left out.
    """
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(min(len(parts) - 1, LEVELS), 0, -1)]


def nodes(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return every key of the tree, inner ones too, with its value."""
    out: dict[str, object] = {}
    for name, value in tree.items():
        out[f"{prefix}{name}"] = value
        if isinstance(value, Mapping):
            out |= nodes(value, f"{prefix}{name}.")
    return out


def leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of every value that is not a non-empty dict."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def paired_leaves(
    raw: Mapping[str, object], resolved: Mapping[str, object], prefix: str = ""
) -> list[tuple[str, object, object]]:
    """Return (dotted key, raw value, resolved value) of two trees of the same shape, by ``raw``'s leaves."""
    out: list[tuple[str, object, object]] = []
    for name, value in raw.items():
        if value and isinstance(value, dict):
            below = resolved[name]
            assert isinstance(below, Mapping)
            out += paired_leaves(value, below, f"{prefix}{name}.")
        else:
            out.append((f"{prefix}{name}", value, resolved[name]))
    return out


def copied(tree: Mapping[str, _Value]) -> dict[str, _Value]:
    """Copy nested dicts and lists; other values are shared, since they are immutable."""
    return {name: _copied(value) for name, value in tree.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def nested(flat: Mapping[str, object]) -> dict[str, object]:
    """Build a tree from dotted keys, set in the order of ``flat``."""
    tree: dict[str, object] = {}
    for key, value in flat.items():
        put(tree, key, value)
    return tree


def put(tree: dict[str, object], key: str, value: object) -> None:
    """Set a dotted key; existing positions of a list are addressed by number.

    A value on the way that is not a container is replaced by a dict.
    """
    *path, last = key.split(".")
    node: _Container = tree
    for part in path:
        below = node[int(part)] if isinstance(node, list) else node.get(part)
        if not isinstance(below, dict | list):
            below = {}
            _set(node, part, below)
        node = below
    _set(node, last, value)


def _set(node: _Container, part: str, value: object) -> None:
    if isinstance(node, list):
        node[int(part)] = value
    else:
        node[part] = value


def section_at(tree: Tree, key: str) -> Tree:
    """Return the section at a dotted key, an empty one if it does not exist."""
    found = value_at(tree, key)
    return found if isinstance(found, Mapping) else {}


def read_section(path: Path) -> dict[str, object]:
    """Return the mapping in a JSON file, an empty one if it cannot be read or contains another type."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
