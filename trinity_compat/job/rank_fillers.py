"""Launches whose trainer may have ranks that do not divide an update: fillers make up its rows.

``trainer/rank_fillers.py`` adds them. An update with fillers is to be exactly that of its own rows
(docs/decisions/fillers-of-ranks.md); where it would not be, the ranks have to divide it, as under veRL.
"""

from __future__ import annotations

from collections.abc import Callable

_ACTOR = "actor_rollout_ref.actor"
_UPDATED = (_ACTOR, "critic")


def no_fillers(value: Callable[[str], object]) -> str:
    """Return the reason against fillers; "" where they are possible. ``value`` gives a veRL key's value."""
    if (strategy := value(f"{_ACTOR}.strategy")) not in ("fsdp", "fsdp2"):
        return f"under {_ACTOR}.strategy={strategy} a filler may count in a loss of the engine's own"
    if value("trainer.use_v1"):
        return "veRL's v1 trainer hands its workers whole shares of an update only"
    if value(f"{_ACTOR}.policy_loss.loss_mode") == "geo_mean":
        return "policy_loss.loss_mode=geo_mean is a mean over each micro-batch, which fillers make smaller"
    if value(f"{_ACTOR}.use_prefix_grouper"):
        return f"{_ACTOR}.use_prefix_grouper=True gives each rank whole groups"
    for role in _UPDATED:
        several = value(f"{role}.ppo_mini_batch_size") != value("data.train_batch_size")
        if several and value(f"{role}.shuffle"):
            return f"{role}.shuffle=True would deal the fillers unevenly to the updates of a step"
    return ""
