"""What a configuration says of how answers are made and scored: groups of another one are not trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

_ELSEWHERE = ("val_files", "val_batch_size", "val_max_samples", "dataloader_num_workers")


def settings_mark(verl: Mapping[str, Any]) -> str:
    """Of the data, the model, the rollout and the reward that ``verl`` (plain containers) names."""
    actor = verl.get("actor_rollout_ref") or {}
    data = {key: value for key, value in (verl.get("data") or {}).items() if key not in _ELSEWHERE}
    rollout = {key: value for key, value in (actor.get("rollout") or {}).items() if key != "val_kwargs"}
    model = (actor.get("model") or {}).get("path")
    filtered = (verl.get("algorithm") or {}).get("filter_groups")
    said = [data, rollout, model, filtered, verl.get("reward")]
    return blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()
