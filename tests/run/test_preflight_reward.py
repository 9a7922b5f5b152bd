"""A reward manager's name is known before anything starts: veRL's, ours, or the user's file's."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.run.checks.preflight import check_reward_function
from trinity_compat.translate.verl_names import REWARD_MANAGERS

MINE = """
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

@register("mine")
class Mine(NaiveRewardManager):
    pass

def compute_score(**kwargs):
    return 1.0
"""


def check(tmp_path, name, **manager):
    (tmp_path / "mine.py").write_text(MINE)
    function = {"path": "mine.py", "name": "compute_score"}
    reward = {"custom_reward_function": function, "reward_manager": {"name": name, **manager}}
    check_reward_function({"reward": reward}, cwd=tmp_path)


@pytest.mark.parametrize("name", ["mine", "naive", "prime", "gdpo"])
def test_a_manager_that_something_registers(tmp_path, name):
    check(tmp_path, name)


def test_a_manager_that_nothing_registers_is_named(tmp_path):
    with pytest.raises(
        UserError, match=r"reward_manager.name=yours: neither veRL 0.9.1 nor .*mine.py"
    ) as caught:
        check(tmp_path, "yours")
    assert "@register('yours')" in caught.value.hint


def test_a_manager_by_path_is_not_looked_for_in_a_registry(tmp_path):
    check(tmp_path, "Yours", source="importlib", module={"path": "x.py"})


@pytest.mark.verl
def test_the_names_are_those_of_the_registry():
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    from trinity_compat.explorer.rewards.reward_managers import register_legacy

    register_legacy()
    assert set(REWARD_MANAGER) == set(REWARD_MANAGERS)
