"""Keys that have no effect once rollout and training are apart, each with its reason."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from trinity_compat.common.nested import sections_above
from trinity_compat.common.resources import data_path


@functools.cache
def meaningless() -> Mapping[str, str]:
    """Return ``key`` or ``prefix.*`` → the reason why it is not carried to the trainer."""
    reasons: Mapping[str, str] = json.loads(
        data_path("translators/meaningless.json").read_text(encoding="utf-8")
    )
    return reasons


@functools.cache
def means_nothing(key: str) -> bool:
    """Return True if ``key`` is on the list."""
    return key in meaningless() or any(f"{section}.*" in meaningless() for section in sections_above(key))
