"""Nothing of ours is imported from the folder in which a launch is made; users' own modules are."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from toy_plan import planned

import trinity_compat
from trinity_compat.common import python_command
from trinity_compat.run.checks import start_check
from trinity_compat.run.supervise.sides import commands_of

# What our own processes import, or Python for them. Each says so when it is imported.
TRAPS = ("trinity_compat/__init__", "json", "torch", "socket", "selectors", "click", "yaml", "verl/__init__")
TRAP = "import os; os.write(2, b'TRAPPED ' + __file__.encode() + bytes([10])); raise SystemExit(99)\n"


@pytest.fixture
def folder(tmp_path):
    for name in TRAPS:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(TRAP)
    (tmp_path / "my_reward.py").write_text("WORTH = 3\n")
    return tmp_path


def called(folder, command, **env):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env={**environ, **env}, capture_output=True, text=True)
    assert "TRAPPED" not in done.stderr, done.stderr
    return done


def test_a_module_in_the_folder_does_shadow_without_our_command(folder):
    done = subprocess.run([sys.executable, "-m", "json.tool"], cwd=folder, capture_output=True, text=True)
    assert "TRAPPED" in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (python_command.of_module("trinity_compat.trainer"), "usage: "),
        (python_command.of_module("trinity_compat.explorer"), "usage: "),
        (python_command.of_module("trinity_compat.trinity.workflows.agent_child", "x.py:f"), ""),
        (python_command.of_code("import json; print(json.__file__)"), ""),
        ([str(Path(sys.executable).with_name("trinity-compat")), "profile"], ""),
    ],
)
def test_a_process_of_ours_imports_nothing_from_its_folder(folder, command, said):
    assert said in called(folder, command).stderr


def test_the_intercepting_python_ignores_the_script_s_folder(folder):
    (folder / "run.sh").write_text("python3 -m verl.trainer.main_ppo data.train_batch_size=0x\n")
    done = called(folder, [str(Path(sys.executable).with_name("trinity-compat")), "run", "run.sh"])
    assert done.returncode == 2, done.stderr
    assert "error" in done.stderr


def test_python_m_trinity_compat_imports_no_more_than_itself_from_there(tmp_path):
    (tmp_path / "click.py").write_text(TRAP)
    assert called(tmp_path, [sys.executable, "-m", "trinity_compat", "profile"]).returncode == 0


def test_a_module_of_the_user_s_is_found_behind_everything_installed(folder):
    code = (
        "from trinity_compat.common.python_command import add_user_folder; add_user_folder()\n"
        "import json, my_reward; print(my_reward.WORTH, json.__file__)"
    )
    done = called(folder, python_command.of_code(code), **{python_command.USER_FOLDER: str(folder)})
    worth, found = done.stdout.split()
    assert worth == "3"
    assert found == json.__file__


def test_every_python_is_started_by_the_one_module():
    root = Path(trinity_compat.__file__).parent
    starts = re.compile(r"sys\.executable,\s*[\"']-[mc]")
    found = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if starts.search(path.read_text("utf-8"))
    }
    assert found <= {"studio/control.py"}


def test_threads_that_wait_give_up_their_core_unless_the_user_says_otherwise():
    env: dict[str, str] = {}
    python_command.share_cores(env)
    assert env == {"OMP_WAIT_POLICY": "PASSIVE"}
    env = {"OMP_WAIT_POLICY": "ACTIVE"}
    python_command.share_cores(env)
    assert env == {"OMP_WAIT_POLICY": "ACTIVE"}


DRIVER = """
import os, ray
from trinity_compat.common import python_command
from trinity_compat.run.checks import start_check
from trinity_compat.run.supervise.sides import commands_of
with python_command.outside_user_folder():
    ray.init(
        address=os.environ["RAY_ADDRESS"],
        log_to_driver=False,
        runtime_env=python_command.ray_environment({"env_vars": {"A": "1"}}),
    )

def work():
    import json, sys, time
    from multiprocessing import forkserver
    from pathlib import Path
    from trinity_compat.common import python_command
    from trinity_compat.explorer.sandbox import process
    process.warm(["trinity_compat.common.errors"])
    server = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/cmdline")
    while not (words := server.read_text()):  # empty in the moment of its exec
        time.sleep(0.02)
    python_command.add_user_folder()
    import my_reward
    return {
        "cwd": str(Path.cwd()),
        "json": json.__file__,
        "reward": my_reward.WORTH,
        "server": words.split(chr(0))[:4],
        "env": {name: os.environ.get(name) for name in ("A", "B", "OMP_WAIT_POLICY")},
        "umask": oct(os.umask(0)),
    }

class Actor:
    def work(self):
        return work()

import json
actor = ray.remote(Actor).options(runtime_env={"env_vars": {"B": "2"}}).remote()
print(json.dumps(ray.get(actor.work.remote())))
"""
STARTS = """
import os, subprocess, sys
from trinity_compat.common import python_command
from trinity_compat.run.checks import start_check
from trinity_compat.run.supervise.sides import commands_of
from trinity_compat.run.supervise.cluster import local_ray
with local_ray({}, gpus=0) as cluster:
    env = {**os.environ, "RAY_ADDRESS": cluster.address, python_command.USER_FOLDER: os.getcwd()}
    python_command.share_cores(env)
    sys.exit(subprocess.run(python_command.of_code(sys.argv[1]), env=env).returncode)
"""


@pytest.mark.runtime
def test_nor_does_a_worker_of_ray_s_and_what_that_starts(folder):
    done = called(folder, python_command.of_code(STARTS, DRIVER))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cwd"] == str(folder), "relative paths of a launch are still its folder's"
    assert found["json"] == json.__file__
    assert found["reward"] == 3
    assert "-P" in found["server"]
    assert found["env"] == {"A": "1", "B": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    assert found["umask"] == "0o77"


@pytest.mark.parametrize(("said", "has"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_each_process_of_a_run_has_what_it_needs_of_its_own(tmp_path, monkeypatch, said, has):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if said:
        monkeypatch.setenv("OMP_WAIT_POLICY", said)
    made = planned(job=str(tmp_path / "job"))
    made.job.create()
    commands = commands_of(made, "127.0.0.1:1")
    assert len(commands) == 2
    for command in commands:
        assert command.env["OMP_WAIT_POLICY"] == has
        assert command.env[python_command.USER_FOLDER] == str(made.cwd)
        assert command.argv[1] == "-P"
        assert command.umask == 0o077
    for execute in (True, False):
        env = start_check._environment(made, execute=execute, native=True)
        assert env["OMP_WAIT_POLICY"] == has
        assert (python_command.USER_FOLDER in env) is execute, "a dry run imports nothing of the user's"
