"""Losses on rows of a file: supervised learning, DPO's pairs, and an expert's rows beside fresh answers.

    sft, cpt, raft:  L = −log π, on a file's rows or the policy's own answers (RAFT)
    dpo:             L = −(1 − s) log σ(β d) − s log σ(−β d);
                     d = Σ log(π / π_ref) chosen − Σ log(π / π_ref) rejected
    mix, mix_chord:  L = (1 − μ) L_ppo(fresh answers) + μ L_sft(expert's rows)

CPT, continued pre-training, is on whole texts. No explorer, critic or reference is needed, and no column. The
advantage counts for nothing; Trinity's default for it is ppo, which would ask for a critic here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trinity_compat.trinity.algorithms.model import (
    CLASSES,
    MIX,
    PREFIX,
    Aggregation,
    Loss,
    Tensor,
    Tokens,
    algorithm,
    of_verl,
    policy_loss,
)
from trinity_compat.trinity.algorithms.ppo import ppo_loss, ranges_given

_PARTS = {
    "advantage_fn": "reinforce",
    "policy_loss_fn": "sft",
    "kl_loss_fn": "none",
    "entropy_loss_fn": "none",
}
_CHORD = "policy_loss_fn/chord_policy_loss.py"  # arXiv 2508.11408: a token weighs by how likely it is already

algorithm("sft", "supervised fine-tuning", schema="sft", **_PARTS)
algorithm("cpt", "continued pre-training", schema="cpt", **_PARTS)
algorithm("raft", "RAFT", paper="2304.06767", **_PARTS)  # which answers are trained is chosen before


@policy_loss("sft", "policy_loss_fn/sft_loss.py")
def sft_loss(tokens: Tokens, *, loss_agg_mode: Aggregation = "token-mean") -> Loss:
    """−log π, [N, T]."""
    return Loss(-tokens.log_prob)


@policy_loss("sft_is", _CHORD)
def sft_is_loss(tokens: Tokens, *, loss_agg_mode: Aggregation = "token-mean") -> Loss:
    """−π log π with the weight π held constant, [N, T]."""
    return Loss(-tokens.log_prob * tokens.log_prob.detach().exp())


@policy_loss(
    "sft_phi",
    _CHORD,
    check=lambda arguments: (
        "" if 0 < arguments["cutoff_prob"] <= 1 else "cutoff_prob must be above 0, at most 1"
    ),
)
def sft_phi_loss(
    tokens: Tokens, *, loss_agg_mode: Aggregation = "token-mean", cutoff_prob: float = 1.0
) -> Loss:
    """−π (1 − π) log π with the weight held constant, log π at most log ``cutoff_prob``, [N, T]."""
    likely = tokens.log_prob.detach().exp()
    log_prob = tokens.log_prob if cutoff_prob == 1 else tokens.log_prob.clamp(max=math.log(cutoff_prob))
    return Loss(-log_prob * likely * (1 - likely))


# DPO: the policy prefers the chosen answer of a pair to the rejected one, more than its reference does. arXiv
# 2305.18290; s, ``label_smoothing``, as in cDPO. Rows come in pairs, the chosen one first, and a micro-batch
# holds whole pairs. Columns: reference log-probabilities. Trinity adds its KL term (k2) and takes no "none"
# for it, which is what keeps the reference model.
algorithm("dpo", "DPO", paper="2305.18290", advantage_fn="reinforce", policy_loss_fn="dpo", schema="dpo")


@policy_loss("dpo", "policy_loss_fn/dpo_loss.py", columns=("ref_log_prob",))
def dpo_loss(tokens: Tokens, *, beta: float = 0.1, label_smoothing: float = 0.0) -> Loss:
    """DPO's loss, [N]."""
    rewards = beta * (tokens.log_prob - tokens.ref_log_prob).where(tokens.mask, 0.0).sum(-1)
    chosen, rejected = rewards[::2], rewards[1::2]
    lead = chosen - rejected
    lost = _minus_log_sigmoid(lead) * (1 - label_smoothing) + _minus_log_sigmoid(-lead) * label_smoothing
    metrics = {
        "chosen_reward": chosen.detach().mean(),
        "rejected_reward": rejected.detach().mean(),
        "accuracy_mean": (lead > 0).to(lead.dtype).mean(),
    }
    # Each row stands for its pair: the mean over rows is the mean over pairs.
    return Loss(lost.repeat_interleave(2), metrics=metrics)


def _minus_log_sigmoid(value: Tensor) -> Tensor:
    return (-value).logaddexp(value.new_zeros(()))


# mix (arXiv 2505.17826) has a fixed μ and −log π for the expert. mix_chord (2508.11408) has a μ that rises
# over ``mu_warmup_steps`` and falls on a cosine over ``mu_decay_steps``, and with ``enable_phi_function`` the
# loss −sg(π (1 − π)) log π. Columns: which rows are the expert's; the step.
#
# Each half is the mean over its own rows of the whole update. Trinity makes that mean of the micro-batches',
# by arguments that tell its trainer's sizes (``train_batch_size_usual``, ``use_dynamic_bsz``, …); here the
# rows are counted, so that they decide nothing.
EXPERT = "expert_mask"
_ACTOR = "actor_rollout_ref.actor"


_MIXED = {"advantage_fn": "grpo", "entropy_loss_fn": "mix", "sample_strategy": MIX}
algorithm("mix", "MIX", paper="2505.17826", policy_loss_fn="mix", **_MIXED)
algorithm("mix_chord", "CHORD", paper="2508.11408", policy_loss_fn="mix_chord", **_MIXED)


@policy_loss(
    "mix",
    "policy_loss_fn/mix_policy_loss.py",
    columns=(EXPERT,),
    without_arguments={"clip_range": 0.2},
    check=ranges_given,
)
def mix_loss(
    tokens: Tokens,
    *,
    mu: float = 0.1,
    clip_range: float | None = None,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    use_dynamic_bsz: bool | None = None,
    ppo_mini_batch_size: int = 1,
    ppo_micro_batch_size_per_gpu: int = 1,
    ngpus_trainer: int = 1,
    train_batch_size_usual: int = 1,
    train_batch_size_expert: int = 1,
    loss_agg_mode: Aggregation = "token-mean",
    sft_loss_agg_mode: Aggregation | None = None,
    grpo_loss_agg_mode: Aggregation | None = None,
) -> Sequence[Loss]:
    """MIX's two losses, each with its rows and weight."""
    ranges = (clip_range, clip_range_low, clip_range_high)
    return _halves(tokens, sft_loss(tokens), mu, ranges, grpo_loss_agg_mode, sft_loss_agg_mode)


@policy_loss(
    "mix_chord",
    "policy_loss_fn/chord_policy_loss.py",
    columns=(EXPERT, "step"),
    without_arguments={"clip_range": 0.2},
    check=ranges_given,
)
def mix_chord_loss(
    tokens: Tokens,
    *,
    mu_warmup_steps: int = 0,
    mu_decay_steps: int = 0,
    mu_peak: float = 0.1,
    mu_valley: float = 0.1,
    enable_phi_function: bool = True,
    clip_range: float | None = None,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    use_dynamic_bsz: bool | None = None,
    ppo_mini_batch_size: int = 1,
    ppo_micro_batch_size_per_gpu: int = 1,
    ngpus_trainer: int = 1,
    train_batch_size_usual: int = 1,
    train_batch_size_expert: int = 1,
    loss_agg_mode: Aggregation = "token-mean",
    sft_loss_agg_mode: Aggregation | None = None,
    grpo_loss_agg_mode: Aggregation | None = None,
) -> Sequence[Loss]:
    """CHORD's two losses, each with its rows and weight."""
    mu = mu_at(int(tokens.step.max()), mu_warmup_steps, mu_decay_steps, mu_peak, mu_valley)
    expert = sft_phi_loss(tokens) if enable_phi_function else sft_loss(tokens)
    ranges = (clip_range, clip_range_low, clip_range_high)
    usual, expert = _halves(tokens, expert, mu, ranges, grpo_loss_agg_mode, sft_loss_agg_mode)
    return usual, replace(expert, metrics={"mu": tokens.log_prob.new_tensor(mu)})


def mu_at(step: int, warmup: int, decay: int, peak: float, valley: float) -> float:
    """μ of a step: a straight line from 0 to ``peak``, then half a cosine down to ``valley``."""
    if step < warmup:
        return step / warmup * peak
    if step >= warmup + decay:
        return valley
    return valley + (peak - valley) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / decay))


def _halves(
    tokens: Tokens,
    expert: Loss,
    mu: float,
    ranges: tuple[float | None, float | None, float | None],
    usual_mode: Aggregation | None,
    expert_mode: Aggregation | None,
) -> tuple[Loss, Loss]:
    """Return both losses with rows and weight; an aggregation mode of None is the run's."""
    common, low, high = ranges
    usual = ppo_loss(tokens, clip_range=common, clip_range_low=low, clip_range_high=high)
    is_expert: Tensor = tokens.expert_mask
    return (
        replace(usual, rows=~is_expert, weight=1 - mu, name="usual", aggregation=usual_mode),
        replace(expert, rows=is_expert, weight=mu, name="expert", aggregation=expert_mode),
    )


@of_verl("entropy_loss_fn", "mix", "entropy_loss_fn/entropy_loss_fn.py", columns=(EXPERT,))
def _entropy(*, entropy_coef: float = 0.0) -> Mapping[str, Any]:
    """Return veRL's keys for the entropy of fresh answers alone; veRL's own bonus has that of all rows."""
    ours = {
        f"{_ACTOR}.policy_loss._target_": f"{CLASSES}.PolicyLoss",
        f"{_ACTOR}.policy_loss.{PREFIX}entropy": "usual",
    }
    return {f"{_ACTOR}.entropy_coeff": entropy_coef, **(ours if entropy_coef else {})}
