"""What starts a training main and is no shell script: Python, notebooks, job specifications."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script
from trinity_compat.launch.job_files import is_job

LAUNCHER = """\
import os, subprocess, sys
from subprocess import run as go
RATE = 1e-6
MODEL = os.environ.get("MODEL", "/m/q")
command = ["python3", "-m", "verl.trainer.main_ppo", f"lr.a={RATE}", "data.size=" + str(64)]
command.append(f"path.a={MODEL}")
command += ["a.b=1"]
command += sys.argv[1:]
subprocess.run(command, check=True)
def main(n):
    go([sys.executable, "-m", "verl.trainer.main_ppo", f"n.a={n}", *["a.b=2"]])
    os.system("python3 -m verl.trainer.main_ppo c.d=3 && echo done")
    subprocess.run("python3 -m verl.trainer.main_ppo \\\\\\n c.d=" + str(n), shell=True)
    subprocess.run(["ls", "-l"])
"""

SKYPILOT = """\
name: train
resources: {accelerators: "H100:8"}
envs: {MODEL: some/model}
run: |
  set -e
  python3 -m verl.trainer.main_ppo \\
    model.path=$MODEL nodes.n=$SKYPILOT_NUM_NODES
"""

KUBERNETES = """\
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
        - image: verl
          env: [{name: N, value: "4"}]
          command: ["/bin/bash", "-c"]
          args:
            - |
              python3 -m verl.trainer.main_ppo a.n=$N
        - image: verl
          command: [python3, -m, verl.trainer.main_ppo]
          args: [a.n=2]
"""

HYDRA = """\
import hydra
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config): ...
"""

COMPOSED = """\
from hydra import compose, initialize
with initialize(config_path="config"):
    config = compose(config_name="ppo_trainer", overrides=["actor_rollout_ref.rollout.n=4"])
"""


def told(tmp_path, name, text, *args):
    """(the launches' arguments with what is open in each, their places, the diagnostics' messages)."""
    path = tmp_path / name
    path.write_text(text)
    reading = read_script(path, cwd=tmp_path, args=args, name=name)
    launches = [
        [word.text + "".join(f"<{piece.expression}>" for piece in word.open) for word in launch.arguments]
        for launch in reading.launches
    ]
    return (
        launches,
        [str(launch.where) for launch in reading.launches],
        [d.message for d in reading.diagnostics],
    )


def test_literal_calls_of_a_python_launcher_are_read(tmp_path):
    launches, places, messages = told(tmp_path, "launch.py", LAUNCHER)
    assert launches == [
        ["lr.a=1e-06", "data.size=64", "path.a=/m/q", "a.b=1"],
        ["n.a=<n>", "a.b=2"],
        ["c.d=3"],
        ["c.d=<n>"],
    ]
    assert places == [f"launch.py:{line}" for line in (5, 11, 12, 13)]
    assert any("nothing is executed" in message for message in messages)


def test_a_variable_of_the_environment_stays_one(tmp_path):
    (tmp_path / "x.py").write_text(LAUNCHER)
    word = read_script(tmp_path / "x.py", cwd=tmp_path).launches[0].arguments[2]
    assert [(ref.name, ref.default) for ref in word.env_refs] == [("MODEL", "/m/q")]


def test_the_commands_of_a_skypilot_task_are_read_with_its_variables(tmp_path):
    launches, places, _ = told(tmp_path, "task.yaml", SKYPILOT)
    assert launches == [["model.path=some/model", "nodes.n=1"]] and places == ["task.yaml:6"]


def test_the_containers_of_a_kubernetes_manifest_are_read(tmp_path):
    assert told(tmp_path, "job.yaml", KUBERNETES)[0] == [["a.n=4"], ["a.n=2"]]


def test_the_entry_point_of_a_ray_job_is_read(tmp_path):
    text = "entrypoint: python3 -m verl.trainer.main_ppo a.b=$V\nruntime_env: {env_vars: {V: '1'}}\n"
    assert told(tmp_path, "job.yaml", text)[0] == [["a.b=1"]]


def test_the_shell_commands_of_a_notebook_are_read(tmp_path):
    cells = [
        ["x = 1\n", "!python3 -m verl.trainer.main_ppo \\\n", "  a.b=1\n"],
        ["%%bash\n", "python3 -m verl.trainer.main_ppo a.b=2"],
        ["import os\n", "os.system('python3 -m verl.trainer.main_ppo a.b=3')"],
        ["this is ! no code"],
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})
    launches, places, _ = told(tmp_path, "n.ipynb", text)
    assert launches == [["a.b=1"], ["a.b=2"], ["a.b=3"]]
    assert places == ["n.ipynb[1]:2", "n.ipynb[2]:2", "n.ipynb[3]:2"]


def test_a_main_itself_is_started_with_the_arguments_behind_the_dashes(tmp_path):
    key = "actor_rollout_ref.rollout.n=4"
    launches, _, messages = told(tmp_path, "start.py", HYDRA, key)
    assert launches == [[key]] and any("Hydra starts" in message for message in messages)
    assert told(tmp_path, "start.py", HYDRA)[0] == []


def test_a_composed_configuration_is_named_as_such(tmp_path):
    launches, _, messages = told(tmp_path, "start.py", COMPOSED)
    assert launches == [["--config-name", "ppo_trainer", "actor_rollout_ref.rollout.n=4"]]
    assert any("composes its configuration itself" in message for message in messages)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.py", "def f(:\n", "x.py:1: not a Python file: invalid syntax"),
        ("x.ipynb", "{}", "x.ipynb: not a notebook"),
        ("x.yaml", "a: 1\n", "x.yaml: neither a shell script nor a job specification"),
        ("x.yaml", "a: {{ b }}\n", "x.yaml: neither a shell script nor a job specification"),
    ],
)
def test_what_is_not_what_its_ending_says_is_refused(tmp_path, monkeypatch, name, text, said):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(UserError) as error:
        read_script(name)
    assert said in str(error.value)


def test_aliases_to_aliases_are_refused_at_their_line(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    text = "apiVersion: v1\nkind: Job\n" + "\n".join(lines)
    with pytest.raises(
        UserError, match=r"bomb\.yaml:8: not a YAML file: too large once its aliases are followed"
    ):
        told(tmp_path, "bomb.yaml", text)


def test_a_configuration_of_verl_s_is_no_job(tmp_path):
    (tmp_path / "verl.yaml").write_text("data: {train_batch_size: 4}\n")
    (tmp_path / "task.yaml").write_text(SKYPILOT)
    assert not is_job(str(tmp_path / "verl.yaml")) and is_job(str(tmp_path / "task.yaml"))


@pytest.mark.parametrize("name", ["task.yaml", "start.py"])
def test_a_run_asks_for_a_shell_script_in_one_sentence(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text({"task.yaml": SKYPILOT, "start.py": HYDRA}[name])
    result = CliRunner().invoke(cli, ["run", name, "--dry-run"])
    assert isinstance(result.exception, UserError) and f"{name} is not a shell script" in str(
        result.exception
    )
