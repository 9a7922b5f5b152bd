"""`trinity-compat export`: the files, by what bash and a schema say of them."""

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from trinity_compat.cli import cli

LAUNCH = 'python3 -m verl.trainer.main_ppo trainer.experiment_name=My_Run trainer.nnodes={} {} "$@"\n'


@pytest.fixture
def export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(text, *words):
        (tmp_path / "run.sh").write_text(text)
        done = CliRunner().invoke(cli, ["export", "run.sh", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return call


def directives(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


OURS = ["--requeue", "--signal=B:TERM@300", "--open-mode=append"]


@pytest.mark.parametrize(
    ("own", "added"),
    [
        (
            [],
            [
                "--job-name=my-run",
                "--nodes=2",
                "--ntasks-per-node=1",
                "--gpus-per-node=4",
                "--exclusive",
                *OURS,
            ],
        ),
        (
            ["-J mine", "-N 2", "-t 1:00:00", "-A me --gres=gpu:4", "--cpus-per-task=8"],
            ["--ntasks-per-node=1", *OURS],
        ),
        (
            ["--no-requeue --signal=B:USR1@60", "--open-mode=truncate", "-n 2 -J x --gpus=8"],
            [],
        ),
    ],
)
def test_the_scripts_own_lines_are_kept_and_what_it_lacks_is_added(export, own, added):
    head = "".join(f"#SBATCH {line}\n" for line in own)
    text = export(
        f"#!/bin/bash\n{head}" + LAUNCH.format(2, "trainer.n_gpus_per_node=4"),
        "--to",
        "slurm",
        "--",
        "data.seed=1",
    )
    assert directives(text) == [*own, *added]
    # The time of the script's own signal is its own: only where Slurm gives 300 s may a step take most of it.
    grace = "" if any("signal" in line for line in own) else "--set trinity_compat.termination_grace=270 "
    assert f"trinity-compat run {grace}run.sh -- data.seed=1 &" in text


@pytest.mark.parametrize(
    ("options", "within"),
    [
        ([], "WITHIN=()"),
        (["--image", "a.sif"], 'WITHIN=(apptainer exec --nv --bind "$PWD" --pwd "$PWD" a.sif)'),
        (
            ["--image", "a:b", "--shared", "/x y"],
            "WITHIN=(--container-image=a:b --container-mounts=\"$PWD:$PWD\",'/x y':'/x y'"
            ' --container-workdir="$PWD")',
        ),
    ],
)
def test_an_image_stands_before_each_step(export, options, within):
    text = export(LAUNCH.format(1, ""), "--to", "slurm", *options)
    assert within in text.splitlines()
    assert ("--job '/x y/my-run'" in text) == (len(options) == 4)


STUBS = {
    # runs the command behind its options as one task, and ends it at once when it gets a signal itself
    "srun": 'while [[ $1 == -* ]]; do shift; done\nSLURM_NODEID=0 "$@" & task=$!\n'
    "trap 'kill -KILL $task; exit 137' TERM; wait $task",
    "ray": 'echo "ray $*" >> calls; exec sleep 1000',
    "python3": 'grep -q "^ray start" calls || exit; echo "there $RAY_ADDRESS" >> calls',
    "hostname": "echo 10.0.0.1 10.0.0.2",
    "squeue": '[[ "$*" == *--steps* ]] && printf "7.0 bash\\n7.3 the-run\\n" || echo ${STATE:-RUNNING}',
    "scancel": '[ "$*" = "--signal=TERM 7.3" ] && kill -TERM $(cat pid)',
    "scontrol": 'echo "scontrol $*" >> calls; exec sleep 0.2',
    "sleep": 'exec /bin/sleep "$(case $1 in 60) echo 0;; *) echo "$1";; esac)"',
    "trinity-compat": "trap 'echo stopped >> calls; kill $!; exit 143' TERM\n"
    'echo $$ > pid; echo "run $RAY_ADDRESS" >> calls\n'
    '[ -z "${LASTS:-}" ] && exit ${CODE:-0}; /bin/sleep 1000 & wait',
}


@pytest.fixture
def job(tmp_path):
    """A job of Slurm's whose programs are stubs; returns its process, or after its end its exit code."""
    (tmp_path / "bin").mkdir()
    for name, text in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    started = []

    def start(text, **env):
        set_ = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "8"}
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        env = {**os.environ, **set_, "SKYPILOT_NUM_NODES": "2", "PATH": path, **env}
        words = ["bash", "-c", text]
        started.append(subprocess.Popen(words, cwd=tmp_path, env=env, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def calls(folder):
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


def until(found):
    for _ in range(600):
        if found():
            return
        time.sleep(0.05)
    raise AssertionError("not in 30 s")


def test_a_job_starts_ray_and_ends_with_the_code_of_the_run(export, job, tmp_path):
    process = job(export(LAUNCH.format(2, ""), "--to", "slurm"), CODE="3")
    assert process.wait(60) == 3
    others, (ray,) = (
        [each for each in calls(tmp_path) if each.startswith("ray") == of] for of in (False, True)
    )
    assert ray.startswith("ray start --block --disable-usage-stats --num-cpus=8 --head")
    assert "--node-ip-address=10.0.0.1 --port=20007" in ray
    assert others == ["there 10.0.0.1:20007", "run 10.0.0.1:20007"]


@pytest.mark.parametrize(("state", "again"), [("RUNNING", ["scontrol requeue 7"]), ("CANCELLED", [])])
def test_a_run_that_is_told_to_stop_is_queued_again_unless_it_was_cancelled(
    export, job, tmp_path, state, again
):
    process = job(export(LAUNCH.format(2, ""), "--to", "slurm"), LASTS="1", STATE=state)
    until(lambda: "run 10.0.0.1:20007" in calls(tmp_path))
    process.terminate()
    assert process.wait(60) == 143
    assert calls(tmp_path)[3:] == ["stopped", *again], calls(tmp_path)


def test_a_script_that_starts_ray_itself_is_run_as_it_is(export, job, tmp_path):
    script = (
        "#SBATCH --nodes=2\n"
        "srun -N1 -n1 -w a ray start --head --block &\n"
        f"srun --overlap -N1 -n1 -w a {LAUNCH.format(2, '')}"
    )
    text = export(script, "--to", "slurm")
    assert job(text).wait(60) == 0
    assert calls(tmp_path) == ["run "]


def test_what_is_not_known_is_asked_for(export):
    script = LAUNCH.format("$(wc -l < hosts)", "")
    with pytest.raises(Exception, match=r"run\.sh:1: trainer\.nnodes .* is not known(.|\n)*--nodes N"):
        export(script, "--to", "slurm")
    assert "#SBATCH --nodes=3" in export(script, "--to", "slurm", "--nodes", "3")


DATED = "NAME=toy_$({})\npython3 -m verl.trainer.main_ppo trainer.experiment_name=$NAME trainer.nnodes=1\n"


@pytest.mark.parametrize(
    ("start", "date", "shared", "job"),
    [
        ("", "date +%F", (), r" --job checkpoints/verl_examples/toy_\d{4}-\d\d-\d\d "),
        (
            "cd sub\n",
            "date +%F",
            (),
            r" --job sub/checkpoints/verl_examples/toy_\d{4}-\d\d-\d\d ",
        ),
        ("", "date +%F", ("--shared", "/s"), r" --job /s/toy-\d{4}-\d\d-\d\d "),
        ("", "date -d 2026-01-02 +%F", (), " "),
        ("export SOURCE_DATE_EPOCH=1\n", "date +%F", (), " "),
    ],
)
def test_a_job_queued_again_on_another_day_keeps_the_folder_of_the_first(
    export, tmp_path, start, date, shared, job
):
    (tmp_path / "sub").mkdir()
    text = export(start + DATED.format(date), "--to", "slurm", *shared)
    assert re.search(f"trinity-compat run{job}--set", text)


def test_two_launches_are_refused_where_the_file_names_one_job_for_both(export):
    with pytest.raises(Exception, match=r"run\.sh:2: run\.sh has 2 launches"):
        export(2 * LAUNCH.format(1, ""), "--to", "rayjob")
    assert "trinity-compat run" in export(2 * LAUNCH.format(1, ""), "--to", "slurm")  # one after the other


def test_fewer_machines_or_gpus_than_the_launch_trains_on_are_refused_at_its_line(export):
    script = LAUNCH.format(2, "trainer.n_gpus_per_node=4")
    for words, key in ((("--nodes", "1"), "nnodes=2"), (("--gpus-per-node", "2"), "n_gpus_per_node=4")):
        with pytest.raises(Exception, match=rf"run\.sh:1: {words[0]} {words[1]} is less .*trainer\.{key}"):
            export(script, "--to", "slurm", *words)
    assert "#SBATCH --nodes=4" in export(script, "--to", "slurm", "--nodes", "4")  # engines of their own


@pytest.mark.parametrize(
    ("to", "option"), [("slurm", "--volume"), ("slurm", "--gpu-type"), ("rayjob", "--gpu-type")]
)
def test_an_option_that_the_scheduler_s_file_has_no_place_for_is_refused(export, to, option):
    with pytest.raises(Exception, match=f"{option} has no effect on a file for {to}"):
        export(LAUNCH.format(1, ""), "--to", to, option, "x")


@pytest.mark.parametrize("words", [["--to", "rayjob"], ["--to", "slurm", "--image", "x.sif"]])
def test_a_ray_of_the_scripts_own_is_not_started_twice(export, words):
    script = "ray start --head\n" + LAUNCH.format(1, "")
    with pytest.raises(Exception, match=r"run\.sh:1: the script starts Ray on its machines itself"):
        export(script, *words)


def test_a_source_that_is_not_a_script_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text("mode: both\n")
    done = CliRunner().invoke(cli, ["export", "x.yaml", "--to", "rayjob"])
    assert "x.yaml is not a shell script" in str(done.exception)


def of(properties, *needed):
    return {
        "type": "object",
        "properties": properties,
        "required": list(needed or properties),
        "additionalProperties": False,
    }


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}
POD = of(
    {
        "spec": of(
            {
                "terminationGracePeriodSeconds": COUNT,
                "containers": {
                    "type": "array",
                    "items": of(
                        {
                            "name": TEXT,
                            "image": TEXT,
                            "lifecycle": of(
                                {"preStop": of({"exec": of({"command": {"type": "array", "items": TEXT}})})}
                            ),
                            "resources": of({"limits": {"additionalProperties": COUNT}}),
                            "volumeMounts": {
                                "type": "array",
                                "items": of({"name": TEXT, "mountPath": TEXT}),
                            },
                        }
                    ),
                },
                "volumes": {
                    "type": "array",
                    "items": of(
                        {
                            "name": TEXT,
                            "persistentVolumeClaim": of({"claimName": TEXT}),
                            "emptyDir": of({"medium": TEXT}),
                        },
                        "name",
                    ),
                },
            }
        )
    }
)
START = {"type": "object", "additionalProperties": TEXT}
GROUP = {"rayStartParams": START, "template": POD}
RAY_JOB = of(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": of({"name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,45}[a-z0-9])?$"}}),
        "spec": of(
            {
                "entrypoint": TEXT,
                "backoffLimit": COUNT,
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "ttlSecondsAfterFinished": COUNT,
                "rayClusterSpec": of(
                    {
                        "headGroupSpec": of(GROUP),
                        "workerGroupSpecs": {
                            "type": "array",
                            "items": of(
                                {
                                    **GROUP,
                                    "groupName": TEXT,
                                    **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), COUNT),
                                }
                            ),
                        },
                    },
                    "headGroupSpec",
                ),
            }
        ),
    }
)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_ray_job_has_kuberays_fields_and_the_launchs_sizes(export, nodes):
    text = export(LAUNCH.format(nodes, "trainer.n_gpus_per_node=4"), "--to", "rayjob", "--volume", "mine")
    made = yaml.safe_load(text)
    assert [error.message for error in Draft202012Validator(RAY_JOB).iter_errors(made)] == []
    cluster = made["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", ())]
    assert [group.get("replicas", 1) for group in groups] == ([1, 2] if nodes == 3 else [1])
    for group in groups:
        pod = group["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 4}
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "mine"}
    assert made["spec"]["entrypoint"].endswith(
        "trinity-compat run --job /shared/my-run --set trinity_compat.termination_grace=270 run.sh"
    )


def test_the_end_of_a_pod_reaches_the_run_and_waits_for_it(export, tmp_path):
    made = yaml.safe_load(export(LAUNCH.format(1, ""), "--to", "rayjob"))
    pod = made["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    stop = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    mark = f"run-{os.getpid()}"  # a run of another test must not be told
    stop = [word.replace("trinity-compat run", f"trinity-compat {mark}") for word in stop]
    (tmp_path / "trinity-compat").write_text(
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    time.sleep(1)\n    pathlib.Path('ended').touch()\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\npathlib.Path('ready').touch()\ntime.sleep(1000)\n"
    )
    run = subprocess.Popen(["python3", "trinity-compat", mark], cwd=tmp_path)
    shell = subprocess.Popen(
        ["sh", "-c", f": trinity-compat {mark}; sleep 1000 & wait"], start_new_session=True
    )
    try:
        until((tmp_path / "ready").exists)
        waiting = subprocess.Popen(stop)
        assert run.wait(60) == 143
        assert waiting.wait(60) in (0, 1)
        assert (tmp_path / "ended").exists() and shell.poll() is None
    finally:
        run.kill()
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_skypilot_starts_as_many_machines_and_a_ray_of_the_runs_own(export, job, tmp_path):
    text = export(LAUNCH.format(2, "trainer.n_gpus_per_node=4"), "--to", "skypilot", "--image", "x:1")
    made = yaml.safe_load(text)
    assert made.pop("run") and made == {
        "name": "my-run",
        "num_nodes": 2,
        "workdir": ".",
        "resources": {"accelerators": "H100:4", "image_id": "docker:x:1"},
        "volumes": {"/shared": "shared"},
    }
    run = yaml.safe_load(text)["run"]
    head = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "0"}
    process = job(run, LASTS="1", **head)
    until(lambda: "run 10.0.0.1:6379" in calls(tmp_path))
    process.terminate()
    assert process.wait(60) == 143
    assert "stopped" in calls(tmp_path)
    assert "pip install" in yaml.safe_load(export(LAUNCH.format(1, ""), "--to", "skypilot"))["setup"]
