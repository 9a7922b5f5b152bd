"""The two sides as two commands against one job directory, each with a Ray of its own."""

import pytest
from test_several_machines import remax_compares_each_answer_with_its_group_s_greedy_one

from trinity_compat.buffer import open_buffer


@pytest.mark.runtime
@pytest.mark.nightly
def test_explore_and_train_as_two_commands(run):
    words = ("trainer.total_training_steps=4", "algorithm.adv_estimator=remax")
    explore = run(*words, options=["--mode", "explore"], name="explore").start()
    explore.wait_for((explore.job / "config" / "run.json").exists)
    train = run(*words, options=["--mode", "train"], name="train").start()
    train.finish()
    explore.ends()
    assert (train.code, explore.code) == (0, 0), train.err + explore.err
    assert "joining the run" in train.out
    assert train.trained_steps() == 4
    explore.nothing_is_left_and_nothing_lost(runs=8 + 1)
    assert train.alive() == []
    buffer = open_buffer(f"sqlite:///{train.job}/buffer/experiences.db", create=False)
    remax_compares_each_answer_with_its_group_s_greedy_one(buffer, steps=4)
    buffer.close()


@pytest.mark.runtime
@pytest.mark.nightly
def test_the_explorer_s_death_ends_the_trainer_of_another_command(run):
    words = ("trainer.total_training_steps=1000",)
    explore = run(*words, options=["--mode", "explore"], name="explore").start()
    explore.wait_for((explore.job / "config" / "run.json").exists)
    train = run(*words, options=["--mode", "train"], name="train").start()
    train.wait_for(lambda: train.trained_steps() > 0)
    explore.side("explorer").kill()
    train.ends()
    explore.ends()
    assert (train.code, explore.code) == (1, 1)
    assert len(explore.errors) == 1 and "the explorer was killed by SIGKILL" in explore.errors[0]
    assert len(train.errors) == 1 and "trainer ended" in train.errors[0]
    train.nothing_is_left_and_nothing_lost()
