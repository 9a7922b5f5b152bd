"""The release of trinity-rft that a file is written for, inferred from its keys."""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.common.nested import nodes
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.trinity.config.schema import schema
from trinity_compat.trinity.config.validate import validate


def release_of(config: Mapping[str, object]) -> str:
    """Return the newest release that takes the file, unless it has something that only the older one has."""
    if not validate(config, TRINITY_OLD) and (validate(config, TRINITY) or _is_old(config)):
        return TRINITY_OLD
    return TRINITY


def _is_old(config: Mapping[str, object]) -> bool:
    """Return True if an enum has a spelling that only the older release has."""
    for path, value in nodes(config).items():
        old, new = schema(TRINITY_OLD).find(path), schema(TRINITY).find(path)
        if (
            old
            and new
            and isinstance(value, str)
            and value in old.type.values
            and value not in new.type.values
        ):
            return True
    return False
