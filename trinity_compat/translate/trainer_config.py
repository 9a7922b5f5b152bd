"""What upstream reads under ``trainer.trainer_config``, per release and strategy, and its defaults there."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.data import data_path
from trinity_compat.dotted import sections_above


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """``defaults`` holds every key that upstream's veRL dataclasses define, with its value there.

    A name that ends in ``.*`` stands for a dictionary that takes any key. ``ignored`` are keys that
    upstream accepts and overwrites from its own configuration.
    """

    defaults: Mapping[str, object]
    ignored: frozenset[str]

    def takes(self, key: str) -> bool:
        """Whether a value at ``key`` reaches the trainer."""
        return key in self.defaults or any(f"{above}.*" in self.defaults for above in sections_above(key))

    def default(self, key: str) -> object:
        """The value that holds upstream when nothing is written at ``key``; None inside a dictionary."""
        return self.defaults.get(key)


@functools.cache
def trainer_config(target: str, strategy: str) -> TrainerConfig:
    """Return what trinity-rft ``target`` reads for ``strategy`` (fsdp or megatron)."""
    data = json.loads(data_path(f"translators/trainer_config/{target}.json").read_text(encoding="utf-8"))
    return TrainerConfig(data[strategy], frozenset(data["ignored"]))
