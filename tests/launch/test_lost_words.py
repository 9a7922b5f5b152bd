"""Words that do not reach the launch, or reach it as one: behind a pipe, and lines that are joined."""

import pytest
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.launch import read_text

MAIN = "python3 -m verl.trainer.main_ppo"
LOST = [
    (f"{MAIN} a.b=1 2>&1 | tee train.log \\\n  trainer.x=disable trainer.y=3\n", 2, "tee"),
    (f"{MAIN} a.b=1 | tee -a log +trainer.x=1\n", 1, "tee"),
    (f"{MAIN} a.b=1 | tee log ~critic.optim\n", 1, "tee"),
    (f"{MAIN} a.b=1 |& tee log \\\n  --config-name=x\n", 2, "tee"),
    (f"nohup {MAIN} a.b=1 | ts | tee log data.x=1 &\n", 1, "tee"),
    (f"ray job submit -- {MAIN} a.b=1 | tee log data.x=1\n", 1, "tee"),
    (f"log() {{ tee $1; }}\n{MAIN} a.b=1 | log out trainer.x=1\n", 2, "log"),
    (f"OPTS=(data.x=1)\n{MAIN} a.b=1 | tee log ${{OPTS[@]}}\n", 1, "tee"),
    (f"{MAIN} a.b=1 && echo done | tee log trainer.x=1\n", 1, "tee"),
    (f"{MAIN} a.b=1 & wait \\\n  trainer.x=1\n", 2, "wait"),
    (f"{MAIN} a.b=1 | grep -v x \\\n  data.x=1\n", 2, "grep"),
    (f"{MAIN} a.b=1 | awk '{{print}}' data.x=1\n", 1, "awk"),
    (f"if true; then\n  {MAIN} a.b=1 | tee log \\\n    data.x=1\nfi\n", 3, "tee"),
]


@pytest.mark.parametrize(("script", "line", "program"), LOST)
def test_an_override_behind_the_pipe_of_a_launch_is_named(script, line, program):
    reading = read_text(script, name="run.sh")
    (note,) = [found for found in reading.diagnostics if found.code == "TP004"]
    assert (note.where.line, program in note.message, note.loses) == (line, True, True)
    assert [word.text for word in reading.launches[0].arguments] == ["a.b=1"]


@pytest.mark.parametrize(
    "script",
    [
        f"{MAIN} a.b=1 2>&1 | tee a/b.log | grep -v 'x.y='\n",
        f"{MAIN} a.b=1 | sed 's/a.b=1/a.b=2/'\n",
        f"{MAIN} a.b=1 | grep -v a.b=1\n",
        f"{MAIN} a.b=1 | tee ~nobody/train.log\n",
        f"echo x | {MAIN} a.b=1\n",
        "python3 other.py | tee log trainer.x=1\n",
        f"{MAIN} a.b=1 > log 2>&1 trainer.x=1\n",
        f"{MAIN} a.b=1\necho trainer.x=1\npython3 eval.py trainer.x=1\n",
        f"{MAIN} a.b=1 | while read line; do echo a.b=$line; done\n",
    ],
)
def test_other_words_of_a_pipe_are_not(script):
    assert not [found for found in read_text(script).diagnostics if found.code == "TP004"]


@pytest.mark.parametrize("words", ['"$@"', "$@", "$1", '"${@:2}"'])
def test_an_argument_of_the_script_that_goes_into_the_pipe_is_refused(words, tmp_path):
    args = ["train.log", "trainer.x=1"] if "2" in words else ["trainer.x=1"]
    reading = read_text(f"{MAIN} a.b=1 | tee log {words}\n", args=args)
    (lost,) = [found for found in reading.diagnostics if found.code == "TP118"]
    assert "trainer.x=1" in lost.message and "train.log" not in lost.message
    log_alone = read_text(f'{MAIN} a.b=1 "${{@:2}}" | tee $1\n', args=["train.log", "trainer.x=1"])
    assert not [found for found in log_alone.diagnostics if found.code == "TP118"]


JOINED = [
    (f"{MAIN} a.b=1 \\\n  trainer.x=15\\\n2>&1 | tee log\n", 2, "trainer.x=152"),
    (f"{MAIN} a.b=1 \\\n  trainer.x=/ck\\\ntrainer.y=10\n", 2, "trainer.x=/cktrainer.y=10"),
    (f"{MAIN} a.b=1\\\n+trainer.y=10\n", 1, "a.b=1+trainer.y=10"),
    (f"{MAIN} a.b=1 trainer.x='c'\\\ntrainer.y=10\n", 1, "trainer.x='c'trainer.y=10"),
    (f'{MAIN} a.b=1 trainer.x=1\\\n"$@"\n', 1, 'trainer.x=1"$@"'),
    (f"{MAIN} a.b=1 trainer.x=1\\\n${{MORE}}\n", 1, "trainer.x=1${MORE}"),
    (f"A=(a.b=1\\\n  c.d=2 e.f=3\\\ng.h=4)\n{MAIN} ${{A[@]}}\n", 2, "e.f=3g.h=4"),
    (f"{MAIN}\\\ntrainer.y=10\n", 1, "verl.trainer.main_ppotrainer.y=10"),
    (f"{MAIN} a.b=1 trainer.x=1\\\n$MORE\n", 1, "trainer.x=1$MORE"),
    (f"{MAIN} a.b=1 trainer.x=1\\\n~trainer.y\n", 1, "trainer.x=1~trainer.y"),
    (f"{MAIN} a.b=1 trainer.x=1\\\n# trainer.y=2\n", 1, "trainer.x=1#"),
    ("python3\\\n-m verl.trainer.main_ppo a.b=1\n", 1, "python3-m"),
]


@pytest.mark.parametrize(("script", "line", "word"), JOINED)
def test_lines_that_a_missing_blank_joins_are_named(script, line, word):
    (note,) = [found for found in read_text(script, name="run.sh").diagnostics if found.code == "TP007"]
    assert (note.where.line, note.loses) == (line, True)
    assert note.message.endswith(f"one word, {word}")


@pytest.mark.parametrize(
    "script",
    [
        f"{MAIN} a.b=1 \\\ntrainer.y=10\n",
        f"{MAIN} a.b=1\\\n  trainer.y=10\n",
        f"{MAIN} 'a.b=1\\\ntrainer.y=10'\n",
        f"{MAIN} data.train_files=/very/long/\\\nfolder/a.parquet\n",
        f"{MAIN} data.train_files=/very/long/\\\n$NAME\n",
        f"{MAIN} a.b=1\\\n2>&1\n".replace("2>&1", "> log"),
        f"{MAIN} a.b=1\\\n| tee log\n",
        f"{MAIN} a.b=[1,\\\n2]\n",
    ],
)
def test_lines_that_are_joined_on_purpose_are_not(script):
    assert not [found for found in read_text(script).diagnostics if found.code == "TP007"]


WHOLE = (
    f"{MAIN} data.train_files=a.parquet data.val_files=b.parquet actor_rollout_ref.model.path=x/y"
    " actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=8"
    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 algorithm.adv_estimator=grpo"
    " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1"
)


@pytest.mark.parametrize(
    ("more", "code"),
    [("", 0), (" | tee log trainer.total_epochs=3", 1), (" trainer.total_epochs=1\\\n2>&1 | tee log", 1)],
)
@pytest.mark.parametrize("command", ["translate", "audit"])
def test_exit_codes_see_them(command, more, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"{WHOLE}{more}\n")
    given = [command, "run.sh", "--fail-on", "decide"]
    result = CliRunner().invoke(cli, given, standalone_mode=False, catch_exceptions=False)
    assert result.return_value == code, result.output
