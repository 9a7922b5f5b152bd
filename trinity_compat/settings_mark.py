"""What a configuration says of how answers are made and scored: groups of another one are not trained on."""

from __future__ import annotations

import json
from hashlib import blake2b

from trinity_compat.buffer.api import Buffer
from trinity_compat.containers import Tree, section_at
from trinity_compat.dotted import value_at

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


def settings_mark(verl: Tree) -> str:
    """Of the data, the model, the rollout and the reward that ``verl`` (plain containers) names."""
    data = {key: value for key, value in section_at(verl, "data").items() if key not in _ELSEWHERE}
    if value_at(verl, "data.dataloader_num_workers"):  # a task's number means another row (explorer/tasks.py)
        data["drawn"] = "by workers"
    rollout = section_at(verl, "actor_rollout_ref.rollout")
    answered = {key: value for key, value in rollout.items() if key not in _MACHINE}
    model = value_at(verl, "actor_rollout_ref.model.path")
    filtered = value_at(verl, "algorithm.filter_groups")
    said = [data, answered, model, filtered, verl.get("reward")]
    return blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def sign(buffer: Buffer, verl: Tree) -> bool:
    """Say in the buffer what its groups are made with, if nobody has; the first side that starts does.
    Returns whether it is what ``verl`` says."""
    mark = settings_mark(verl)
    known = buffer.get_state(_KEY)
    if known is None:
        buffer.set_state(_KEY, mark)
    return known in (None, mark)


def sign_anew(buffer: Buffer, verl: Tree) -> None:
    """From now on groups are made with what ``verl`` says. Call after the others are void."""
    buffer.set_state(_KEY, settings_mark(verl))
