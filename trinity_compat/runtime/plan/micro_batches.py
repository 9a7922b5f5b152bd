"""Micro-batch sizes as the pinned veRL demands them, said before anything starts and not by its workers.

What counts is ``use_dynamic_bsz`` of the actor: veRL asks for the reference's size without it even where
``ref.log_prob_use_dynamic_bsz`` is on (verl.utils.config.validate_config), and takes sizes per GPU only
(verl.workers.engine_workers). Until 0.7 it took sizes over all GPUs too, and divided them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trinity_compat.containers import Tree
from trinity_compat.dotted import value_at
from trinity_compat.errors import UserError
from trinity_compat.runtime.plan.refusals import place
from trinity_compat.runtime.plan.source import LaunchRecord
from trinity_compat.runtime.plan.verl_view import ACTOR, REF, ROLLOUT, Step, VerlView
from trinity_compat.translate.sections.gpus import sharing
from trinity_compat.verl_config import PINNED

_DYNAMIC = f"{ACTOR}.use_dynamic_bsz"
_KL = (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")


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

    def is_dynamic(self, verl: Tree) -> bool:
        """Whether batches are cut by tokens, so that the size has no say."""
        return all(value_at(verl, key) for key in self.dynamic)


def divided(verl: VerlView) -> Step:
    """Each size over all GPUs written per GPU instead, as veRL itself did until 0.7 (fsdp_workers.py,
    megatron_workers.py), with a line for the user for each. One that isn't a number is left to ``check``."""
    values: dict[str, object] = {}
    lines = []
    for size in _sizes(verl.tree):
        given = value_at(verl.tree, size.all_gpus)
        # type() and not isinstance(): a bool is an int, and no size.
        if type(given) is not int or given < 1 or size.is_dynamic(verl.tree):
            continue
        # A size per GPU stays where a launch says both; a GPU computes one row at least.
        each = value_at(verl.tree, size.per_gpu) or max(1, given // ranks(verl, size.role))
        values |= {size.all_gpus: None, size.per_gpu: each}
        lines.append(f"{size.all_gpus}={given} over all GPUs: veRL {PINNED} gets {size.per_gpu}={each}")
    return verl.changed(values), lines


LOG_PROBS = (
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
    (f"{REF}.log_prob_micro_batch_size_per_gpu", f"{REF}.log_prob_use_dynamic_bsz"),
)


def of_log_probs(verl: VerlView) -> Step:
    """Sizes that divide the answers of each GPU, as the pinned veRL's workers demand it
    (workers/engine/utils.py); until 0.7 the last micro-batch was smaller. No log-probability depends on it.
    Answers that the GPUs cannot share evenly are left to who refuses them."""
    answers, over = (verl.batches.train or 0) * verl.batches.group, ranks(verl, ACTOR)
    return (verl, []) if answers % over or not answers else cut(verl, answers // over, LOG_PROBS, "answers")


def cut(
    verl: VerlView, share: int, sizes: Sequence[tuple[str, str]], what: str = "rows", unit: int = 1
) -> Step:
    """The largest sizes, up to those asked for, that divide the ``share`` of each GPU in whole ``unit``s, and
    a line for each that was asked for otherwise. ``sizes``: each with the key that makes it one of tokens."""
    values, lines = {}, []
    for size, dynamic in sizes:
        asked = value_at(verl.tree, size)
        if type(asked) is not int or asked < 1 or value_at(verl.tree, dynamic):
            continue
        fits = max(each for each in range(unit, max(asked, unit) + 1, unit) if share % each == 0)
        if fits != asked:
            values[size] = fits
            lines.append(f"{size}={asked}: {fits}, which divides the {share} {what} of each GPU")
    return verl.changed(values), lines


def ranks(verl: VerlView, role: str) -> int:
    """Data-parallel ranks of ``role``."""
    return max(1, verl.trainer.gpus // sharing(role, verl.size, megatron=verl.megatron))


def check(verl: Tree, record: LaunchRecord) -> None:
    """Raises UserError for the first size that veRL would miss or refuse. ``record``: config/launch.json."""
    for size in _sizes(verl):
        if not size.is_dynamic(verl):
            _check_one(size, verl, record)


def _sizes(verl: Tree) -> Iterator[_Size]:
    yield _Size(f"{ACTOR}.ppo_micro_batch_size", (_DYNAMIC,))
    yield _Size(f"{ROLLOUT}.log_prob_micro_batch_size", (_DYNAMIC,))
    if (kl := next((key for key in _KL if value_at(verl, key)), None)) is not None:
        yield _Size(f"{REF}.log_prob_micro_batch_size", (_DYNAMIC, f"{REF}.log_prob_use_dynamic_bsz"), kl)
    if has_critic(verl):
        yield _Size("critic.ppo_micro_batch_size", ("critic.use_dynamic_bsz",), "algorithm.adv_estimator")


def has_critic(verl: Tree) -> bool:
    """As verl.trainer.ppo.utils.need_critic."""
    enabled = value_at(verl, "critic.enable")
    return value_at(verl, "algorithm.adv_estimator") == "gae" if enabled is None else bool(enabled)


def _check_one(size: _Size, verl: Tree, record: LaunchRecord) -> None:
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


def _like(size: _Size, verl: Tree) -> object:
    """The actor's size where there is one."""
    actor = value_at(verl, f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    return "1" if actor is None else actor
