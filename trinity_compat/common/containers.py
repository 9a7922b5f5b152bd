"""What YAML and JSON files hold, once read into plain Python: its type, and its sections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from trinity_compat.common.nested import value_at

# A section: name → section, list or scalar. Its values are ``object`` and not ``Any``, so that whoever takes
# one out says which type it is taken for.
Tree: TypeAlias = Mapping[str, object]


def section_at(tree: Tree, key: str) -> Tree:
    """The section at a dotted key; an empty one where none stands."""
    found = value_at(tree, key)
    return found if isinstance(found, Mapping) else {}


def read_section(path: Path) -> dict[str, object]:
    """What a JSON file holds; empty where it cannot be read, or holds something else than a section."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
