"""Real bash, the shim in front: what reaches us, what reaches the real program, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_compat.run.script import shim

RECORDER = """
import json, os, sys
real, name, *words = sys.argv[2:]
record = {"name": name, "real": real, "words": words, "cwd": os.getcwd(), "env": os.environ.get("MARK")}
with open(sys.argv[1], "a") as out:
    out.write(json.dumps(record) + "\\n")
print("caught")
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def bash(tmp_path):
    """Runs a script under the shim; gives (the finished process, what was caught)."""
    recorder, caught = tmp_path / "recorder.py", tmp_path / "caught.jsonl"
    recorder.write_text(RECORDER)
    caught.touch()
    real = tmp_path / "real"
    real.mkdir()
    for name in ("python3", "uv", "ray"):
        (real / name).write_text(f'#!/bin/sh\necho "real {name} $*"\nexit 7\n')
        (real / name).chmod(0o755)

    def run(text, *arguments, env=None):
        script = tmp_path / "run.sh"
        script.write_text(text)
        base = {"PATH": f"{real}:{os.environ['PATH']}", "HOME": str(tmp_path), **(env or {})}
        installed = shim.install(
            tmp_path / "shim",
            script_text=text,
            env=base,
            script=str(script),
            interceptor=(sys.executable, str(recorder), str(caught)),
        )
        done = subprocess.run(
            ["bash", str(script), *arguments], env=installed, capture_output=True, text=True
        )
        return done, [json.loads(line) for line in caught.read_text().splitlines()]

    return run


def test_the_training_main_is_caught_with_its_words_environment_and_folder(bash, tmp_path):
    (tmp_path / "work").mkdir()
    _, caught = bash(
        f'cd {tmp_path}/work\nexport MARK=here\npython3 -m verl.trainer.main_ppo a.b="x y" "$@"', "c=[1,2]"
    )
    assert caught[0]["words"] == ["-m", "verl.trainer.main_ppo", "a.b=x y", "c=[1,2]"]
    assert (caught[0]["env"], caught[0]["cwd"]) == ("here", str(tmp_path / "work"))


def test_everything_else_reaches_the_real_program_with_its_status(bash):
    done, caught = bash("python3 -m pip list\necho status $?")
    assert done.stdout == "real python3 -m pip list\nstatus 7\n"
    assert caught == []


def test_a_missing_program_is_missing_as_without_us(bash):
    done, _ = bash("torchrun x.py; echo $?", env={"PATH": "/usr/bin:/bin"})
    assert "torchrun: command not found" in done.stderr
    assert done.stdout == "127\n"


@pytest.mark.parametrize(
    "call", ["python3", "env A=1 python3", "exec python3", "nohup python3", "$(command -v python3)"]
)
def test_ways_to_call_an_interpreter(bash, call):
    _, caught = bash(f"{call} -u -m verl.trainer.main_ppo k=v")
    assert [record["words"] for record in caught] == [["-u", "-m", "verl.trainer.main_ppo", "k=v"]]


def test_an_absolute_path_in_the_script_is_caught_and_its_own_interpreter_kept(bash, tmp_path):
    other = tmp_path / "conda" / "bin" / "python3"
    other.parent.mkdir(parents=True)
    other.write_text("#!/bin/sh\necho other $*\n")
    other.chmod(0o755)
    done, caught = bash(f"{other} -c 1\n{other} -m verl.trainer.main_ppo k=v")
    assert done.stdout == "other -c 1\ncaught\n"
    assert caught[0]["real"] == str(other)


def test_an_absolute_path_held_by_a_variable_is_caught(bash, tmp_path):
    other = tmp_path / "conda" / "bin" / "python3"
    other.parent.mkdir(parents=True)
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    _, caught = bash(
        "$CONDA_PREFIX/bin/python3 -m verl.trainer.main_ppo k=v",
        env={"CONDA_PREFIX": str(tmp_path / "conda"), "PATH": os.environ["PATH"]},
    )
    assert len(caught) == 1


def test_a_script_that_puts_its_own_environment_first_is_still_caught(bash, tmp_path):
    activated = tmp_path / "venv" / "bin"
    activated.mkdir(parents=True)
    (activated / "python3").write_text("#!/bin/sh\necho venv $*\n")
    (activated / "python3").chmod(0o755)
    done, caught = bash(f"export PATH={activated}:$PATH\npython3 -V\npython3 -m verl.trainer.main_ppo k=v")
    assert done.stdout == "venv -V\ncaught\n"
    assert len(caught) == 1


def test_the_launch_s_status_is_the_script_s(bash):
    done, _ = bash("set -e\npython3 -m verl.trainer.main_ppo k=v\necho never", env={"CODE": "5"})
    assert (done.returncode, done.stdout) == (5, "caught\n")


def test_tee_and_a_nested_script_work_as_written(bash, tmp_path):
    (tmp_path / "inner.sh").write_text("python3 -m recipe.dapo.main_dapo k=v 2>&1 | tee log.txt\n")
    done, caught = bash(f"cd {tmp_path}\nsh inner.sh")
    assert (tmp_path / "log.txt").read_text() == "caught\n"
    assert len(caught) == 1 and done.returncode == 0


def test_a_traced_script_shows_its_own_commands_only(bash):
    done, _ = bash("set -x\npython3 -m verl.trainer.main_ppo k=v\necho after")
    assert done.stderr == "+ python3 -m verl.trainer.main_ppo k=v\n+ echo after\n"


def test_the_user_s_own_bash_env_is_read(bash, tmp_path):
    (tmp_path / "own").write_text("OWN=yes\n")
    done, _ = bash("echo $OWN", env={"BASH_ENV": str(tmp_path / "own"), "PATH": os.environ["PATH"]})
    assert done.stdout == "yes\n"


def test_without_gives_the_environment_back(tmp_path):
    env = {"PATH": "/usr/bin:/bin", "HOME": "/h", "BASH_ENV": "/own", "PYTHONPATH": "/own/python"}
    assert shim.without(shim.install(tmp_path, script_text="", env=env)) == env
    assert Path(tmp_path / "python3").exists()


PYTHON = os.path.realpath(sys.executable)


def test_a_python_called_by_its_path_runs_as_without_us(bash, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.OWN = 'own site'\n")
    (tmp_path / "tool.py").write_text(
        "import os, sys\nprint(OWN, sys.argv[1:], sys.stdin.read(), [p for p in sys.path if 'shim' in p])\n"
        "print('sitecustomize' in sys.modules)\nsys.exit(3)\n"
    )
    done, caught = bash(
        f"export PYTHONPATH=$PYTHONPATH:{tmp_path}/own\ncd {tmp_path}\n"
        f"echo in | nohup {PYTHON} tool.py 'a b'\necho ${{PIPESTATUS[1]}}",
    )
    assert done.stdout == "own site ['a b'] in\n []\nTrue\n3\n", done.stderr
    assert caught == []


def test_a_python_without_a_sitecustomize_of_its_own_starts_silently(bash):
    done, _ = bash(f"nohup {PYTHON} -c 'print(1)'")
    assert (done.stdout, done.stderr.replace("nohup: ignoring input\n", "")) == ("1\n", "")


def test_a_program_that_is_not_there_is_not_there(bash):
    done, _ = bash("command -v deepspeed || echo none", env={"PATH": "/usr/bin:/bin"})
    assert done.stdout == "none\n"


@pytest.mark.parametrize(
    ("given", "text", "seen"),
    [
        (None, "export PYTHONPATH=${PYTHONPATH:-/own}; echo $PYTHONPATH", "/own"),
        (None, 'if [ -z "$PYTHONPATH" ]; then echo unset; fi', "unset"),
        ("/mine", "echo ${PYTHONPATH#*:}", "/mine"),
    ],
)
def test_a_script_that_asks_for_pythonpath_finds_its_own(bash, given, text, seen):
    env = {"PYTHONPATH": given} if given else {}
    assert bash(text, env={"PATH": os.environ["PATH"], **env})[0].stdout == f"{seen}\n"


def test_a_folder_of_path_with_a_blank_in_its_name_is_no_trouble(bash, tmp_path):
    folder = tmp_path / "with blank"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\necho blank\n")
    (folder / "python3").chmod(0o755)
    done, caught = bash(
        "python3 -V\npython3 -m verl.trainer.main_ppo k=v", env={"PATH": f"{folder}:{os.environ['PATH']}"}
    )
    assert (done.stdout, done.stderr) == ("blank\ncaught\n", "")
    assert len(caught) == 1


SERVER = """
import http.server, sys
class Judge(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"0.5")
    def log_message(self, *_): ...
server = http.server.HTTPServer(("127.0.0.1", 0), Judge)
with open(sys.argv[1] + ".part", "w") as out:
    out.write(str(server.server_port))
__import__("os").rename(sys.argv[1] + ".part", sys.argv[1])
server.serve_forever()
"""
SERVED = """
{python} {folder}/server.py {folder}/port &
trap "kill $!" EXIT
until [ -s {folder}/port ]; do sleep 0.1; done
PORT=$(cat {folder}/port)
export MARK=http://127.0.0.1:$PORT
python3 -m verl.trainer.main_ppo k=v
exec 3<>/dev/tcp/127.0.0.1/$PORT
printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3
tail -n 1 <&3
"""


def test_a_server_that_the_script_starts_answers_while_the_launch_runs(bash, tmp_path):
    """The rest of the script is bash's: what it starts in the background, its wait, its trap."""
    (tmp_path / "server.py").write_text(SERVER)
    done, caught = bash(SERVED.format(python=sys.executable, folder=tmp_path))
    assert done.stdout == "caught\n0.5"  # and no server holds the pipe open any more
    assert caught[0]["env"] == f"http://127.0.0.1:{(tmp_path / 'port').read_text()}"


@pytest.mark.parametrize(
    "text",
    [
        "{sleeper} -c 1 &\nkill -9 $!; wait $!; echo $?",
        "A=1 {sleeper} \\\n  -c \\\n  1 > /dev/null &\nkill -9 $!; wait $!; echo $?",
        "serve() {{\n  {sleeper} -c 1 &\n}}\nserve\nkill -9 $!; wait $!; echo $?",
        "python3 -m verl.trainer.main_ppo a=b &\nkill -9 $!; wait $!; echo $?",
    ],
)
def test_the_number_of_a_command_in_the_background_is_its_program_s(bash, tmp_path, text):
    """Else `kill $!` would end a shell of ours, and leave a server on its GPU."""
    sleeper = tmp_path / "venv" / "bin" / "python3"
    sleeper.parent.mkdir(parents=True)
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    done, _ = bash(text.format(sleeper=sleeper))
    assert done.stdout == "137\n"


def test_what_follows_in_the_same_shell_runs_all_the_same(bash):
    done, _ = bash("(python3 -c 1; echo first) & wait\n( python3 -c 1; echo second ) ; python3 -c 1 & wait")
    assert sorted(line for line in done.stdout.splitlines() if "real" not in line) == ["first", "second"]
    done, _ = bash("f() { python3 -c 1; echo third; }\nf &\nwait\npython3 -c 1 | cat\necho fourth")
    assert [line for line in done.stdout.splitlines() if "real" not in line] == ["third", "fourth"]


def test_programs_of_the_environment_s_folders_are_caught_by_their_paths(tmp_path):
    def program(folder, name="python3"):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    venv, conda, path = program("venv/bin"), program("conda/bin", "python"), program("path", "torchrun")
    program("venv/bin", "pip")  # starts no training
    env = {
        "VIRTUAL_ENV": f"{tmp_path}/venv",
        "CONDA_PREFIX": f"{tmp_path}/conda",
        "PATH": f"relative:{tmp_path}/path",
        "MINE": "/opt/held/python3",
        "OTHER": "/opt/held/pip",
    }
    found = shim._called_by_path("/opt/spelled/python -m x\n", env)
    assert found == {venv, conda, path, "/opt/held/python3", "/opt/spelled/python"}
    assert shim._called_by_path("", {"PATH": "", "VIRTUAL_ENV": ""}) == set()
