"""The complete configuration of the pinned veRL, for the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, nodes, value_at
from trinity_compat.common.nested import put as set_key
from trinity_compat.common.releases import VERL
from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.extra_keys import takes
from trinity_compat.verl_config.interpolate import Resolver
from trinity_compat.verl_config.merge import merge
from trinity_compat.verl_config.releases import (
    FLAVOURS,
    OTHER_FLAVOURS,
    ROWS_FLAVOURS,
    release_tree,
)

_ALL = (*FLAVOURS, *OTHER_FLAVOURS)
_ACTOR = "actor_rollout_ref.actor"


def compose_pinned(overrides: Mapping[str, object], flavour: str = "ppo_trainer") -> dict[str, Any]:
    """The pinned veRL's defaults with ``overrides`` (dotted key → value) set or added.

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


def pinned_tree(flavour: str) -> dict[str, object]:
    """The pinned veRL's defaults of a flavour, interpolations as written. Raises UserError."""
    if flavour not in _ALL:
        raise UserError(f"veRL has no configuration '{flavour}'", hint=f"write one of {', '.join(_ALL)}")
    return copied(pinned_release(flavour).tree)


class Pinned:
    """The pinned veRL's defaults of one flavour, to read only: every caller gets the same object.

    ``tree`` as ``pinned_tree``; ``nodes`` every dotted key of it, inner ones too.
    """

    def __init__(self, flavour: str) -> None:
        engine = ROWS_FLAVOURS.get(flavour)
        composed = composed_as(release_tree(VERL), FLAVOURS[0] if engine else flavour)
        self.tree: Mapping[str, object] = _with_actor(composed, engine) if engine else composed
        self.nodes = frozenset(nodes(self.tree))
        self.takes = lru_cache(maxsize=8192)(self._takes)

    @cached_property
    def resolved(self) -> Mapping[str, Any]:
        """``tree`` with its references filled in."""
        return Resolver(self.tree).resolve()

    def _takes(self, key: str) -> bool | None:
        """``sections.takes`` on this tree."""
        return takes(self.tree, key)


@lru_cache(maxsize=len(_ALL))
def pinned_release(flavour: str) -> Pinned:
    """The pinned release's ``flavour``, which must be one of FLAVOURS or OTHER_FLAVOURS."""
    return Pinned(flavour)


def _with_actor(tree: dict[str, object], engine: str) -> dict[str, object]:
    """Set the actor's sections to those of an engine for which veRL has no actor."""
    files = release_tree(VERL).files
    set_key(tree, f"{_ACTOR}._target_", f"trinity_compat.plugins.{engine}_actor.ActorConfig")
    set_key(tree, f"{_ACTOR}.strategy", engine)
    set_key(tree, f"{_ACTOR}.{engine}", copied(files[f"engine/{engine}"].config))
    set_key(tree, f"{_ACTOR}.optim", copied(files[f"optim/{engine}"].config))
    return tree


def put(tree: dict[str, object], key: str, value: object) -> None:
    """Set a dotted key as ``++key=value`` does: dicts merge, sections on the way are made."""
    if isinstance(value, Mapping):
        below = value_at(tree, key)
        set_key(tree, key, merge(below if isinstance(below, dict) else {}, value))
    else:
        set_key(tree, key, list(value) if isinstance(value, list) else value)
