"""The weights' handover on shared devices, as whole runs: by shared memory, as a CPU has no other device."""

import subprocess
import sys

import pytest
from test_explorer_or_trainer_killed import (
    every_step_is_whole_and_every_task_was_trained_once,
    the_answers_are_of_the_version_before_their_step,
)

IN_TURNS = ("--mode", "colocate", "--set", "trinity_compat.handover=device")
VERSIONS = "select version, method, digest from weight_versions order by 1"
LOADED = "select distinct version, received from loaded_weights"


def is_sound(one, steps, skipped=0):
    """``skipped``: versions that no engine may have needed."""
    one.finish()
    assert one.code == 0, one.out + one.err
    assert one.alive() == []
    every_step_is_whole_and_every_task_was_trained_once(one, steps)
    the_answers_are_of_the_version_before_their_step(one)
    published = one.sql(VERSIONS)
    sent = {(version, digest) for version, _, digest in published if version}
    assert len(sent - set(one.sql(LOADED))) <= skipped
    return [method for _, method, _ in published]


@pytest.mark.runtime
@pytest.mark.whole
def test_in_turns_each_version_after_the_first_goes_from_device_to_device(run):
    words = ("trainer.total_training_steps=6", "trainer.test_freq=2", "trainer.val_before_train=True")
    one = run(*words, options=IN_TURNS).start()
    assert is_sound(one, 6) == ["memory", *["device"] * 6]
    assert "weight-sync check" in (one.job / "log" / "explorer.log").read_text()
    assert "written to a file instead" not in (one.job / "log" / "trainer.log").read_text()
    report = [sys.executable, "-m", "trinity_compat", "report", str(one.job)]
    told = subprocess.run(report, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "nothing lost, nothing trained twice" in told.stdout


@pytest.mark.runtime
@pytest.mark.whole
@pytest.mark.nightly
def test_after_a_death_a_version_comes_by_a_file_and_the_next_on_the_device_again(run):
    one = run("trainer.total_training_steps=9", options=(*IN_TURNS, "--restarts", "2")).start()
    one.wait_for(lambda: one.trained_steps() >= 2)  # a version that no file has is in place
    one.processes("ray::RolloutWorker")[0].kill()
    one.wait_for(lambda: "not started again, since handover device keeps no file" in one.out)
    one.wait_for(lambda: "started again (1 restarts left)" in one.out and one.trained_steps() >= 5)
    one.side("trainer").kill()
    methods = is_sound(one, 9, skipped=1)  # the first version of the next trainer, if its answers were there
    assert "the trainer was killed by SIGKILL" in one.out
    assert methods.count("memory") >= 2 and methods[-1] == "device"
