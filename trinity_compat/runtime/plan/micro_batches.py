"""Micro-batch sizes as the pinned veRL demands them, said before anything starts and not by its workers.

What counts is ``use_dynamic_bsz`` of the actor: veRL asks for the reference's size without it even where
``ref.log_prob_use_dynamic_bsz`` is on (verl.utils.config.validate_config), and takes sizes per GPU only
(verl.workers.engine_workers). Until 0.7 it took sizes over all GPUs too, and divided them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trinity_compat.dotted import value_at
from trinity_compat.errors import UserError
from trinity_compat.gpus import trainer_gpus
from trinity_compat.runtime.plan.refusals import place
from trinity_compat.translate.sections.gpus import sharing
from trinity_compat.verl_config import PINNED

_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"
_DYNAMIC = f"{_ACTOR}.use_dynamic_bsz"
_KL = (f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")


@dataclass(frozen=True, slots=True)
class _Size:
    """One size: ``all_gpus`` is the deprecated spelling, without dynamic batches (``dynamic``) it is needed,
    ``because`` of a key that asks for the model."""

    all_gpus: str
    dynamic: tuple[str, ...]
    because: str = ""

    @property
    def role(self) -> str:
        """Whose ranks share it: the actor computes the old log-probabilities."""
        return self.all_gpus.rpartition(".")[0].replace(".rollout", ".actor")

    @property
    def per_gpu(self) -> str:
        return f"{self.all_gpus}_per_gpu"


def divide(verl: dict[str, Any]) -> list[str]:
    """Write each size over all GPUs per GPU instead, in ``verl``, as veRL itself did until 0.7
    (fsdp_workers.py, megatron_workers.py); returns a line for the user for each. One that isn't a
    number is left to ``check``."""
    lines = []
    for size in _sizes(verl):
        given = value_at(verl, size.all_gpus)
        if type(given) is not int or given < 1 or all(value_at(verl, key) for key in size.dynamic):
            continue
        each = value_at(verl, size.per_gpu) or max(1, given // _ranks(verl, size.role))
        section = value_at(verl, size.per_gpu.rpartition(".")[0])
        section[size.all_gpus.rpartition(".")[2]] = None
        section[size.per_gpu.rpartition(".")[2]] = each
        lines.append(f"{size.all_gpus}={given} over all GPUs: veRL {PINNED} gets {size.per_gpu}={each}")
    return lines


def _ranks(verl: Mapping[str, Any], role: str) -> int:
    """Data-parallel ranks of ``role``."""
    megatron = value_at(verl, f"{_ACTOR}.strategy") == "megatron"
    shared = sharing(role, lambda key: int(value_at(verl, key) or 1), megatron=megatron)
    return max(1, trainer_gpus(verl) // shared)


def check(verl: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Raises UserError for the first size that veRL would miss or refuse. ``record``: config/launch.json."""
    for size in _sizes(verl):
        if not all(value_at(verl, key) for key in size.dynamic):
            _check_one(size, verl, record)


def _sizes(verl: Mapping[str, Any]) -> Iterator[_Size]:
    yield _Size(f"{_ACTOR}.ppo_micro_batch_size", (_DYNAMIC,))
    yield _Size("actor_rollout_ref.rollout.log_prob_micro_batch_size", (_DYNAMIC,))
    if (kl := next((key for key in _KL if value_at(verl, key)), None)) is not None:
        yield _Size(f"{_REF}.log_prob_micro_batch_size", (_DYNAMIC, f"{_REF}.log_prob_use_dynamic_bsz"), kl)
    if has_critic(verl):
        yield _Size("critic.ppo_micro_batch_size", ("critic.use_dynamic_bsz",), "algorithm.adv_estimator")


def has_critic(verl: Mapping[str, Any]) -> bool:
    """As verl.trainer.ppo.utils.need_critic."""
    enabled = value_at(verl, "critic.enable")
    return value_at(verl, "algorithm.adv_estimator") == "gae" if enabled is None else bool(enabled)


def _check_one(size: _Size, verl: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    per_gpu, all_gpus = value_at(verl, size.per_gpu), value_at(verl, size.all_gpus)
    if all_gpus is not None:
        raise UserError(
            f"{size.all_gpus}={all_gpus}: veRL {PINNED} takes the size of one GPU's micro-batch only",
            where=place(record, (size.all_gpus,)),
            hint=f"write {size.per_gpu}={per_gpu or '… (yours divided by the GPUs that train)'} instead",
        )
    if per_gpu is None:
        off = next(key for key in size.dynamic if not value_at(verl, key))
        asks = f"{size.because}={value_at(verl, size.because)}" if size.because else f"{off}=False"
        raise UserError(
            f"{asks} needs {size.per_gpu}: veRL {PINNED} refuses to start without it",
            where=place(record, (size.because or off,)),
            hint=f"write {size.per_gpu}={_like(size, verl)}, or {off}=True",
        )


def _like(size: _Size, verl: Mapping[str, Any]) -> Any:
    """The actor's size where there is one."""
    actor = value_at(verl, f"{_ACTOR}.ppo_micro_batch_size_per_gpu")
    return "1" if actor is None else actor
