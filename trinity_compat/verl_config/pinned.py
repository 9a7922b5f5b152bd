"""The complete configuration of the pinned veRL: its defaults, the keys it takes, other releases' names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, holds, leaves, nodes, value_at
from trinity_compat.common.nested import put as set_key
from trinity_compat.common.releases import VERL, VERL_RUNNABLE
from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.interpolate import Resolver
from trinity_compat.verl_config.releases import (
    FLAVOURS,
    OTHER_FLAVOURS,
    ROWS_FLAVOURS,
    dataclass_fields,
    release_tree,
)
from trinity_compat.verl_config.yaml_files import merge

# Read by name though no YAML lists them: reward managers and custom reward functions take them. The last is
# the name before 0.8, which 0.9.1 still moves (migrate_legacy_reward_impl, experimental/reward_loop).
_READ = (
    "reward.reward_kwargs.",
    "reward.custom_reward_function.reward_kwargs.",
    "reward_model.reward_kwargs.",
    "ray_kwargs.ray_init.",  # which ray.init gets as a whole (trainer/main_ppo.py)
)
# veRL reads these sections key by key; it never builds their dataclass from them.
_NOT_BUILT = ("algorithm.", "reward.", "skip.", "global_profiler.")


def takes(tree: Mapping[str, object], key: str) -> bool | None:
    """Return whether the part of ``tree`` that ``key`` would be added to has a use for it.

    True: the key is there, its section is free-form (an empty dict, null, a dict field of a dataclass),
    or the section's dataclass has that field. False: the section becomes a dataclass without it, so veRL
    would fail. None: an ordinary section; the key means something only if veRL's code asks for it.
    """
    if key.startswith(_READ):
        return True
    found = _walk(tree, key)
    return None if found is False and key.startswith(_NOT_BUILT) else found


def _walk(tree: Mapping[str, object], key: str) -> bool | None:
    node: object = tree
    inside = False  # of a section that becomes a dataclass: a plain dict there is a field of any content
    for part in key.split("."):
        if node is None or node == {} or (isinstance(node, str) and "${" in node):
            return True
        if not isinstance(node, dict):
            return False
        if part not in node:
            target = node.get("_target_")
            if target is None:
                return True if inside else None
            fields = _fields().get(target)
            return None if fields is None else part in fields
        inside |= "_target_" in node
        node = node[part]
    return True


@lru_cache(maxsize=1)
def _fields() -> Mapping[str, frozenset[str]]:
    return {target: frozenset(names) for target, names in dataclass_fields().items()}


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


def in_keys_of(release: str | None, tree: Mapping[str, Any], flavour: str) -> dict[str, Any]:
    """Return ``tree``, a resolved configuration of the pinned release, as ``release`` takes it.

    Keys that the release lacks are left out; its own get its defaults. Raises UserError for a key that it
    lacks and that has another value than the pinned default. Other releases get the tree unchanged.
    """
    made = copied(tree)
    if release is None or release == VERL or release not in VERL_RUNNABLE or flavour not in FLAVOURS:
        return made
    theirs, pinned = composed_as(release_tree(release), flavour), pinned_tree(flavour)
    lacking = {key: default for key, default in leaves(pinned) if not holds(theirs, key)}
    referring = {key for key, default in lacking.items() if isinstance(default, str) and "${" in default}
    followed = copied(tree)
    for key in referring:
        set_key(followed, key, lacking[key])
    followed = Resolver(followed).resolve()
    for key, default in lacking.items():
        unset = value_at(followed, key) if key in referring else default
        if (value := value_at(tree, key, unset)) != unset:
            raise UserError(
                f"{key}={value}: the installed veRL {release} has no such key",
                hint=f"leave it out, or install verl=={VERL}",
            )
    for key in nodes(pinned):
        if not holds(theirs, key):
            section, _, name = key.rpartition(".")
            node = value_at(made, section) if section else made
            if isinstance(node, dict):
                node.pop(name, None)
    for key, value in leaves(theirs):
        if not holds(pinned, key) and not holds(made, key):
            set_key(made, key, value)
    return Resolver(made).resolve()
