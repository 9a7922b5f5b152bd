"""DPO: the policy prefers the chosen answer of a pair to the rejected one, more than its reference does.

    L = −(1 − s) log σ(β d) − s log σ(−β d);   d = Σ log(π / π_ref) chosen − Σ log(π / π_ref) rejected

arXiv 2305.18290; s, ``label_smoothing``, as in cDPO. Rows come in pairs, the chosen one first, and a
micro-batch holds whole pairs. Columns: reference log-probabilities. Trinity adds its KL term (k2) and takes
no "none" for it, which is what keeps the reference model.
"""

from __future__ import annotations

from trinity_compat.trinity.algorithms.model import Loss, Tensor, Tokens, algorithm, policy_loss

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
