"""`ray job submit --address=…` to another machine, as far as the start of its run.

`test_cluster_job_run.py` has the whole way.
"""

import time
import venv
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "verl_scripts" / "run_toy_grpo.sh"


@pytest.fixture
def submitted(run, tmp_path, head):
    """Starts the toy's script with its launch submitted, by ``python`` and with ``options`` of Ray's."""

    def make(name, options="", python="python3"):
        submit = f"ray job submit --address={head.url} --submission-id={name} {options} -- {python} -m"
        script = tmp_path / f"{name}.sh"
        text = SCRIPT.read_text().replace("python3 -m", submit)
        script.write_text(text.replace("$HERE/", f"{SCRIPT.parent}/"))
        job = tmp_path / "jobs" / name
        one = run("trainer.total_training_steps=30", options=["--job", str(job)], script=script, name=name)
        return one.start().finish()

    return make


@pytest.mark.runtime
@pytest.mark.whole
def test_a_job_starts_without_a_wait_for_it_and_one_that_lacks_packages_says_which(submitted, head, tmp_path):
    from ray.job_submission import JobSubmissionClient

    venv.create(tmp_path / "bare", symlinks=True)
    bare = submitted("bare", python=tmp_path / "bare" / "bin" / "python3")
    assert bare.code == 2
    lacks = next(line for line in (bare.out + bare.err).splitlines() if "the cluster's Python" in line)
    assert f"({tmp_path}/bare/bin/python3" in lacks and "lacks" in lacks and "verl" in lacks
    assert '"pip": [' in bare.out + bare.err

    started = submitted("started", options="--no-wait")
    assert started.code == 0, started.out + started.err
    client = JobSubmissionClient(head.url)
    until = time.monotonic() + 300
    while "explorer starting" not in (log := client.get_job_logs("started")):
        assert not client.get_job_status("started").is_terminal(), log
        assert time.monotonic() < until, log
        time.sleep(0.5)
    assert "using the Ray cluster at RAY_ADDRESS=" in log
    assert client.stop_job("started")
    while not client.get_job_status("started").is_terminal():
        time.sleep(0.2)
    assert client.get_job_status("started") == "STOPPED"
