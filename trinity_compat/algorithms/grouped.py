"""Statistics of the rewards in a group, as several of Trinity's advantages take them."""

from __future__ import annotations

from collections.abc import Callable

from trinity_compat.algorithms.model import Answers, Tensor


def above_baseline(answers: Answers, baseline: Callable[[Tensor], Tensor]) -> Tensor:
    """Each reward less ``baseline`` of its group's rewards [n]; a single answer's baseline is 0."""
    out = answers.rewards.clone()
    for group in answers.groups:
        if len(group) > 1:
            rewards = answers.rewards[list(group)]
            out[list(group)] = rewards - baseline(rewards)
    return out


def standardised(answers: Answers, epsilon: float, *, by_batch: bool = False) -> Tensor:
    """(reward − the group's mean) ÷ (standard deviation + ``epsilon``), Bessel's correction in it; the
    deviation of the group, or of all rewards with ``by_batch``. A single answer's mean is 0 and its
    deviation 1."""
    out = answers.rewards.clone()
    everywhere = answers.rewards.std() if by_batch and len(answers.rewards) > 1 else 1.0
    for group in answers.groups:
        rewards = answers.rewards[list(group)]
        alone = len(group) == 1
        mean, own = (0.0, 1.0) if alone else (rewards.mean(), rewards.std())
        out[list(group)] = (rewards - mean) / ((everywhere if by_batch else own) + epsilon)
    return out
