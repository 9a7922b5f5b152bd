"""The batches of ``algorithm_cases.py`` as tensors, and what is kept of a result: torch alone is needed."""

import torch
from algorithm_cases import LENGTH, answer_batch, token_batch, turns


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
        "rollout_log_probs": torch.tensor(of["old"]) - 0.1,
        "teacher_logprobs": torch.tensor(of["teacher"]),
        "entropys": torch.tensor(of["teacher"]).abs(),
    }


def in_turns(name):
    """(the mask of answers in turns, what is told of each): every second token is the environment's."""
    told = turns(name)
    mask = torch.zeros(len(told), LENGTH)
    for row, each in enumerate(told):
        mask[row, : 2 * len(each) : 2] = 1.0
    info = [{key: [turn[key] for turn in each] for key in each[0]} for each in told]
    return mask, info
