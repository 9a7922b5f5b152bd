"""Defaults of the pinned veRL, and of trinity-rft's trainer per release and strategy."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.common.nested import leaves, sections_above
from trinity_compat.common.resources import data_json
from trinity_compat.verl_config.pinned import compose_pinned, pinned_tree


@functools.lru_cache(maxsize=4)
def pinned_defaults(flavour: str) -> Mapping[str, object]:
    """Return the pinned veRL's defaults by dotted key, interpolations as written."""
    return dict(leaves(pinned_tree(flavour)))


def same(one: object, other: object) -> bool:
    """Return True if the values are equal, a bool only to a bool: 1 and 1.0 are the same, 1 and True not."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    return bool(one == other)


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """The keys under ``trainer.trainer_config`` of one release and strategy.

    ``defaults`` holds every key that upstream's veRL dataclasses define, with its value; null where a field
    of the file's own sets it (``algorithm.optimizer.lr``) unless the key is written. A name that ends in
    ``.*`` stands for a dictionary that takes any key. ``ignored`` are keys that upstream accepts and
    overwrites from its own configuration.
    """

    defaults: Mapping[str, object]
    ignored: frozenset[str]

    def takes(self, key: str) -> bool:
        """Return True if a value at ``key`` reaches the trainer."""
        return key in self.defaults or any(f"{above}.*" in self.defaults for above in sections_above(key))

    def default(self, key: str) -> object:
        """Return upstream's value if nothing is written at ``key``; None inside a dictionary."""
        return self.defaults.get(key)


@functools.cache
def trainer_config(target: str, strategy: str) -> TrainerConfig:
    """Return what trinity-rft ``target`` reads for ``strategy`` (fsdp or megatron)."""
    data = data_json(f"translators/generated/trainer_config/{target}.json")
    return TrainerConfig(data[strategy], frozenset(data["ignored"]))


# Upstream fills these in from other fields, or names the same optimizer otherwise.
_NOT_A_DEFAULT = ("critic.forward_micro_batch_size", "critic.optim.optimizer")


@functools.cache
def trainer_defaults(target: str, flavour: str) -> Mapping[str, object]:
    """Return keys of the pinned veRL whose default differs from trinity-rft's trainer → the latter.

    ``flavour``: ppo_trainer or ppo_megatron_trainer.
    """
    known = trainer_config(target, "megatron" if flavour == "ppo_megatron_trainer" else "fsdp")
    pinned = dict(leaves(compose_pinned({}, flavour)))
    found = {
        key.replace("critic.model.fsdp_config.", "critic.fsdp."): known.defaults[key]
        for key in known.defaults
    }
    return {
        key: value
        for key, value in found.items()
        # null is upstream's "not said", whatever its trainer then makes of it.
        if value is not None
        and key in pinned
        and not same(pinned[key], value)
        and not key.startswith(_NOT_A_DEFAULT)
    }
