"""Types of what YAML and JSON files hold, once read into plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

# A section: name → section, list or scalar. Its values are ``object`` and not ``Any``, so that whoever takes
# one out says which type it is taken for.
Tree: TypeAlias = Mapping[str, object]
