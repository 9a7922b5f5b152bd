"""A reward file that is edited: after Ctrl-C the waiting answers are made again, under a running job nothing
of the new file is mixed with the old one's."""

import re

import pytest
from test_ctrl_c import ended_by_ctrl_c_while_it_trains

REWARD = """def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("scores")
    return {}
"""
USED = "from ledger l join experiences e on e.group_id = l.group_id"
STYLE = ("--set", "synchronizer.sync_style=fully_async")


@pytest.mark.runtime
@pytest.mark.whole
def test_no_answer_is_trained_with_the_reward_of_another_file(run, tmp_path):
    path = tmp_path / "r.py"
    path.write_text(REWARD.format("1.0"))
    endless = ("trainer.total_epochs=50", "trainer.total_training_steps=1000")
    words = (*endless, f"reward.custom_reward_function.path={path}")
    one = run(*words, options=STYLE).start()
    one.wait_for(lambda: (one.job / "latest_checkpointed_iteration.txt").exists())
    ended_by_ctrl_c_while_it_trains(one, until=lambda: waiting(one) >= 8)
    step = int((one.job / "latest_checkpointed_iteration.txt").read_text())

    path.write_text(REWARD.format("-7.0"))
    again = run(*words, options=(*STYLE, "--restarts", "1"), name="again").start()
    again.wait_for(
        lambda: again.sql(f"select count(distinct l.trainer_step) {USED} where reward = -7")[0][0] >= 3
    )
    assert f"reward function {path} was edited: " in again.out
    again.wait_for(lambda: re.search(r"(?m)^\(RewardFunction pid=\d+\) scores$", again.out))
    log = (again.job / "log" / "trainer.log").read_text()
    assert f"[trinity] reward function {path} was edited: " in log
    rewards = again.sql(f"select distinct l.trainer_step <= {step}, e.reward {USED}")
    assert sorted(rewards) == [(0, -7.0), (1, 1.0)]

    path.write_text(REWARD.format("5.0"))
    again.side("explorer").kill()
    again.finish()
    assert again.code == 2
    assert f"reward function {path} was edited since the run started" in again.err
    assert again.sql("select count(*) from experiences where reward = 5.0") == [(0,)]
    again.nothing_is_left_and_nothing_lost()


def waiting(one):
    return one.sql("select count(*) from task_groups where kind = 'train' and state = 'ready'")[0][0]
