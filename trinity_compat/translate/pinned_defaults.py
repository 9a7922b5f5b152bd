"""The pinned veRL's defaults, as carried.py and the findings compare with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from trinity_compat.common.nested import leaves
from trinity_compat.verl_config.pinned import pinned_tree


@lru_cache(maxsize=2)
def pinned_defaults(flavour: str) -> Mapping[str, object]:
    """The pinned veRL's defaults by dotted key, interpolations as written."""
    return dict(leaves(pinned_tree(flavour)))


def same(one: object, other: object) -> bool:
    """Return True if the values are equal, a bool only to a bool: 1 and 1.0 are the same, 1 and True not."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    return bool(one == other)
