"""scripts/judge/verl_clone.py: the launches of a clone's commit, recorded as bash makes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import needs
import pytest
from loaded_scripts import SCRIPTS, loaded

TABLE = """\
# a comment
examples/sft/*.sh | 8 /tmp/out |
examples/grpo/run_a*.sh | | ROOT=/r two=2
examples/grpo/*.sh | x | ROOT=/late
"""


@pytest.fixture
def verl_clone(monkeypatch):
    return loaded("verl_clone", monkeypatch)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("examples/sft/a/run.sh", ["8", "/tmp/out"]),
        ("examples/grpo/run_a.sh", ["ROOT=/r", "two=2"]),
        ("examples/grpo/run_b.sh", ["ROOT=/late", "x"]),
        ("tests/run.sh", []),
    ],
)
def test_the_first_line_that_fits_says_what_a_script_wants(verl_clone, tmp_path, script, words):
    (tmp_path / "table.txt").write_text(TABLE)
    found = verl_clone.wanted(script, tmp_path / "table.txt")
    assert found.words == words and verl_clone.of_words(words) == found


def test_a_word_behind_an_argument_is_no_variable(verl_clone):
    found = verl_clone.of_words(["A=1", "8", "B=2", "trainer.x=3"])
    assert (found.variables, found.arguments) == ({"A": "1"}, ("8", "B=2", "trainer.x=3"))
    assert verl_clone.of_words(["trainer.x=3"]).arguments == ("trainer.x=3",)


def test_every_line_of_the_kept_table_fits_a_recorded_script(verl_clone):
    recorded = {script["path"]: script for script in verl_clone.record_facts.read(MAIN)["scripts"]}
    globs = [line for line in verl_clone.TABLE.read_text().splitlines() if not line.startswith("#")]
    for line in globs:
        assert any(verl_clone.fnmatch(path, line.split("|")[0].strip()) for path in recorded), line
    for path, script in recorded.items():
        want = verl_clone.wanted(path)
        assert (list(want.arguments), want.variables) == (script["args"], script["env"]), path


MAIN = SCRIPTS.parent / "tests" / "facts" / "main.json.xz"


def test_training_mains_are_told_from_other_calls(verl_clone):
    calls = [
        ["/stubs/torchrun", "--nnodes=1", "-m", "verl.trainer.sft_trainer", "a=1"],
        ["/stubs/python3", "-u", "-m", "verl.trainer.main_ppo", "b=2 c", ""],
        ["/stubs/python3", "-m", "verl.trainer.main_generation_server"],
        ["/stubs/python", "examples/data_preprocess/gsm8k.py", "--to", "x"],
        ["/stubs/python", "recipe/dapo/main_dapo.py", "d=3"],
    ]
    fields = [field for call in calls for field in (str(len(call) - 1), *call)]
    found = list(verl_clone.launches_of("".join(f"{field}\0" for field in fields).encode()))
    assert found == [
        {"module": "verl.trainer.sft_trainer", "args": ["a=1"], "wrapper": ["torchrun", "--nnodes=1"]},
        {"module": "verl.trainer.main_ppo", "args": ["b=2 c", ""]},
        {"module": "recipe.dapo.main_dapo", "args": ["d=3"]},
    ]


RUN = """\
set -xeuo pipefail
ulimit -n 1000000000
hf download org/model
DEVICE=$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)
LAUNCH=(uv run --extra vllm python3)
"${LAUNCH[@]}" -m verl.trainer.main_ppo \\
  device=$DEVICE home=$HOME root=${ROOT:-none} "$@" day=$(date +%Y%m%d) | tee log
FILE=verl/trainer/config/ppo_trainer.yaml
ray job submit --no-wait -- python3 -m verl.trainer.main_ppo second=$(wc -l <$FILE)
curl http://127.0.0.1 && touch /etc/written
"""


@pytest.mark.verl
def test_a_commit_is_recorded_without_a_line_of_its_scripts(verl_clone, tmp_path):
    needs.program("bwrap", "bubblewrap")
    clone, git = tmp_path / "clone", ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for name, text in {
        "examples/run.sh": RUN,
        "examples/broken.sh": "set -u\npython3 -m verl.trainer.main_ppo a=$NOWHERE\n",
        "verl/trainer/config/ppo_trainer.yaml": "theirs: 1\n",
        "docs/run.sh": RUN,
    }.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    when = {"GIT_COMMITTER_DATE": "2026-08-22T12:00:00Z", "PATH": "/usr/bin:/bin"}
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=clone, check=True, env=when)
    found = verl_clone.recorded(clone, "HEAD")
    assert (found["tag"], found["date"], len(found["commit"])) == ("main-2026-08-22", "2026-08-22", 40)
    broken, run = found["scripts"]
    assert (broken["path"], broken["launches"]) == ("examples/broken.sh", [])
    lines = len((verl_clone.installed() / "trainer/config/ppo_trainer.yaml").read_text().splitlines())
    assert [launch["args"] for launch in run["launches"]] == [
        ["device=gpu", "home=/home/user", "root=none", "day=19700101"],
        [f"second={lines}"],
    ]
    assert set(run) == {"path", "sha", "args", "env", "launches"}
    assert not Path("/etc/written").exists()
