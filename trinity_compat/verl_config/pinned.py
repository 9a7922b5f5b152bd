"""The complete configuration of the pinned veRL, for the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.errors import UserError
from trinity_compat.verl_config.compose import Choices, compose
from trinity_compat.verl_config.interpolate import Resolver
from trinity_compat.verl_config.merge import merge
from trinity_compat.verl_config.releases import FLAVOURS, PINNED, release_tree


def compose_pinned(overrides: Mapping[str, Any], flavour: str = "ppo_trainer") -> dict[str, Any]:
    """veRL 0.9.1's defaults with ``overrides`` (dotted key → value) set or added.

    All interpolations are resolved; ``${oc.env:NAME}`` without a default stays as written.
    Raises UserError for an unknown flavour, and for an interpolation that cannot be resolved.
    """
    tree = pinned_tree(flavour)
    for key, value in overrides.items():
        put(tree, key, value)
    resolver = Resolver(tree)
    resolved = resolver.resolve()
    for path, problem in resolver.errors.items():
        raise UserError(f"{'.'.join(map(str, path))}: {problem}")
    return resolved


def pinned_tree(flavour: str) -> dict[str, Any]:
    """0.9.1's defaults of a flavour, interpolations as written. Raises UserError."""
    if flavour not in FLAVOURS:
        raise UserError(f"veRL has no configuration '{flavour}'", hint=f"write one of {', '.join(FLAVOURS)}")
    return compose(release_tree(PINNED).find, flavour, Choices())


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key as ``++key=value`` does: dicts merge, sections on the way are made."""
    *path, last = key.split(".")
    for part in path:
        below = tree.get(part)
        if not isinstance(below, dict):
            below = tree[part] = {}
        tree = below
    if isinstance(value, Mapping):
        here = tree.get(last)
        tree[last] = merge(here if isinstance(here, dict) else {}, value)
    else:
        tree[last] = list(value) if isinstance(value, list) else value
