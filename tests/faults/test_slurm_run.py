"""The toy on Debian's Slurm with two daemons: by a file of `export`, told to end and queued again, and by a
script of veRL's kind, which starts Ray with srun itself."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import Slurm

ROOT = Path(__file__).parents[2]
STEPS = 12
DIRECTIVES = (
    "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=8\n#SBATCH --output=out.%j\n"
)
START_RAY = """\
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=0123456789abcdef0123456789abcdef SRUN_CPUS_PER_TASK=8
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(hostname -I | cut -d " " -f 1) port=$((20000 + SLURM_JOB_ID % 10000))
ray_start="ray start --block --disable-usage-stats --num-cpus=8"
srun --nodes=1 --ntasks=1 -w "${nodes[0]}" $ray_start --head --node-ip-address="$address" --port=$port \\
  --temp-dir="/tmp/tc-ray-$SLURM_JOB_ID-$$" --include-dashboard=false &
until (exec 3<>/dev/tcp/$address/$port) 2>/dev/null; do sleep 1; done
srun --nodes=1 --ntasks=1 -w "${nodes[1]}" $ray_start --address="$address:$port" &
sleep 20
"""


@pytest.fixture
def slurm(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith(("SLURM", "RAY_"))]:
        monkeypatch.delenv(name)
    cluster = Slurm()
    yield cluster
    cluster.close()


@pytest.fixture
def one(run, slurm, tmp_path):
    """The run that the job makes. Its environment is the job's."""
    made = run()
    slurm.env |= {
        name: made.env[name] for name in ("TOY_DIR", "TRAIN_PROMPTS", "MINI_PROMPTS", "TC_TEST_MARK")
    }
    return made


def toy_script(tmp_path, head, start=""):
    text = (ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh").read_text()
    text = text.replace("python3 -m", f"{start}python3 -m").replace(
        "$HERE/", f"{ROOT}/examples/verl_scripts/"
    )
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{head}{text}")
    return [
        f"trainer.total_training_steps={STEPS}",
        "trainer.save_freq=1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=False",
    ]


def export(*words):
    subprocess.run(
        [sys.executable, "-m", "trinity_compat", "export", "--to", "slurm", "-o", "job.sbatch", *words],
        check=True,
    )


def submitted(slurm):
    assert re.search("Job [0-9]+ to start at", slurm.say("sbatch", "--test-only", "job.sbatch"))
    return re.fullmatch("Submitted batch job ([0-9]+)", slurm.say("sbatch", "job.sbatch"))[1]


def until(condition, slurm, job, out):
    for _ in range(3000):
        if condition():
            return
        if slurm.state(job) in ("FAILED", "CANCELLED", "NODE_FAIL"):
            break
        time.sleep(0.5)
    raise AssertionError(f"{slurm.state(job)}: {out.read_text()[-5000:]}")


@pytest.mark.runtime
@pytest.mark.whole
@pytest.mark.nightly
@pytest.mark.timeout(4000)
def test_a_job_that_is_told_to_stop_is_queued_again_and_continues(slurm, one, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = toy_script(tmp_path, f"{DIRECTIVES}#SBATCH --gres=none\n")
    export("run.sh", "--", *words)
    job = submitted(slurm)
    out, marker = tmp_path / f"out.{job}", one.job / "latest_checkpointed_iteration.txt"
    until(marker.exists, slurm, job, out)
    slurm.say("scancel", "--batch", "--signal=TERM", job)
    until(lambda: slurm.state(job) == "PENDING", slurm, job, out)
    before = one.trained_steps()
    assert 1 <= before < STEPS
    slurm.say("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: slurm.state(job) == "COMPLETED", slurm, job, out)
    assert marker.read_text() == str(STEPS)
    assert one.trained_steps() == STEPS
    one.nothing_is_left_and_nothing_lost()


@pytest.mark.runtime
@pytest.mark.whole
@pytest.mark.nightly
@pytest.mark.timeout(4000)
def test_a_script_that_starts_ray_with_srun_is_run_on_that_ray(slurm, one, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = 'srun --overlap --nodes=1 --ntasks=1 -w "${nodes[0]}" '
    words = toy_script(tmp_path, f"{DIRECTIVES}#SBATCH --gres=none\n{START_RAY}", start)
    export("run.sh", "--", *words)
    job = submitted(slurm)
    out = tmp_path / f"out.{job}"
    until(lambda: slurm.state(job) == "COMPLETED", slurm, job, out)
    assert "using the Ray cluster at RAY_ADDRESS=" in out.read_text()
    assert one.trained_steps() == STEPS
    one.nothing_is_left_and_nothing_lost()
