"""Refusal of runs that the adapter of veRL's v1 trainer does not train, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.settings import SETTINGS
from trinity_compat.trinity.algorithms.model import PREFIX
from trinity_compat.trinity.pipelines import SECTION as PIPELINE
from trinity_compat.trinity.workflows.tasksets import SECTION as WORKFLOWS

# Estimators that read more than the seven columns which v1 hands over (verl 0.9.1, trainer_base.py:
# _compute_advantage).
_READ_MORE = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")
_LOSS = "actor_rollout_ref.actor.policy_loss"


def check(spec: RunSpec) -> list[str]:
    """Return what to say of a run of v1. Raises UserError for one that needs more than its adapter does."""
    if spec.trainer != "v1":
        return []
    key = SETTINGS["trainer"].key
    if found := next(_unfit(spec), None):
        raise UserError(f"{key}: {found}", hint=f"let veRL's v0 trainer train it: --set {key}=v0")
    return [
        f"{key}=v1: mini-batches hold other rows than v0's, and losses are divided by rejected tokens too"
    ]


def _unfit(spec: RunSpec) -> Iterator[str]:
    if spec.rows:
        yield "v1 does not train rows of files here"
    if spec.experts:
        yield "v1 does not train an expert's rows here"
    if value_at(spec.verl, WORKFLOWS):
        yield "v1 does not train answers of Trinity's workflows here"
    if value_at(spec.verl, PIPELINE):
        yield "v1 does not train answers that a pipeline's operators change"
    if value_at(spec.verl, "distillation.enabled"):
        yield "v1 does not distil here, and distillation.enabled=True"
    estimator = str(value_at(spec.verl, "algorithm.adv_estimator"))
    if estimator in _READ_MORE or estimator.startswith(PREFIX):
        yield f"v1 does not hand over the columns that algorithm.adv_estimator={estimator} reads"
    policy_loss = value_at(spec.verl, _LOSS) or {}
    for name, value in policy_loss.items():
        if str(value).startswith(PREFIX) or (name.startswith(PREFIX) and value):
            yield f"v1 does not compute {_LOSS}.{name}={value} here"
