"""A script whose `ray job submit` goes to another machine: a Ray in a network namespace of its own, whose
Python has veRL and vLLM and no trinity-compat. Its dashboard is the only thing that is reached from here."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import uuid
import venv
from pathlib import Path

import needs
import psutil
import pytest
from namespaced import Machine, take_away_what_killed_tests_left

from trinity_compat.common.parent_watch import die_with_parent

ROOT = Path(__file__).parents[2]
STEPS = 16  # Ray takes as long as some of them to stop a job


class Head:
    """The head of a cluster; ``url``: its dashboard."""

    def __init__(self, machine, folder):
        self.mark, self.temp = uuid.uuid4().hex, tempfile.mkdtemp(prefix="tc-rh-")  # sockets' names are short
        self.url = f"http://{machine.address}:8265"
        bin_ = without_trinity_compat(folder)
        self.ray = [str(bin_ / "python3"), "-m", "ray.scripts.scripts"]
        env = {
            "PATH": f"{bin_}:/usr/bin:/bin:/usr/sbin:/sbin",
            "TC_TEST_MARK": self.mark,
            "HOME": str(folder),
        }
        words = ["--head", "--block", "--disable-usage-stats", "--num-cpus=16", "--num-gpus=0"]
        words += [f"--node-ip-address={machine.address}", f"--dashboard-host={machine.address}"]
        words += [f"--temp-dir={self.temp}", "--object-store-memory=300000000"]
        with (folder / "ray.log").open("w") as log:
            self.process = subprocess.Popen(
                [*machine.prefix, *self.ray, "start", *words],
                env=env,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def wait(self):
        for _ in range(120):
            try:
                return urllib.request.urlopen(f"{self.url}/api/jobs/", timeout=5)
            except OSError:
                assert self.process.poll() is None
                time.sleep(1)
        raise AssertionError("no dashboard in two minutes")

    def close(self):
        for process in psutil.process_iter():
            try:
                if process.environ().get("TC_TEST_MARK") == self.mark:
                    process.kill()
            except psutil.Error:
                continue
        self.process.wait()
        shutil.rmtree(self.temp, ignore_errors=True)


def without_trinity_compat(folder):
    """A Python with every package of this one but ours; returns its folder of programs."""
    place = folder / "cluster"
    venv.create(place, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        there = place / "lib" / version / "site-packages" / package.name
        if "trinity_compat" not in package.name and package.name != "__pycache__":
            there.symlink_to(package)
    (place / "bin" / "shfmt").symlink_to(Path(sys.executable).with_name("shfmt"))
    return place / "bin"


@pytest.fixture
def head(tmp_path):
    needs.program("ip", "iproute2")
    take_away_what_killed_tests_left()
    machine = Machine(3)
    if not machine.prefix:
        needs.lacking("no right to make a network namespace")
    made = Head(machine, tmp_path)
    try:
        made.wait()
        yield made
    finally:
        made.close()
        machine.close()


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
