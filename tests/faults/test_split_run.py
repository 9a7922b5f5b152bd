"""The two sides as two commands against one job directory, each with a Ray of its own."""

import pytest


@pytest.mark.runtime
def test_explore_and_train_as_two_commands(run):
    words = ("trainer.total_training_steps=4",)
    explore = run(*words, options=["--mode", "explore"], name="explore").start()
    explore.wait_for(lambda: explore.side("explorer") is not None)
    train = run(*words, options=["--mode", "train"], name="train").start()
    train.finish()
    explore.ends()
    assert (train.code, explore.code) == (0, 0), train.err + explore.err
    assert "joins the run" in train.out
    assert train.trained_steps() == 4
    explore.nothing_is_left_and_nothing_lost()
    assert train.alive() == []


@pytest.mark.runtime
def test_the_explorer_s_death_ends_the_trainer_of_another_command(run):
    words = ("trainer.total_training_steps=1000",)
    explore = run(*words, options=["--mode", "explore"], name="explore").start()
    explore.wait_for(lambda: explore.side("explorer") is not None)
    train = run(*words, options=["--mode", "train"], name="train").start()
    train.wait_for(lambda: train.trained_steps() > 0)
    explore.side("explorer").kill()
    train.ends()
    explore.ends()
    assert (train.code, explore.code) == (1, 1)
    assert len(train.errors) == 1 and "trainer ended" in train.errors[0]
    train.nothing_is_left_and_nothing_lost()
