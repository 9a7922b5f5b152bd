"""REC's advantage where trinity-rft 0.6.0 raises, or draws at random."""

import pytest
import torch

from trinity_compat.trinity.algorithms.model import AdvantageInput
from trinity_compat.trinity.algorithms.policy_gradients import rec_advantage


def advantages(rewards, groups, **arguments):
    return rec_advantage(AdvantageInput(torch.tensor(rewards), groups), **arguments).tolist()


def test_a_single_answer_has_its_reward():
    assert advantages([0.75, 1.0, 0.0], [[0], [1, 2]]) == [0.75, 0.5, -0.5]


def test_as_many_bad_answers_as_good_ones_are_left():
    for _ in range(5):
        found = advantages([1.0, 0.0, 0.0, 0.0], [[0, 1, 2, 3]], drop="balance")
        assert found[0] == 0.5 and sorted(found) == [-0.5, 0.0, 0.0, 0.5]


def test_which_bad_answers_are_left_is_drawn():
    drawn = {tuple(advantages([1.0, 0.0, 0.0, 0.0], [[0, 1, 2, 3]], drop="balance")) for _ in range(60)}
    assert len(drawn) == 3


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
def test_where_good_answers_prevail_none_is_dropped(rewards):
    group = [list(range(len(rewards)))]
    assert sorted(advantages(rewards, group, drop="balance")) == sorted(advantages(rewards, group))
