"""REINFORCE++: discounted returns, whitened over the batch; PPO's loss.

    A_t = whiten(Σ_{k ≥ t} γ^(k−t) r_k)

arXiv 2501.03262. veRL's ``reinforce_plus_plus`` has Trinity's numbers where an answer is one block of
tokens; over a tool's tokens between them veRL carries the return through, Trinity discounts it. Ours
follows veRL.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.trinity.algorithms.model import algorithm, of_verl

algorithm("reinforceplusplus", "REINFORCE++", paper="2501.03262", advantage_fn="reinforceplusplus")


@of_verl("advantage_fn", "reinforceplusplus", "advantage_fn/reinforce_plus_plus_advantage.py")
def reinforce_plus_plus(*, gamma: float = 1.0) -> Mapping[str, object]:
    """Return veRL's keys."""
    return {"algorithm.adv_estimator": "reinforce_plus_plus", "algorithm.gamma": gamma}
