"""A trial of three modes on the toy, killed on its way: it goes on, and its answer agrees with compare."""

import json
import subprocess
import sys

import pytest


def trial(run, tmp_path, name, *more):
    """A trial of three offsets with a seed each."""
    options = ["--offsets", "0", "1", "2", "--seeds", "1", "--out", str(tmp_path / "trial"), *more]
    one = run("trainer.total_training_steps=6", options=options, name=name)
    one.command[one.command.index("run")] = "trial"
    one.job = tmp_path / "trial" / "offset1" / "seed1"
    return one


@pytest.mark.runtime
@pytest.mark.whole
def test_a_trial_that_was_killed_goes_on_and_agrees_with_compare(run, tmp_path):
    first = trial(run, tmp_path, "first").start()
    first.wait_for(lambda: (first.job / "latest_checkpointed_iteration.txt").exists())
    first.process.kill()
    first.process.wait()
    first.wait_until_all_have_ended()
    finished = tmp_path / "trial" / "offset0" / "seed1" / "log" / "phases.json"
    before = finished.stat().st_mtime_ns

    again = trial(run, tmp_path, "again").start().finish()
    assert again.code == 0, again.out + again.err
    assert finished.stat().st_mtime_ns == before  # a finished job is taken as it is
    assert "from step" in (tmp_path / "trial" / "log" / "offset1-seed1.log").read_text()
    again.nothing_is_left_and_nothing_lost()
    assert again.trained_steps() == 6

    told = trial(run, tmp_path, "told", "--json").start().finish()
    modes = json.loads(told.out)["modes"]
    assert [mode["offset"] for mode in modes] == [1, 2]
    for mode, line in zip(modes, again.out.splitlines()[1:3], strict=True):
        assert line == f"offset {mode['offset']}: {mode['answer']}"
        agrees_with_compare(mode, tmp_path)


def agrees_with_compare(mode, tmp_path):
    """The same verdicts and figures as of `compare` on the same folders."""
    sides = [str(tmp_path / "trial" / "offset0"), mode["folder"]]
    words = [sys.executable, "-m", "trinity_compat", "compare", *sides, "--format", "json"]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    metrics = {metric["name"]: metric for metric in found["metrics"]}
    assert [metrics[one["name"]] for one in mode["outcomes"]] == mode["outcomes"]
    assert mode["outcomes"][0]["name"] == "critic/score/mean"
    step, faster = metrics["timing_s/step"], mode["speed_up"]
    assert faster["ratio"] == pytest.approx(step["a"]["level"] / step["b"]["level"])
    spec = json.loads(
        (tmp_path / "trial" / f"offset{mode['offset']}" / "seed1" / "config" / "run.json").read_text()
    )
    assert spec["sync"]["offset"] == mode["offset"]
    assert spec["verl"]["data"]["seed"] == spec["verl"]["actor_rollout_ref"]["rollout"]["seed"] == 1
