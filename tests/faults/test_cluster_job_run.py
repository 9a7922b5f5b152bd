"""A script whose `ray job submit` goes to another machine: a Ray in a network namespace of its own, whose
Python has veRL and vLLM and no trinity-compat. Its dashboard is the only thing that is reached from here."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 16  # Ray takes as long as some of them to stop a job


@pytest.mark.runtime
@pytest.mark.whole
@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_submitted_launch_is_a_run_there_that_is_stopped_and_continues(run, tmp_path, head):
    (tmp_path / "mine").mkdir()
    reward = ROOT / "examples" / "verl_scripts" / "toy_reward.py"
    shutil.copy(reward, tmp_path / "mine" / "my_reward.py")
    runtime = {"working_dir": "mine", "excludes": ["*.json"], "env_vars": {"TOKENIZERS_PARALLELISM": "true"}}
    (tmp_path / "rt.yaml").write_text(json.dumps(runtime))
    submit = f"ray job submit --address={head.url} --runtime-env=rt.yaml --submission-id=$JOB --"
    text = (ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh").read_text()
    script = tmp_path / "run.sh"
    script.write_text(text.replace("python3 -m", f"{submit} python3 -m").replace("$HERE/toy_", "my_"))

    def submitted(name):
        words = [f"trainer.total_training_steps={STEPS}", "trainer.save_freq=1"]
        job = tmp_path / "checkpoints" / "toy" / "grpo"
        return run(*words, options=["--job", str(job)], script=script, name=name, env={"JOB": name}).start()

    first = submitted("first")
    marker = first.job / "latest_checkpointed_iteration.txt"
    first.wait_for(marker.exists)
    subprocess.run([*head.ray, "job", "stop", f"--address={head.url}", "first"], check=True)
    assert first.ends().code == 143, first.out + first.err
    assert 1 <= first.trained_steps() < STEPS

    second = submitted("second").finish()
    assert second.code == 0, second.out + second.err
    assert "using the Ray cluster at RAY_ADDRESS=" in second.out and "\ndone\n" in second.out  # the job's log
    assert marker.read_text() == str(STEPS)
    assert second.trained_steps() == STEPS
    second.nothing_is_left_and_nothing_lost()
    environment = json.loads((second.job / "config" / "environment.json").read_text())["values"]
    assert environment["TOKENIZERS_PARALLELISM"] == "true"
