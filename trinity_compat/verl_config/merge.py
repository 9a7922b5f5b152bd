"""OmegaConf's merge on plain containers."""

from __future__ import annotations

from collections.abc import Mapping

MISSING = "???"


def merge(into: dict[str, object], source: Mapping[str, object]) -> dict[str, object]:
    """``source`` over ``into`` in place: dicts merge, all else replaces; ``???`` never replaces a value."""
    for key, value in source.items():
        if isinstance(value, (dict, Mapping)):
            here = into.get(key)
            into[key] = merge(here if isinstance(here, dict) else {}, value)
        elif value != MISSING or key not in into:
            into[key] = list(value) if isinstance(value, list) else value
    return into
