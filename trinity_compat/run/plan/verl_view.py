"""veRL's configuration as a plan reads it: typed, checked once, never changed.

``VerlView.of`` reads a complete configuration. A step of planning takes a view and returns another one, with
lines for the user (``Step``). The tree of the last view is what the run's processes get.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.plain_numbers import is_whole
from trinity_compat.common.training_engines import TrainingEngine, engine_of

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True, slots=True)
class Trainer:
    """Settings of veRL's section ``trainer``.

    ``total_steps`` and ``save_freq`` count veRL steps. ``total_steps`` is None where the epochs set the
    length; ``save_freq`` is 0 for no checkpoints.
    """

    nodes: int
    gpus_per_node: int
    total_steps: int | None
    save_freq: int
    local_dir: str | None

    @property
    def gpus(self) -> int:
        """Return the GPUs of all nodes: of the whole launch until they are split between the sides."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Batch sizes in tasks, and ``group`` in answers per task; None where the launch gives no size."""

    train: int | None
    drawn: int | None  # at a time, while groups without a signal are left out
    mini: int | None
    group: int


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of ``actor_rollout_ref.rollout``. ``nodes`` 0: the rollout shares the trainer's GPUs."""

    nodes: int
    tensor_parallel: int


@dataclass(frozen=True, slots=True)
class VerlView:
    """One complete veRL configuration."""

    tree: Tree
    trainer: Trainer
    batches: BatchSizes
    rollout: RolloutSettings
    engine: TrainingEngine

    @classmethod
    def of(cls, tree: Tree) -> VerlView:
        """Read ``tree``, as ``compose_pinned`` gives it.

        Raises UserError naming the key of a value that has another type than veRL's.
        """
        return cls(
            tree,
            Trainer(
                nodes=_whole(tree, "trainer.nnodes"),
                gpus_per_node=_whole(tree, "trainer.n_gpus_per_node"),
                total_steps=_whole_or_none(tree, "trainer.total_training_steps"),
                save_freq=max(0, _whole_or_none(tree, "trainer.save_freq") or 0),
                local_dir=_text_or_none(tree, "trainer.default_local_dir"),
            ),
            BatchSizes(
                train=_whole_or_none(tree, "data.train_batch_size"),
                drawn=_whole_or_none(tree, "data.gen_batch_size"),
                mini=_whole_or_none(tree, f"{ACTOR}.ppo_mini_batch_size"),
                group=_whole(tree, f"{ROLLOUT}.n"),
            ),
            RolloutSettings(
                nodes=_whole_or_none(tree, f"{ROLLOUT}.nnodes") or 0,
                tensor_parallel=_whole(tree, f"{ROLLOUT}.tensor_model_parallel_size"),
            ),
            engine=engine_of(value_at(tree, f"{ACTOR}.strategy")),
        )

    def size(self, key: str) -> int:
        """Return the parallel size at ``key``, 1 where it is not set. Raises UserError."""
        return _whole_or_none(self.tree, key) or 1

    def sharing(self, role: str) -> int:
        """Return the number of the trainer's GPUs that compute one row of ``role`` together."""
        return self.engine.sharing(role, self.size)

    def spread(self, role: str) -> int:
        """Return the number of GPUs over which the tokens of one row of ``role`` are spread."""
        return max((self.size(key) for key in self.engine.split_keys(role)), default=1)

    def ranks(self, role: str, gpus: int | None = None) -> int:
        """Return the data-parallel ranks of ``role`` on ``gpus``, all of the trainer's where it is None."""
        if self.engine.is_alone(role, partial(value_at, self.tree)):
            return 1
        return max(1, (self.trainer.gpus if gpus is None else gpus) // self.sharing(role))

    def changed(self, values: Tree) -> VerlView:
        """Return the configuration with each dotted key of ``values`` set, and missing sections added."""
        tree = self.tree
        for key, value in values.items():
            tree = _with(tree, key.split("."), value)
        return VerlView.of(tree)


Step: TypeAlias = tuple[VerlView, list[str]]  # what a step of planning returns


def _with(tree: Tree, path: list[str], value: object) -> dict[str, object]:
    """A copy of ``tree`` with one value set; what lies beside its path is shared."""
    name, *rest = path
    if not rest:
        return {**tree, name: value}
    below = tree.get(name)
    return {**tree, name: _with(below if isinstance(below, Mapping) else {}, rest, value)}


def _whole(tree: Tree, key: str) -> int:
    found = _whole_or_none(tree, key)
    if found is None:
        raise UserError(f"{key} is not set: a run needs a whole number")
    return found


def _whole_or_none(tree: Tree, key: str) -> int | None:
    """``"8"`` counts as 8: a launch may quote its numbers."""
    value = value_at(tree, key)
    if value is None or is_whole(value):
        return value
    try:
        if not isinstance(value, bool) and int(value) == float(value):
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{key}={value!r}: it should be a whole number")


def _text_or_none(tree: Tree, key: str) -> str | None:
    value = value_at(tree, key)
    if value is not None and not isinstance(value, str):
        raise UserError(f"{key}={value!r}: it must be a string")
    return value
