"""Which keys upstream takes under ``trainer.trainer_config``, and what they do there."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trinity_compat.data import data_path


@dataclass(frozen=True, slots=True)
class TrainerKey:
    """A key under trainer_config.

    ``default`` is what upstream has there without us. ``frozen``: accepted, then overwritten from its own
    sections. ``free``: any keys may follow below.
    """

    default: Any = None
    frozen: bool = False
    free: bool = False


@functools.cache
def trainer_keys(target: str, strategy: str) -> Mapping[str, TrainerKey]:
    """Return path (``actor_rollout_ref.actor.optim.lr``) → key, for fsdp, fsdp2 or megatron."""
    path = data_path(f"translators/trinity/trainer_config-{target}.json")
    tables = json.loads(path.read_text(encoding="utf-8"))
    name = "megatron" if strategy.startswith("megatron") else "fsdp"
    rows = tables.get(name) or tables["any"]
    return {path: TrainerKey(**row) for path, row in rows.items()}


def find_trainer_key(target: str, strategy: str, path: str) -> TrainerKey | None:
    """Return the key at ``path`` or the free-form one above it; None when upstream refuses it.

    A refused key is a TypeError when the workers of 0.6.0 start, and a failed merge in 0.4.1.
    """
    keys = trainer_keys(target, strategy)
    if path in keys:
        return keys[path]
    while "." in path:
        path = path.rpartition(".")[0]
        above = keys.get(path)
        if above is not None and above.free:
            return above
    return None
