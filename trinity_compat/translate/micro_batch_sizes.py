"""Micro-batch sizes that veRL demands.

What counts is ``use_dynamic_bsz`` of the actor: veRL asks for the reference's size without it even where
``ref.log_prob_use_dynamic_bsz`` is on (verl.utils.config.validate_config, and ``_validate_config`` in
ray_trainer.py until 0.5). Until 0.7 a size over all GPUs would do, which veRL divided itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trinity_compat.common.releases import VERL

Value = Callable[[str], object]  # the value of a key of the pinned veRL, None where it has none

_ARR = "actor_rollout_ref"
ACTOR, ROLLOUT, REF, CRITIC = (
    f"{_ARR}.actor.ppo_micro_batch_size",
    f"{_ARR}.rollout.log_prob_micro_batch_size",
    f"{_ARR}.ref.log_prob_micro_batch_size",
    "critic.ppo_micro_batch_size",
)
DYNAMIC = f"{_ARR}.actor.use_dynamic_bsz"
USE_V1 = "trainer.use_v1"
_KL = (f"{_ARR}.actor.use_kl_loss", "algorithm.use_kl_in_reward")


@dataclass(frozen=True, slots=True)
class MicroBatchSize:
    """One size that veRL demands without dynamic batches.

    ``all_gpus`` is the deprecated key; ``dynamic`` are the keys that switch dynamic batches on; ``because``
    is the key that requires the model.
    """

    all_gpus: str
    dynamic: tuple[str, ...] = (DYNAMIC,)
    because: str = ""

    @property
    def role(self) -> str:
        """The section of the ranks that share the size: the actor computes the old log-probabilities."""
        return self.all_gpus.rpartition(".")[0].replace(".rollout", ".actor")

    @property
    def per_gpu(self) -> str:
        """The key of the size of one GPU's micro-batch."""
        return f"{self.all_gpus}_per_gpu"

    @property
    def is_of_step(self) -> bool:
        """True if it cuts all answers of a step, whose log-probabilities are computed; else an update's."""
        return "log_prob" in self.all_gpus

    def is_dynamic(self, value: Value) -> bool:
        """Return True if batches are cut by tokens, so that the size has no effect."""
        return all(value(key) for key in self.dynamic)


@dataclass(frozen=True, slots=True)
class MissingSize:
    """A size that the launch does not give. ``key``: the setting that requires it."""

    key: str
    message: str
    hint: str


def sizes(value: Value) -> Iterator[MicroBatchSize]:
    """Yield the sizes that veRL demands of a launch with these values."""
    yield MicroBatchSize(ACTOR)
    yield MicroBatchSize(ROLLOUT)
    if (kl := next((key for key in _KL if value(key)), None)) is not None:
        yield MicroBatchSize(REF, (DYNAMIC, f"{_ARR}.ref.log_prob_use_dynamic_bsz"), kl)
    if has_critic(value):
        yield MicroBatchSize(CRITIC, ("critic.use_dynamic_bsz",), "algorithm.adv_estimator")


def has_critic(value: Value) -> bool:
    """Return True if veRL trains a critic, like verl.trainer.ppo.utils.need_critic."""
    enabled = value("critic.enable")
    return value("algorithm.adv_estimator") == "gae" if enabled is None else bool(enabled)


def critic_tokens(value: Value) -> tuple[str, object]:
    """Return the key of the tokens of a GPU by which the critic's engine cuts batches, and its value.

    It always cuts by tokens. v1's trainer gives it a field of the critic's dataclass that no file of veRL's
    sets, v0's the key (``critic_cfg.engine`` in ppo/v1/trainer_base.py, ``engine_config`` in
    ppo/ray_trainer.py).
    """
    if not value(USE_V1):
        key = "critic.ppo_max_token_len_per_gpu"
        return key, value(key)
    key = "critic.ppo_infer_max_token_len_per_gpu"
    return key, value(key) or 32768  # workers/config/critic.py


def missing(value: Value, written: Callable[[str], str]) -> Iterator[MissingSize]:
    """Yield the sizes without which veRL refuses to start.

    ``written`` gives ``key=value`` as the user wrote it.
    """
    for size in sizes(value):
        given = value(size.all_gpus) is not None or value(size.per_gpu) is not None
        if not given and not size.is_dynamic(value):
            off = next(key for key in size.dynamic if not value(key))
            asks = written(size.because) if size.because else f"{off}=False"
            like = value(f"{ACTOR}_per_gpu")
            yield MissingSize(
                size.because or off,
                f"{asks} needs {size.per_gpu}: veRL {VERL} refuses to start without it",
                f"write {size.per_gpu}={1 if like is None else like}, or {off}=True",
            )
