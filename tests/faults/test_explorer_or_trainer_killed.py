"""The one that dies is named, the other is ended within ten seconds, and the rerun goes on."""

import time

import pytest

from trinity_compat.runtime.export import to_hf


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_the_explorer_is_killed_and_the_same_command_continues(run):
    one = run("trainer.total_training_steps=400").start()
    one.wait_for(lambda: (one.job / "latest_checkpointed_iteration.txt").exists())
    one.side("explorer").kill()
    began = time.monotonic()
    one.finish(30)
    assert time.monotonic() - began < 20  # noticed at once; the trainer has 10 s to end by itself
    assert one.code == 1
    assert len(one.errors) == 1 and "the explorer was killed by SIGKILL" in one.errors[0]
    one.nothing_is_left_and_nothing_lost()

    step = int((one.job / "latest_checkpointed_iteration.txt").read_text())
    again = run(f"trainer.total_training_steps={step + 2}").start().finish()
    assert again.code == 0, again.err
    assert f"from step {step}" in again.out
    steps = [row[0] for row in again.sql("select distinct trainer_step from ledger order by 1")]
    assert steps == list(range(1, step + 3))
    assert (to_hf(again.job, step=step, out=again.cwd / "hf", critic=False) / "model.safetensors").is_file()


@pytest.mark.runtime
@pytest.mark.timeout(400)
def test_the_trainer_is_killed(run):
    one = run("trainer.total_training_steps=400").start()
    one.wait_for(lambda: one.trained_steps() > 0)
    one.side("trainer").kill()
    began = time.monotonic()
    one.finish(30)
    assert time.monotonic() - began < 20
    assert one.code == 1
    assert len(one.errors) == 1 and "the trainer was killed by SIGKILL" in one.errors[0]
    one.nothing_is_left_and_nothing_lost()
