"""Teachers of a distilled run as its configuration names them, and the size of what it stores of them.

Source: verl 0.9.1, workers/config/distillation.py, whose defaults are repeated here since a plan imports no
veRL.
"""

from __future__ import annotations

from dataclasses import dataclass

from trinity_compat.common.nested import Tree, section_at, value_at

SECTION = "distillation"
ENABLED = f"{SECTION}.enabled"
POOL = (f"{SECTION}.nnodes", f"{SECTION}.n_gpus_per_node")
MODELS = f"{SECTION}.teacher_models"
_ONLY = "teacher_model"  # the entry of veRL's file, which others replace
_RANKS = {"tensor_model_parallel_size": 2, "data_parallel_size": 1, "pipeline_model_parallel_size": 1}
_OF_TOP_TOKENS = "forward_kl_topk"  # verl 0.9.1, trainer/distillation/losses.py: the only mode that uses them
_TOP = 128  # DistillationLossConfig.topk


@dataclass(frozen=True, slots=True)
class TeacherEntry:
    """A teacher's entry at ``section``: model ``path``, and ``servers`` of ``width`` GPUs each.

    ``key``: the one of its rows, "" for the only teacher. ``gpus``: those that veRL takes of the pool.
    """

    section: str
    key: str
    path: str
    servers: int
    width: int
    gpus: int


def is_distilled(verl: Tree) -> bool:
    """Return whether teachers are asked about answers."""
    return bool(value_at(verl, ENABLED))


def teacher_entries(verl: Tree) -> list[TeacherEntry]:
    """Return the teachers of a complete configuration; none without distillation.

    A data-parallel replica counts as so many servers, as in ``explorer/teachers/arguments.py``.
    """
    if not is_distilled(verl):
        return []
    listed = section_at(verl, MODELS)
    named = [name for name in listed if name != _ONLY] or [name for name in listed if name == _ONLY]
    pool = pool_gpus(verl)
    return [_entry(name, section_at(listed, name), pool) for name in named]


def _entry(name: str, model: Tree, pool: int) -> TeacherEntry:
    inference = section_at(model, "inference")
    width, data, stages = (_size(inference, key, default) for key, default in _RANKS.items())
    replica = width * data * stages
    # The only teacher has all of the pool.
    replicas = pool // replica if name == _ONLY else _size(model, "num_replicas", 0)
    key = "" if name == _ONLY else str(model.get("key"))
    path = str(model.get("model_path") or "")
    return TeacherEntry(f"{MODELS}.{name}", key, path, replicas * data, width * stages, replicas * replica)


def _size(section: Tree, key: str, default: int) -> int:
    value = section.get(key)
    return default if value is None else int(str(value))


def pool_gpus(verl: Tree) -> int:
    """Return the GPUs of the teachers' pool, which are beside the trainer's; 0 without distillation."""
    if not is_distilled(verl):
        return 0
    nodes, each = (value_at(verl, key) or 0 for key in POOL)
    return int(nodes) * int(each)


def stores_top_tokens(verl: Tree) -> bool:
    """Return whether answers are stored with a teacher's most likely tokens."""
    mode = value_at(verl, f"{SECTION}.distillation_loss.loss_mode")
    return is_distilled(verl) and mode == _OF_TOP_TOKENS


def teacher_bytes(verl: Tree) -> int:
    """Bytes of a response token's teacher arrays: a log-probability, for top-k losses K of them with ids."""
    if not is_distilled(verl):
        return 0
    if not stores_top_tokens(verl):
        return 4
    top = value_at(verl, f"{SECTION}.distillation_loss.topk")
    return 8 * (int(top) if top is not None else _TOP)
