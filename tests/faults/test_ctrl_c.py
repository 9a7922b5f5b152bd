"""Ctrl-C ends the run with 130 and a word on how to go on, whatever it was doing."""

import pytest


def check(one):
    one.ends()
    assert one.code == 130
    assert one.errors == []
    assert "the same command" in one.out
    assert one.alive() == []
    assert one.out.splitlines()[-1] == str(one.job)


@pytest.mark.runtime
def test_while_ray_starts(run):
    one = run().start()
    one.wait_for(lambda: one.job.exists())
    one.ctrl_c()
    check(one)


@pytest.mark.runtime
@pytest.mark.nightly
def test_while_both_sides_start(run):
    one = run().start()
    one.wait_for(lambda: one.side("trainer") is not None and one.side("explorer") is not None)
    one.ctrl_c()
    check(one)


@pytest.mark.runtime
@pytest.mark.nightly
def test_a_sigterm_to_the_command_ends_everything_too(run):
    one = run().start()
    one.wait_for(lambda: one.side("trainer") is not None)
    one.process.terminate()
    one.ends()
    assert one.code == 143
    assert one.alive() == []


def ended_by_ctrl_c_while_it_trains(one, until):
    """For a run with a checkpoint; test_edited_reward.py has one, and starts it again."""
    # Weights go by files; the engine is checked after the first handover.
    log = one.job / "log" / "explorer.log"
    one.wait_for(lambda: "weight-sync check: version 1: mean log-" in log.read_text() and until())
    one.ctrl_c()
    check(one)
    assert "continues from step" in one.out
    assert one.sql("select role, state from participants where state = 'failed'") == []
    one.nothing_is_left_and_nothing_lost()
