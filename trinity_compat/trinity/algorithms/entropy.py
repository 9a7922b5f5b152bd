"""The entropy bonus: L − c · H, averaged as the policy loss is.

veRL's is Trinity's ``default``; ``mix`` stands in mix.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.trinity.algorithms.model import of_verl

_SOURCE = "entropy_loss_fn/entropy_loss_fn.py"
_COEFFICIENT = "actor_rollout_ref.actor.entropy_coeff"


@of_verl("entropy_loss_fn", "default", _SOURCE)
def bonus(*, entropy_coef: float = 0.0) -> Mapping[str, object]:
    """Set veRL's coefficient of the bonus."""
    return {_COEFFICIENT: entropy_coef}


@of_verl("entropy_loss_fn", "none", _SOURCE)
def none(*, entropy_coef: float = 0.0) -> Mapping[str, object]:
    """Set veRL's coefficient to 0."""
    return {_COEFFICIENT: 0}
