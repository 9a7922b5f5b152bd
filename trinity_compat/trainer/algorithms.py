"""Trinity's algorithms in veRL's registries: importing this enters them, as ``trinity_NAME``.

The estimators are looked up in the trainer's process, which imports this; the losses in its workers, which
build the actor's configuration and so import the class that its ``_target_`` names, ``PolicyLoss`` below. A
KL estimate that veRL lacks has no registry there, and a registered loss sees four columns: ``loss_function``
puts both around veRL's own loss. verl 0.9.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from trinity_compat.algorithms.chosen import PREFIX
from trinity_compat.algorithms.model import FUNCTIONS, Answers, Function, Tokens

COLUMNS = f"{PREFIX}columns"  # of a configuration in a worker: what a loss of ours reads beyond veRL's four
Metrics = dict[str, Any]
LossFunction = Callable[..., tuple[torch.Tensor, Metrics]]


@dataclass
class Algo(AlgoConfig):
    """veRL's ``algorithm`` with the arguments of an estimator of ours."""

    trinity_args: dict[str, Any] = field(default_factory=dict)


@dataclass
class PolicyLoss(PolicyLossConfig):
    """veRL's ``actor.policy_loss`` with the arguments of a loss of ours, and a KL estimate that veRL
    lacks."""

    trinity_args: dict[str, Any] = field(default_factory=dict)
    trinity_kl: str | None = None


def estimate(
    function: Function,
    *,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    config: Mapping[str, Any],
    index: np.ndarray,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """An estimator as veRL calls it: float [N, T] twice, the advantages and, as for veRL's own of one
    reward per answer, the same as returns. ``index``: [N], equal for the answers to one task."""
    assert function.call is not None
    with torch.no_grad():
        answers = Answers(token_level_rewards.sum(-1), _groups(index))
        advantages = function.call(answers, **config.get(f"{PREFIX}args", {}))
        spread = advantages.unsqueeze(-1) * response_mask
    return spread, spread


def _groups(index: np.ndarray) -> list[list[int]]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for position, task in enumerate(index.tolist()):
        groups[task].append(position)
    return list(groups.values())


def policy_loss(
    function: Function,
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """A policy loss as veRL calls it: a scalar, normalised over the whole mini-batch, and metrics."""
    assert function.call is not None
    mask = response_mask.bool()
    tokens = Tokens(log_prob, old_log_prob, advantages, mask, **getattr(config, COLUMNS, {}))
    loss = function.call(tokens, **config.policy_loss.trinity_args)
    weighted = loss.values if rollout_is_weights is None else loss.values * rollout_is_weights
    metrics = {"actor/ppo_kl": _mean(-tokens.log_ratio.detach(), mask).item()}
    metrics |= {f"actor/{name}": value.item() for name, value in loss.metrics.items()}
    if loss.clipped is not None:
        metrics["actor/pg_clipfrac"] = _mean(loss.clipped.to(log_prob.dtype), mask).item()
    return aggregate(weighted, mask, loss.aggregation or loss_agg_mode, **config.global_batch_info), metrics


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
    """Trinity's aggregate_loss (algorithm/utils.py) of [N, T], over a mini-batch of which this may be a part:
    ``batch_num_tokens`` and ``global_batch_size`` count the whole, and the gradients of all parts and ranks
    add up. Of [N], a value for each row, the mean.

    Against veRL's ``agg_loss``: 0 where no token counts, what masked places hold counts for nothing, and
    ``seq-mean-token-sum-norm`` is the sum by the length alone, not by the number of answers too.
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
    """``inner``, veRL's loss, with the columns that a loss of ours reads and Trinity's estimate of KL in
    place of veRL's; itself where the configuration asks for neither."""
    mode, kl = config.policy_loss.loss_mode, getattr(config.policy_loss, f"{PREFIX}kl", None)
    own = FUNCTIONS["policy_loss_fn"].get(mode.removeprefix(PREFIX)) if mode.startswith(PREFIX) else None
    columns = own.columns if own else ()
    made = partial(_with_columns, columns) if columns else ppo_loss
    if kl:
        return partial(_with_kl, FUNCTIONS["kl_loss_fn"][kl], made, config)
    return partial(made, config) if columns else inner


def _with_columns(
    columns: Sequence[str],
    config: ActorConfig,
    model_output: Mapping[str, Any],
    data: Any,
    dp_group: Any = None,
) -> tuple[torch.Tensor, Metrics]:
    """veRL's loss, which hands its policy loss four columns; the others go with the configuration."""
    padded = data.select(*columns).to_padded_tensor()
    seen = _changed(config, {COLUMNS: {name: padded[name] for name in columns}})
    return ppo_loss(seen, model_output, data, dp_group)


def _with_kl(
    function: Function,
    inner: LossFunction,
    config: ActorConfig,
    model_output: Mapping[str, Any],
    data: Any,
    dp_group: Any = None,
) -> tuple[torch.Tensor, Metrics]:
    """veRL's loss without its own KL term, plus ours."""
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
