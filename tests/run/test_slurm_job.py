"""Launches that ``srun`` starts: caught where the environment goes along, refused with a line to write."""

import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.run.script import intercept_check, slurm_job

MAIN = "python3 -m verl.trainer.main_ppo data.train_files=a.parquet"
NODE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_PROCID": "0"}


@pytest.fixture
def checked(tmp_path):
    def call(line, **env):
        script = tmp_path / "job.slurm"
        script.write_text(f"#SBATCH --nodes=2\n{line}\n")
        return intercept_check.check(str(script), (), {**os.environ, **env})

    return call


@pytest.mark.parametrize(
    "line",
    [
        f"srun --overlap --nodes=1 --ntasks=1 -w a {MAIN} 2>&1 | tee x.log",
        f"srun --export=ALL,A=1 {MAIN}",
        f"srun /usr/bin/{MAIN}",
        f"srun bash -c 'ray status; conda activate x; {MAIN}'",
        f"srun ray job submit --address=http://127.0.0.1:8265 -- {MAIN}",
        f"srun ray job submit --address=http://far:8265 -- {MAIN}",
    ],
)
def test_a_launch_of_srun_is_caught_as_its_environment_goes_along(checked, line):
    (launch,) = checked(line)
    assert launch.start.travels


EXPORT = r"job\.slurm:2: srun would train stock veRL: without ALL .*\n.*write --export=ALL"


@pytest.mark.parametrize(
    ("line", "env", "said"),
    [
        (f"srun --export=NONE {MAIN}", {}, EXPORT),
        (f"srun --export=PATH,HOME {MAIN}", {}, EXPORT),
        (f"srun {MAIN}", {"SLURM_EXPORT_ENV": "NONE"}, EXPORT),
        (
            f"srun --container-image=x {MAIN}",
            {},
            "write `srun --container-image … trinity-compat run SCRIPT`",
        ),
        (f"srun apptainer run --nv x.sif {MAIN}", {}, "write `apptainer … trinity-compat run SCRIPT`"),
        (f"ssh far srun {MAIN}", {}, "write `ssh … trinity-compat run SCRIPT`"),
        (f"sbatch --wrap '{MAIN}'", {}, 'write `sbatch … --wrap "trinity-compat run SCRIPT"`'),
    ],
)
def test_where_it_does_not_the_message_has_the_line_to_write(checked, line, env, said):
    with pytest.raises(UserError) as error:
        checked(line, **env)
    assert re.search(said, str(error.value)), str(error.value)


def test_a_script_of_srun_outside_of_a_job_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in NODE:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.slurm").write_text(f"touch executed\nsrun {MAIN}\n")
    done = CliRunner().invoke(cli, ["run", "job.slurm"])
    assert str(done.exception).startswith("job.slurm:2: srun starts verl.trainer.main_ppo on a machine of")
    assert "trinity-compat export job.slurm --to slurm -o job.sbatch" in str(done.exception)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("text", "env", "noted"),
    [("#SBATCH -N 1\n", {}, True), ("#SBATCH -N 1\n", NODE, False), ("# SBATCH\n", {}, False)],
)
def test_a_jobs_script_that_runs_here_is_noted_where_sbatch_is(tmp_path, monkeypatch, text, env, noted):
    (tmp_path / "sbatch").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = slurm_job.note_outside("run.sh", text, env)
    assert ("`sbatch job.sbatch`" in said) == noted
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert slurm_job.note_outside("run.sh", text, env) == ""


def test_the_folder_of_the_programs_is_one_that_all_machines_see(tmp_path, monkeypatch):
    """Srun looks up programs here for them, too."""
    monkeypatch.chdir(tmp_path)
    assert slurm_job.shared_place("srun x", NODE) == tmp_path
    assert slurm_job.shared_place("echo", NODE) is slurm_job.shared_place("srun x", {}) is None


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"SLURMD_NODENAME": "n2"}, r"starts this launch on n2, .* on n1(.|\n)*--nodelist=n1"),
        ({"SLURM_PROCID": "1"}, r"several times; this is task 1(.|\n)*--ntasks=1"),
    ],
)
def test_a_launch_on_another_machine_or_a_second_one_is_refused(monkeypatch, env, said):
    for name, value in {**NODE, **env}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=said):
        slurm_job.check_task(NODE)


def test_the_first_task_on_the_scripts_machine_is_the_launch(monkeypatch):
    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    slurm_job.check_task(NODE)


@pytest.mark.parametrize(("job", "joined"), [("77", "10.0.0.1:7000"), ("78", None), ("", None)])
def test_the_ray_of_this_job_is_joined_and_no_other(tmp_path, monkeypatch, job, joined):
    raylet = tmp_path / "raylet"
    raylet.symlink_to(os.path.realpath(sys.executable))
    code = "import time; print(flush=True); time.sleep(1000)"
    words = [str(raylet), "-c", code, "--x", "--gcs-address=10.0.0.1:7000"]
    env = {**os.environ, "SLURM_JOB_ID": "77"}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        slurm_job.join_ray()
        assert os.environ.get("RAY_ADDRESS") == joined
    finally:
        os.environ.pop("RAY_ADDRESS", None)
        process.kill()
        process.communicate()


def test_an_address_that_is_set_stays(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("RAY_ADDRESS", "mine:1")
    slurm_job.join_ray()
    assert os.environ["RAY_ADDRESS"] == "mine:1"
