"""Clip_B: GRPO without the tokens of bad answers that pull the policy's entropy about the most.

    A: of GRPO;  S_t = p_t (H_t + log p_t), p_t the token's probability in the rollout, H_t the entropy of the
    policy there;  a token counts unless A < 0 and S_t − E[S] < −μ σ(S), over the tokens of the update

arXiv 2602.03392. Columns: the rollout's log-probabilities, and the entropies of the policy as the step finds
it. A token that is left out counts nowhere, as if the mask had been without it: no loss, no KL, no length.
"""

from __future__ import annotations

from trinity_compat.trinity.algorithms.grouped import standardised
from trinity_compat.trinity.algorithms.model import AdvantageInput, MaskedAdvantages, Tensor, advantage

_COLUMNS = ("mask", "rollout_log_prob", "entropy")
_LEAST = 1e-12  # of a deviation: below it all tokens are kept


@advantage("clipb", "advantage_fn/clipb_advantage.py", columns=_COLUMNS)
def clipb(answers: AdvantageInput, *, epsilon: float = 1e-6, mu: float = 2.5) -> MaskedAdvantages:
    """Clip-B's advantages [N, T] and the mask of trained tokens."""
    mask = answers.mask
    advantages = standardised(answers, epsilon).unsqueeze(-1) * mask
    log_prob = answers.rollout_log_prob
    signal = log_prob.exp() * (answers.entropy + log_prob)
    seen = signal[mask]
    mean, variance = seen.mean(), seen.var(correction=0)
    deviation = variance.sqrt()
    kept = mask & ((advantages >= 0) | (signal - mean >= -mu * deviation) | (deviation < _LEAST))
    figures = {
        "frac_clipped": _left_out(kept, mask),
        "frac_clipped_pos": _left_out(kept, mask & (advantages > 0)),
        "frac_clipped_neg": _left_out(kept, mask & (advantages < 0)),
        "ES": mean,
        "varS": variance,
    }
    return MaskedAdvantages(advantages, kept, {name: float(value) for name, value in figures.items()})


def _left_out(kept: Tensor, of: Tensor) -> Tensor:
    """The share of the tokens in ``of``; as upstream has it, 1 where there are none."""
    return 1 - (kept & of).sum() / of.sum().clamp(min=1)
