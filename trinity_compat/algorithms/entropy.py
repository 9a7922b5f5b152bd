"""The entropy bonus: L − c · H, averaged as the policy loss is. veRL's is Trinity's ``default``."""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.algorithms.model import of_verl

_SOURCE = "entropy_loss_fn/entropy_loss_fn.py"
_COEFFICIENT = "actor_rollout_ref.actor.entropy_coeff"


@of_verl("entropy_loss_fn", "default", _SOURCE)
def bonus(*, entropy_coef: float = 0.0) -> Mapping[str, object]:
    return {_COEFFICIENT: entropy_coef}


@of_verl("entropy_loss_fn", "none", _SOURCE)
def none(*, entropy_coef: float = 0.0) -> Mapping[str, object]:
    return {_COEFFICIENT: 0}


@of_verl(
    "entropy_loss_fn",
    "mix",
    _SOURCE,
    lacks=lambda arguments: "it needs to know which rows are an expert's, which the buffer does not hold",
)
def mix(*, entropy_coef: float = 0.0) -> Mapping[str, object]:
    return {}
