"""What a configuration says of how answers are made and scored: groups of another one are not trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from trinity_compat.buffer.api import Buffer

_KEY = "made with"
_ELSEWHERE = ("val_files", "val_batch_size", "val_max_samples", "dataloader_num_workers")
# Which machine answers, and how much of it, is not what it answers.
_MACHINE = (
    "val_kwargs",
    "nnodes",
    "n_gpus_per_node",
    "tensor_model_parallel_size",
    "gpu_memory_utilization",
)


def settings_mark(verl: Mapping[str, Any]) -> str:
    """Of the data, the model, the rollout and the reward that ``verl`` (plain containers) names."""
    actor = verl.get("actor_rollout_ref") or {}
    data = {key: value for key, value in (verl.get("data") or {}).items() if key not in _ELSEWHERE}
    rollout = {key: value for key, value in (actor.get("rollout") or {}).items() if key not in _MACHINE}
    model = (actor.get("model") or {}).get("path")
    filtered = (verl.get("algorithm") or {}).get("filter_groups")
    said = [data, rollout, model, filtered, verl.get("reward")]
    return blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def sign(buffer: Buffer, verl: Mapping[str, Any]) -> bool:
    """Say in the buffer what its groups are made with, if nobody has; the first side that starts does.
    Returns whether it is what ``verl`` says."""
    mark = settings_mark(verl)
    known = buffer.get_state(_KEY)
    if known is None:
        buffer.set_state(_KEY, mark)
    return known in (None, mark)


def sign_anew(buffer: Buffer, verl: Mapping[str, Any]) -> None:
    """From now on groups are made with what ``verl`` says. Call after the others are void."""
    buffer.set_state(_KEY, settings_mark(verl))
