"""Every way to start a training main: what reading says that it starts is what a run catches.

The runs are real: bash under the shim, with stub programs in place of python3, torchrun and the others.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from facts import COMMAND_LINES

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_text
from trinity_compat.launch.entrypoints import ONE_STEP_OFF, PROGRAMS, is_translated
from trinity_compat.run.script import intercept_check, shim

HERE = Path(__file__).parent
SPELLINGS = [
    line.split(" | ", 1)
    for line in (HERE / "spellings.txt").read_text().splitlines()
    if not line.startswith("#")
]
MAIN = "-m verl.trainer.main_ppo a=1"
CAUGHT = ["verl.trainer.main_ppo", "a=1"]

RECORDER = f"""
import json, os, sys
sys.path.insert(0, {str(HERE.parents[1])!r})
from trinity_compat.run.script import intercept

def record(found):
    with open(sys.argv[1], "a") as out:
        out.write(json.dumps([os.environ.get("LINE"), found.module, *found.arguments]) + "\\n")
    return 0

sys.exit(intercept.main(sys.argv[2:], run=record))
"""
STUB = '#!/bin/sh\necho "$LINE $(basename "$0")" >>"$REACHED"\n'
WRAPPERS = {
    "nsys": 'while [ "${1#python}" = "$1" ]; do shift; done\nexec "$@"',
    "conda": '[ "$1" = run ] || exit 0\nshift 3\nPATH=$OTHER:$PATH exec "$@"',
}


class Stage:
    """A folder to run scripts in, under the shim."""

    def __init__(self, folder, stubs):
        self.folder = folder
        self.script = folder / "run.sh"
        (folder / "bin").mkdir()
        for name, text in {**dict.fromkeys(stubs, STUB), **WRAPPERS}.items():
            (folder / "bin" / name).write_text(text if text is STUB else f"#!/bin/sh\n{text}\n")
            (folder / "bin" / name).chmod(0o755)
        (folder / "recorder.py").write_text(RECORDER)
        self.environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
        self.environ["REACHED"] = str(folder / "reached")

    def run(self, text):
        """(What was caught, the lines of stubs that were reached, the finished bash)."""
        caught, reached = self.folder / "caught", self.folder / "reached"
        caught.write_text("")
        reached.write_text("")
        self.script.write_text(text)
        env = shim.install(
            self.folder / "shim",
            script_text=text,
            env=self.environ,
            programs=intercept_check.programs_of(
                intercept_check.launches_of(str(self.script), (), self.environ)
            ),
            interceptor=(sys.executable, str(self.folder / "recorder.py"), str(caught)),
        )
        done = subprocess.run(["bash", self.script], env=env, cwd=self.folder, capture_output=True, text=True)
        records = [json.loads(line) for line in caught.read_text().splitlines()]
        return records, [line.split() for line in reached.read_text().splitlines()], done


@pytest.fixture(scope="module")
def spelled(tmp_path_factory):
    """For each spelling, by its number: what was caught, and the stub that was reached."""
    names = {"python", "python3", "python3.10", "pypy3", "ray", *PROGRAMS}
    stage = Stage(tmp_path_factory.mktemp("spelled"), names)
    lines = [f"export LINE={number}\n{line}\n" for number, (_, line) in enumerate(SPELLINGS)]
    caught, reached, _ = stage.run("".join(lines))
    return caught, reached


def test_every_spelling_that_was_given_is_here():
    given = [line for line in COMMAND_LINES.read_text().splitlines() if line and not line.startswith("#")]
    assert set(given) <= {line for _, line in SPELLINGS}


@pytest.mark.parametrize("number", range(len(SPELLINGS)), ids=[line for _, line in SPELLINGS])
def test_parse_reads_what_run_catches(spelled, number, tmp_path):
    module, line = SPELLINGS[number]
    launches = read_text(f"{line}\n", name="run.sh", cwd=tmp_path).launches
    assert [launch.module for launch in launches] == ([] if module == "-" else [module])
    caught, reached = spelled
    assert [record[1:] for record in caught if record[0] == str(number)] == [
        [launch.module, *(word.text for word in launch.arguments)] for launch in launches
    ]
    assert bool([name for at, name in reached if at == str(number)]) == (module == "-")


@pytest.mark.parametrize(("module", "line"), [(module, line) for module, line in SPELLINGS if module != "-"])
def test_what_is_not_translated_is_refused_before_anything_is_executed(module, line, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"echo\n{line}\n")
    environ = {"PATH": os.environ["PATH"]}
    if is_translated(module):
        intercept_check.check(str(script), (), environ)
    else:
        with pytest.raises(
            UserError, match=rf"run\.sh:2: {module} is not (translated|veRL's own main): .*was executed"
        ):
            intercept_check.check(str(script), (), environ)


@pytest.mark.parametrize(
    ("folder", "line", "module"),
    [
        ("verl/trainer", "python3 main_ppo.py a=1", "verl.trainer.main_ppo"),
        ("verl/utils", "python3 ../trainer/main_ppo.py a=1", "verl.trainer.main_ppo"),
        ("verl/trainer", "python3 -m main_ppo a=1", "verl.trainer.main_ppo"),
        ("verl", "python3 -m trainer.main_ppo a=1", "verl.trainer.main_ppo"),
        ("recipe/dapo", "torchrun --standalone main_dapo.py a=1", "recipe.dapo.main_dapo"),
        (ONE_STEP_OFF.rpartition(".")[0].replace(".", "/"), "python3 main_ppo.py a=1", ONE_STEP_OFF),
        ("mine", "python3 main_ppo.py a=1", "main_ppo"),
    ],
)
def test_whose_file_it_is_depends_on_the_folder(folder, line, module, tmp_path):
    stage = Stage(tmp_path, {"python3", "torchrun"})
    (tmp_path / folder).mkdir(parents=True)
    text = f"cd {folder}\n{line}\n"
    caught, _, _ = stage.run(text)
    assert caught == [[None, module, "a=1"]]
    assert [launch.module for launch in read_text(text, cwd=tmp_path).launches] == [module]


PYTHON = os.path.realpath(sys.executable)  # one that has no veRL, so that the folder's own is found
BIN = os.path.dirname(PYTHON)
OTHER_PATH = "export PYTHONPATH=/x\n"


@pytest.fixture
def stock(tmp_path, monkeypatch):
    """A stage with a veRL that says so when it is started."""
    monkeypatch.chdir(tmp_path)
    stage = Stage(tmp_path, ())
    stage.environ["OTHER"] = BIN
    (tmp_path / "verl" / "trainer").mkdir(parents=True)
    (tmp_path / "verl" / "trainer" / "main_ppo.py").write_text("print('stock')\n")
    (tmp_path / "inner.sh").write_text(f"{PYTHON} {MAIN}\n")
    (tmp_path / "by_name.sh").write_text(f"python3 {MAIN}\n")
    (tmp_path / "activate").write_text(f"export PATH={BIN}:$PATH\n")
    (tmp_path / "launch.py").write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, *{MAIN.split()!r}])\n"
    )
    return stage


@pytest.mark.parametrize(
    "text",
    [
        f"{PYTHON} {MAIN}",
        f"exec {PYTHON} {MAIN}",
        f"command {PYTHON} {MAIN}",
        f"nohup {PYTHON} {MAIN}",
        f"env A=1 {PYTHON} {MAIN}",
        f"sh -c '{PYTHON} {MAIN}'",
        "sh inner.sh",
        "bash inner.sh",
        f"PYTHON={PYTHON}; nohup $PYTHON {MAIN} & wait",
        f"echo a=1 | xargs {PYTHON} -m verl.trainer.main_ppo",
        f"source ./activate; python3 {MAIN}",
        f"source ./activate; nohup python3 {MAIN}",
        f"source ./activate; exec python3 {MAIN}",
        "source ./activate; sh by_name.sh",
        f"conda run -n env python3 {MAIN}",
        f"export PYTHONPATH=$PWD:$PYTHONPATH\nexec {PYTHON} {MAIN}",
        f"export PYTHONPATH=${{PYTHONPATH:-$PWD}}\n{PYTHON} {MAIN}",
        f"{OTHER_PATH}{PYTHON} {MAIN}",
        f"{OTHER_PATH}exec python3 {MAIN}",
        f"{OTHER_PATH}source ./activate; python3 {MAIN}",
        f"{OTHER_PATH}bash inner.sh",
        f"nohup python3 -I {MAIN}",
        f"env -i PATH=$PATH python3 {MAIN}",
        f"ray job submit -- {PYTHON} {MAIN}",
    ],
)
def test_a_launch_that_is_read_is_caught_or_refused_and_this_one_is_caught(stock, text):
    caught, _, done = stock.run(text)
    assert [record[1:] for record in caught] == [CAUGHT], done.stderr
    assert "stock" not in done.stdout
    intercept_check.check(str(stock.script), (), stock.environ)


@pytest.mark.parametrize(
    "text",
    [
        f"env -i {PYTHON} {MAIN}",
        f"exec {PYTHON} -I verl/trainer/main_ppo.py a=1",
        f"{OTHER_PATH}exec {PYTHON} {MAIN}",
        f"{OTHER_PATH}nohup {PYTHON} {MAIN}",
        f"{OTHER_PATH}sh inner.sh",
        f"{OTHER_PATH}source ./activate; exec python3 {MAIN}",
        f"{OTHER_PATH}source ./activate; sh by_name.sh",
        f"{OTHER_PATH}conda run -n env python3 {MAIN}",
        f"unset PYTHONPATH; exec {PYTHON} {MAIN}",
    ],
)
def test_a_launch_that_is_read_is_caught_or_refused_and_this_one_is_refused(stock, text):
    caught, _, done = stock.run(text)
    assert (caught, done.stdout) == ([], "stock\n"), "it is caught after all: it need not be refused"
    with pytest.raises(UserError, match=r"(run|inner|by_name)\.sh:[12]: .* would train stock veRL"):
        intercept_check.check(str(stock.script), (), stock.environ)


def test_a_launcher_in_python_is_caught_although_no_script_shows_it(stock):
    for text in ("python3 launch.py", f"{OTHER_PATH}python3 launch.py", f"nohup {PYTHON} launch.py"):
        caught, _, _ = stock.run(text)
        assert [record[1:] for record in caught] == [CAUGHT], text


def test_a_tool_that_only_looks_like_a_main_runs_once_as_it_would(stock):
    (stock.folder / "tool_main.py").write_text(
        "import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(3)\n"
    )
    for program in ("python3", PYTHON, f"nohup {PYTHON}"):
        caught, _, done = stock.run(
            f"echo in | {program} tool_main.py 'a b' --trainer x\nexit ${{PIPESTATUS[1]}}"
        )
        assert (caught, done.stdout, done.returncode) == ([], "['a b', '--trainer', 'x'] in\n\n", 3), program


def test_what_may_have_changed_path_unread_counts(stock):
    stock.script.write_text(f"{OTHER_PATH}conda activate verl\nexec python3 {MAIN}\n")
    with pytest.raises(UserError, match=r"run\.sh:3: .*an unread command before it may put another folder"):
        intercept_check.check(str(stock.script), (), stock.environ)


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("docker exec box", "docker exec would train stock veRL: .* in a container"),
        ("ssh far", "ssh would train stock veRL: .* on another machine"),
        (
            "docker compose -f nowhere.yaml run box",
            "docker compose would train stock veRL: .* in a container",
        ),
        ("podman-compose exec box", "podman-compose would train stock veRL: .* in a container"),
        ("apptainer exec x.sif", "apptainer would train stock veRL: .* in a container"),
        ("salloc -N 1", "salloc would train stock veRL: .* that the scheduler chooses"),
        ("sudo -E", "sudo would train stock veRL: .* as another user"),
        ("tmux new -d", "tmux would train stock veRL: .* in a session"),
    ],
)
def test_what_starts_it_elsewhere_is_refused_whether_it_is_installed_or_not(stock, wrapper, said):
    stock.script.write_text(f"true\n{wrapper} python3 {MAIN}\n")
    stock.environ["PATH"] = str(stock.folder / "bin")
    verdicts = []
    for installed in (False, True):
        if installed:
            (stock.folder / "bin" / wrapper.split()[0]).symlink_to("conda")
        with pytest.raises(UserError, match=rf"run\.sh:2: {said}") as error:
            intercept_check.check(str(stock.script), (), stock.environ)
        verdicts.append(str(error.value))
    assert len(set(verdicts)) == 1
    assert f"write `{said.partition(' would')[0]} … trinity-compat run SCRIPT`" in str(error.value)


@pytest.mark.parametrize("name", ["RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"])
def test_a_job_for_another_cluster_is_sent_there(stock, name):
    stock.script.write_text(f"true\n{name}=http://far:8265 ray job submit -- python3 {MAIN}\n")
    (launch,) = intercept_check.check(str(stock.script), (), stock.environ)
    assert intercept_check.submitted_to(launch) == "http://far:8265"


def test_a_main_of_the_users_is_to_be_taken_for_the_one_that_is_translated(tmp_path):
    script = tmp_path / "run.sh"
    keys = "algorithm.adv_estimator=grpo data.gen_batch_size=64 trainer.use_v1=true"
    script.write_text(f"python3 mine.py {keys}\n")
    with pytest.raises(UserError) as refused:
        intercept_check.check(str(script), (), dict(os.environ))
    assert "--main mine=verl.trainer.main_ppo" in str(refused.value.hint)
