"""Where a loss begins to leave tokens out, and what gigpo refuses. The formulas are Trinity's."""

import math
from dataclasses import replace

import pytest
import torch

from trinity_compat.common.errors import RunError
from trinity_compat.trinity.algorithms.grouped import _check_counts
from trinity_compat.trinity.algorithms.model import Tokens
from trinity_compat.trinity.algorithms.ppo import ppo_loss, sppo_loss
from trinity_compat.trinity.algorithms.supervised import dpo_loss


def tokens(*log_ratios, advantage=-1.0):
    ratios = torch.tensor([log_ratios], dtype=torch.float64)
    advantages = torch.full_like(ratios, advantage)
    return Tokens(ratios, torch.zeros_like(ratios), advantages, torch.ones_like(ratios, dtype=torch.bool))


def test_sppo_keeps_an_unchanged_token_at_any_range():
    assert sppo_loss(tokens(0.0), epsilon=0.0).clipped.tolist() == [[False]]
    assert sppo_loss(tokens(-0.01, 0.01), epsilon=0.0).clipped.tolist() == [[True, True]]


@pytest.mark.parametrize(("log_ratio", "counts"), [(-0.09, True), (-0.11, False)])
def test_ppo_masks_an_answer_that_has_strayed_a_tenth_from_the_old_policy(log_ratio, counts):
    loss = ppo_loss(tokens(log_ratio, log_ratio), clip_range=0.2, enable_sequence_masking=True)
    assert loss.values.ne(0).all().item() is counts
    good = tokens(log_ratio, log_ratio, advantage=1.0)
    assert ppo_loss(good, clip_range=0.2, enable_sequence_masking=True).values.ne(0).all()


@pytest.mark.parametrize("told", [[0.5], [0.5, 1.0, 0.0]])
def test_gigpo_wants_a_value_for_each_turn(told):
    answers = type("Answers", (), {"info": [{"step_reward": told}, {}]})
    with pytest.raises(RunError, match=f"step_reward has {len(told)} values for an answer of 2 turns"):
        _check_counts("step_reward", answers, [2, 2])
    _check_counts("step_reward", answers, [len(told), 2])


@pytest.mark.parametrize(("lead", "right"), [(0.1, 1.0), (0.0, 0.0), (-0.1, 0.0)])
def test_dpo_counts_a_pair_as_right_where_the_chosen_answer_leads(lead, right):
    pair = tokens(0.0, 0.0)
    log_prob = torch.tensor([[lead, 0.0], [0.0, 0.0]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    loss = dpo_loss(replace(pair, log_prob=log_prob, ref_log_prob=torch.zeros(2, 2), mask=mask), beta=0.5)
    assert loss.metrics["accuracy_mean"] == right
    assert loss.metrics["chosen_reward"] == pytest.approx(lead / 2) and loss.metrics["rejected_reward"] == 0
    assert loss.values.tolist() == pytest.approx([math.log1p(math.exp(-lead / 2))] * 2)
