"""Keys that a section of the configuration takes although its YAML does not list them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from trinity_compat.verl_config.releases import dataclass_fields

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
