"""The batches of ``algorithm_cases.py`` as tensors, and what is kept of a result: torch alone is needed."""

import torch
from algorithm_cases import answer_batch, token_batch


def tokens(name):
    """Float64 [N, T], ``log_prob`` with a gradient, ``mask`` bool."""
    wanted = {key: torch.tensor(rows, dtype=torch.float64) for key, rows in token_batch(name).items()}
    wanted["log_prob"].requires_grad_()
    return {**wanted, "mask": wanted["mask"].bool()}


def of_loss(loss, of):
    """Its value and its gradient at the tokens that count."""
    gradient = torch.zeros_like(of["log_prob"])
    if loss.requires_grad:
        (gradient,) = torch.autograd.grad(loss, of["log_prob"])
    assert not gradient[~of["mask"]].any()
    return {"loss": loss.item(), "gradient": gradient[of["mask"]].tolist()}


def answers(name):
    """The columns of an estimator of tokens; an answer's reward stands at its last token."""
    of = answer_batch(name)
    mask = torch.tensor(of["mask"], dtype=torch.float32)
    rewards = torch.zeros_like(mask)
    rewards[range(len(mask)), mask.long().sum(-1) - 1] = torch.tensor(of["rewards"])
    return {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "values": torch.tensor(of["values"]),
        "reward_baselines": torch.tensor(of["baselines"]),
        "old_log_probs": torch.tensor(of["old"]),
        "teacher_logprobs": torch.tensor(of["teacher"]),
    }
