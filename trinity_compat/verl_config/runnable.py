"""A configuration of the pinned veRL, in the keys of another release that runs (``VERL_RUNNABLE``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, holds, leaves, nodes, value_at
from trinity_compat.common.nested import put as set_key
from trinity_compat.common.releases import VERL, VERL_RUNNABLE
from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.interpolate import Resolver
from trinity_compat.verl_config.pinned import pinned_tree
from trinity_compat.verl_config.releases import FLAVOURS, release_tree


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
