"""Trinity's algorithms in veRL's registries, as ``trinity_NAME``; the import registers them.

The trainer's process imports this module and finds the estimators. Its workers find the losses: they build
the actor's configuration and so import the class of its ``_target_``, ``PolicyLoss``. A KL estimate that veRL
lacks has no registry there, and a registered loss gets four columns: ``loss_function`` adds both to veRL's
own loss. verl 0.9.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.distillation import distillation_ppo_loss
from verl.trainer.ppo.core_algos import (
    ADV_ESTIMATOR_REGISTRY,
    POLICY_LOSS_REGISTRY,
    register_adv_est,
    register_policy_loss,
)
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from trinity_compat.buffer.model import DROPPED
from trinity_compat.common import plugin_packages
from trinity_compat.common.errors import UserError
from trinity_compat.trainer.pad_groups import spread, without
from trinity_compat.trinity.algorithms import of_plugins
from trinity_compat.trinity.algorithms.model import (
    FUNCTIONS,
    PREFIX,
    AdvantageInput,
    Loss,
    MaskedAdvantages,
    RegisteredFunction,
    Tokens,
)

# Of a batch with an expert's rows: for each row how many tokens and rows of its kind the update has, [N, 2].
COUNTS = f"{PREFIX}counts"
COLUMNS = f"{PREFIX}columns"  # of a configuration in a worker: what a loss of ours reads beyond veRL's four
# Of a batch: the entropies, which veRL drops, for an estimator that reads them.
ENTROPY = f"{PREFIX}entropy"
_SHARES = ("actor/usual_loss", "actor/expert_loss")
Metrics = dict[str, Any]
LossFunction = Callable[..., tuple[torch.Tensor, Metrics]]


@dataclass
class Algo(AlgoConfig):
    """Configuration ``algorithm`` with arguments of Trinity's estimators.

    It also has the deviation of a group's rewards that the explorer's filter regards as zero.
    """

    trinity_args: dict[str, Any] = field(default_factory=dict)
    trinity_std_threshold: float = 0.0


@dataclass
class PolicyLoss(PolicyLossConfig):
    """Configuration ``actor.policy_loss`` with arguments of Trinity's losses.

    It also has a KL estimate that veRL lacks, the rows whose entropy counts (``usual``: fresh answers; or
    all), and the model that replaces the initial policy as the reference.
    """

    trinity_args: dict[str, Any] = field(default_factory=dict)
    trinity_kl: str | None = None
    trinity_entropy: str | None = None
    trinity_teacher: str | None = None


def estimate(
    function: RegisteredFunction,
    *,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    config: Mapping[str, Any],
    index: np.ndarray,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Estimator with veRL's signature.

    Returns float [N, T] twice: the advantages, also as returns, as veRL's estimators of one reward per answer
    do. ``index``: [N], equal for the answers to one task.
    """
    assert function.call is not None
    if function.columns:  # veRL passes these to no estimator; with_advantages does
        return torch.zeros_like(token_level_rewards), torch.zeros_like(token_level_rewards)
    with torch.no_grad():
        answers = AdvantageInput(token_level_rewards.sum(-1), _groups(index))
        advantages = function.call(answers, **config.get(f"{PREFIX}args", {}))
        spread = advantages.unsqueeze(-1) * response_mask
    return spread, spread


# Column's name for an answer → its name in veRL's batch.
_IN_BATCH: dict[str, Callable[[DataProto], Any]] = {
    "mask": lambda batch: batch.batch["response_mask"].bool(),
    "info": lambda batch: list(batch.non_tensor_batch["reward_extra_info"]),
    "old_log_prob": lambda batch: batch.batch["old_log_probs"],
    "ref_log_prob": lambda batch: batch.batch["ref_log_prob"],
    "rollout_log_prob": lambda batch: batch.batch["rollout_log_probs"],
    "entropy": lambda batch: batch.batch[ENTROPY],
}


def reads_entropy(config: Mapping[str, Any]) -> bool:
    """Return whether the estimator of veRL's ``algorithm`` section needs ENTROPY in the batch."""
    function = _estimator(config)
    return function is not None and "entropy" in function.columns


def _estimator(config: Mapping[str, Any]) -> RegisteredFunction | None:
    name = str(config["adv_estimator"])
    return FUNCTIONS["advantage_fn"].get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None


def with_advantages(batch: DataProto, config: Mapping[str, Any]) -> tuple[DataProto, Metrics]:
    """Add the advantages of an estimator that reads more columns than veRL passes, and its metrics.

    Other batches are returned unchanged. Dropped rows get no advantage. ``config``: veRL's ``algorithm``
    section.
    """
    function = _estimator(config)
    if function is None or not function.columns:
        return batch, {}
    kept = without(DROPPED, batch)
    made = _advantages(function, batch if kept is None else batch.select_idxs(kept), config)
    batch.batch.pop(ENTROPY, None)
    values, mask = (each if kept is None else spread(each, kept) for each in (made.advantages, made.mask))
    batch.batch["response_mask"] = mask.to(batch.batch["response_mask"].dtype)
    batch.batch["advantages"] = values
    batch.batch["returns"] = values.clone()
    return batch, {f"algorithm/{name}": figure for name, figure in made.metrics.items()}


def _advantages(
    function: RegisteredFunction, batch: DataProto, config: Mapping[str, Any]
) -> MaskedAdvantages:
    """Advantages of the batch's tokens [N, T]."""
    assert function.call is not None
    columns = {column: _IN_BATCH[column](batch) for column in function.columns}
    rewards = batch.batch["token_level_rewards"].sum(-1)
    answers = AdvantageInput(rewards, _groups(batch.non_tensor_batch["uid"]), **columns)
    with torch.no_grad():
        made = function.call(answers, **config.get(f"{PREFIX}args", {}))
    if not isinstance(made, MaskedAdvantages):
        made = MaskedAdvantages(made, batch.batch["response_mask"].bool(), {})
    each = made.advantages.unsqueeze(-1) if made.advantages.dim() == 1 else made.advantages
    return replace(made, advantages=each.where(made.mask, 0.0))


def _groups(index: np.ndarray) -> list[list[int]]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for position, task in enumerate(index.tolist()):
        groups[task].append(position)
    return list(groups.values())


def policy_loss(
    function: RegisteredFunction,
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """A policy loss as veRL calls it: a scalar, normalised over the whole mini-batch, and metrics.

    Of several losses each over its own rows of the mini-batch.
    """
    assert function.call is not None
    mask = response_mask.bool()
    columns = dict(getattr(config, COLUMNS, {}))
    counts = columns.pop(COUNTS, None)
    tokens = Tokens(log_prob, old_log_prob, advantages, mask, **columns)
    made = function.call(tokens, **config.policy_loss.trinity_args)
    parts: Sequence[Loss] = [made] if isinstance(made, Loss) else made
    total = log_prob.new_zeros(())
    metrics: Metrics = {}
    for part in parts:
        weighted = part.values if rollout_is_weights is None else part.values * rollout_is_weights
        share = _share(config, mask, part.rows, counts)
        value = aggregate(weighted, _of_rows(mask, part.rows), part.aggregation or loss_agg_mode, **share)
        total = total + part.weight * value
        metrics |= _metrics(part, value, tokens)
    return total, metrics


def _share(
    config: ActorConfig, mask: torch.Tensor, rows: torch.Tensor | None, counts: torch.Tensor | None
) -> dict[str, Any]:
    """Counts of a mini-batch by which veRL normalises a loss.

    For rows of one kind the counts of each row (trainer/experts): [N, 2], tokens and rows of its kind.
    """
    whole = dict(config.global_batch_info)
    if rows is None:
        return whole
    if counts is None:  # the mini-batch is all there is
        tokens, number = int(_of_rows(mask, rows).sum()), int(rows.sum())
    else:
        tokens, number = (int(most) for most in counts[rows].amax(0)) if rows.any() else (1, 1)
    return {**whole, "batch_num_tokens": max(tokens, 1), "global_batch_size": max(number, 1)}


def _of_rows(mask: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return mask if rows is None else mask & rows.unsqueeze(-1)


def _metrics(part: Loss, value: torch.Tensor, tokens: Tokens) -> Metrics:
    """Metrics of one part; for ``expert`` without those of the policy that answered."""
    metrics = {f"actor/{name}": figure.item() for name, figure in part.metrics.items()}
    if part.name:
        metrics[f"actor/{part.name}_loss"] = value.item()
    if part.name != "expert":
        mask = _of_rows(tokens.mask, part.rows)
        metrics["actor/ppo_kl"] = _mean(-tokens.log_ratio.detach(), mask).item()
        if part.clipped is not None:
            metrics["actor/pg_clipfrac"] = _mean(part.clipped.to(value.dtype), mask).item()
    return metrics


def _mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values.where(mask, 0.0).sum() / mask.sum().clamp(min=1)


def aggregate(
    values: torch.Tensor,
    mask: torch.Tensor,
    mode: str,
    *,
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
    loss_scale_factor: int | None = None,
) -> torch.Tensor:
    """Trinity's aggregate_loss (algorithm/utils.py) of [N, T]; of [N], a value for each row, the mean.

    The rows may be a part of a mini-batch: ``batch_num_tokens`` and ``global_batch_size`` count the whole,
    and the gradients of all parts and ranks add up. Unlike veRL's ``agg_loss`` it is 0 where no token counts,
    ignores the values of masked positions, and ``seq-mean-token-sum-norm`` divides the sum by the length
    alone, not by the number of answers too.
    """
    if values.dim() == 1:
        return values.sum() / (global_batch_size or len(values)) * dp_size
    kept = values.where(mask, 0.0)
    if mode == "token-sum":
        return kept.sum() * dp_size
    if mode == "token-mean":
        tokens = int(mask.sum()) if batch_num_tokens is None else batch_num_tokens
        return kept.sum() / max(tokens, 1) * dp_size
    if mode == "seq-mean-token-sum-norm":
        return kept.sum() / (loss_scale_factor or mask.shape[-1]) * dp_size
    rows = kept.sum(-1)
    if mode == "seq-mean-token-mean":
        rows = rows / (mask.sum(-1) + 1e-8)
    elif mode != "seq-mean-token-sum":
        raise ValueError(f"Invalid loss_agg_mode: {mode}")
    return rows.sum() / (global_batch_size or len(rows)) * dp_size


def loss_function(inner: LossFunction, config: ActorConfig) -> LossFunction:
    """Wrap veRL's loss ``inner``, for further columns and for Trinity's KL estimate.

    Returns ``inner`` itself where the configuration needs neither, with the distillation loss in it. Raises
    UserError where both would be in one update: these terms are added to veRL's loss without distillation.
    """
    chosen = config.policy_loss
    own = FUNCTIONS["policy_loss_fn"].get(chosen.loss_mode.removeprefix(PREFIX))
    columns = own.columns if own and chosen.loss_mode.startswith(PREFIX) else ()
    made = partial(_with_columns, columns) if columns else ppo_loss
    entropy, kl = (getattr(chosen, f"{PREFIX}{name}", None) for name in ("entropy", "kl"))
    if not (columns or entropy or kl):
        return inner
    if getattr(inner, "func", None) is distillation_ppo_loss:
        section = "actor_rollout_ref.actor.policy_loss"
        if columns:
            named = f"{section}.loss_mode={chosen.loss_mode}"
        else:
            named = f"{section}.{PREFIX}entropy={entropy}" if entropy else f"{section}.{PREFIX}kl={kl}"
        raise UserError(
            f"{named} cannot be combined with distillation.enabled=True: veRL's loss has no place for both"
        )
    if entropy:
        made = partial(_with_entropy_of_answers, made)
    return partial(_with_kl, FUNCTIONS["kl_loss_fn"][kl], made, config) if kl else partial(made, config)


def _with_columns(
    columns: Sequence[str],
    config: ActorConfig,
    model_output: Mapping[str, Any],
    data: Any,
    dp_group: Any = None,
) -> tuple[torch.Tensor, Metrics]:
    """Compute veRL's loss. It passes four columns to the policy loss; others go with the configuration."""
    wanted = (*columns, *([COUNTS] if COUNTS in data else []))
    padded = data.select(*wanted).to_padded_tensor()
    seen = _changed(config, {COLUMNS: {name: padded[name] for name in wanted}})
    loss, metrics = ppo_loss(seen, model_output, data, dp_group)
    for name in _SHARES:  # of a mini-batch, which veRL would take the mean of
        if name in metrics:
            metrics[name] = Metric(value=metrics[name].aggregate(), aggregation=AggregationType.SUM)
    return loss, metrics


def _with_entropy_of_answers(
    inner: LossFunction,
    config: ActorConfig,
    model_output: Mapping[str, Any],
    data: Any,
    dp_group: Any = None,
) -> tuple[torch.Tensor, Metrics]:
    """The bonus is for the entropy of fresh answers, their mean; an expert's rows have none."""
    loss, metrics = inner(_changed(config, {"entropy_coeff": 0.0}), model_output, data, dp_group)
    entropy = no_padding_2_padding(model_output["entropy"], data)
    padded = data.select("response_mask", "expert_mask", COUNTS).to_padded_tensor()
    rows, mask = ~padded["expert_mask"], padded["response_mask"].bool()
    share = _share(config, mask, rows, padded[COUNTS])
    term = aggregate(entropy, _of_rows(mask, rows), config.loss_agg_mode, **share)
    metrics["actor/entropy_loss"] = Metric(value=term, aggregation=AggregationType.SUM)
    return loss - config.entropy_coeff * term, metrics


def _with_kl(
    function: RegisteredFunction,
    inner: LossFunction,
    config: ActorConfig,
    model_output: Mapping[str, Any],
    data: Any,
    dp_group: Any = None,
) -> tuple[torch.Tensor, Metrics]:
    """Compute veRL's loss without its own KL term, plus Trinity's."""
    assert function.call is not None
    loss, metrics = inner(_changed(config, {"use_kl_loss": False}), model_output, data, dp_group)
    log_prob = no_padding_2_padding(model_output["log_probs"], data)
    padded = data.select("response_mask", "old_log_probs", "ref_log_prob").to_padded_tensor()
    kl = function.call(log_prob, padded["ref_log_prob"], padded["old_log_probs"])
    counted = {name: data[name] for name in ("dp_size", "batch_num_tokens", "global_batch_size")} | {
        "loss_scale_factor": config.loss_scale_factor
    }
    term = aggregate(kl, padded["response_mask"].bool(), config.loss_agg_mode, **counted)
    metrics["kl_loss"] = Metric(value=term, aggregation=AggregationType.SUM)
    metrics["kl_coef"] = config.kl_loss_coef
    return loss + config.kl_loss_coef * term, metrics


def _changed(config: ActorConfig, values: Mapping[str, object]) -> ActorConfig:
    plain = copy(config)
    plain.__dict__.update(values)  # frozen for others; global_batch_info stays the same object
    return plain


for _function in FUNCTIONS["advantage_fn"].values():
    if _function.call is not None:
        register_adv_est(f"{PREFIX}{_function.name}")(partial(estimate, _function))
for _function in FUNCTIONS["policy_loss_fn"].values():
    if _function.call is not None:
        register_policy_loss(f"{PREFIX}{_function.name}")(partial(policy_loss, _function))


def _estimate_by_plugin(name: str, **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return estimate(of_plugins.loaded("advantage_fn", name), **given)


def _loss_of_plugin(name: str, *given: Any, **named: Any) -> tuple[torch.Tensor, Metrics]:
    return policy_loss(of_plugins.loaded("policy_loss_fn", name), *given, **named)


# Under a plugin's own name too, for veRL scripts. A name that veRL has is refused where a run names it.
for _plugin in plugin_packages.of_kind("advantage"):
    for _name in (_plugin.name, f"{PREFIX}{_plugin.name}"):
        if _name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(_name)(partial(_estimate_by_plugin, _plugin.name))
for _plugin in plugin_packages.of_kind("policy_loss"):
    for _name in (_plugin.name, f"{PREFIX}{_plugin.name}"):
        if _name not in POLICY_LOSS_REGISTRY:
            register_policy_loss(_name)(partial(_loss_of_plugin, _plugin.name))
