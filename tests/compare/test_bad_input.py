"""Bad input: exit code 2, one clear message, never a traceback."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path

import pytest

from trinity_compat.cli import main

RECORDED = Path(__file__).parent / "recorded"
GOOD = str(RECORDED / "ours")


def run(capsys, *args):
    """(exit code, what was printed to stderr), through the real entry point."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, args)])
    return ended.value.code, capsys.readouterr().err


def noise(path, size=4000):
    path.write_bytes(random.Random(0).randbytes(size))
    return path


def empty_directory(tmp_path):
    (tmp_path / "nothing").mkdir()
    return tmp_path / "nothing"


def not_a_run(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("print()\n")
    return tmp_path / "src"


def cut_events(tmp_path):
    [file] = (RECORDED / "ours" / "monitor" / "tensorboard" / "trainer").iterdir()
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "events.out.tfevents.1").write_bytes(file.read_bytes()[:30])
    return tmp_path / "tb"


def foreign_events(tmp_path):
    (tmp_path / "tb").mkdir()
    noise(tmp_path / "tb" / "events.out.tfevents.1")
    return tmp_path / "tb"


def other_database(tmp_path):
    with sqlite3.connect(tmp_path / "x.db") as db:
        db.execute("CREATE TABLE t (x)")
    return tmp_path / "x.db"


def fifo(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def empty(name):
    def make(tmp_path):
        (tmp_path / name).touch()
        return tmp_path / name

    return make


def random_bytes(name):
    return lambda tmp_path: noise(tmp_path / name)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda tmp: tmp / "nowhere", "no such file or directory"),
        (empty_directory, "nothing to compare here"),
        (not_a_run, "nothing to compare here"),
        (cut_events, "unfinished record"),
        (foreign_events, "nothing to compare here"),
        (fifo, "neither a file nor a directory"),
        (lambda tmp: "/dev/null", "neither a file nor a directory"),
        (empty("train.log"), "no metric found"),
        (empty("x.csv"), "this CSV has no rows"),
        (empty("x.jsonl"), "no numeric metric"),
        (empty("run-1.wandb"), "nothing to compare here"),
        (random_bytes("x.log"), "no metric found"),
        (random_bytes("x.csv"), "no numeric metric"),
        (random_bytes("x.json"), "no numeric metric"),
        (random_bytes("x.db"), "not an mlflow database"),
        (random_bytes("run-1.wandb"), "not a W&B file"),
        (other_database, "not an mlflow database"),
        (lambda tmp: "mine=", "names no path"),
        (lambda tmp: "", "names no path"),
    ],
)
@pytest.mark.parametrize("place", ["A", "B"])
def test_what_is_no_run_is_named(tmp_path, capsys, make, says, place):
    path = make(tmp_path)
    code, said = run(capsys, *((path, GOOD) if place == "A" else (GOOD, path)))
    assert code == 2
    assert said.startswith("error: ") and says in said
    assert len(said.splitlines()) <= 2, "one line and a hint"
    assert str(path).removesuffix("=") in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([GOOD], "compare needs two sides"),
        ([GOOD, GOOD, "-r", "3"], "--updates-per-step 3 contradicts"),
        ([GOOD, GOOD, "-o", "/nowhere/x.md"], "/nowhere/x.md: cannot write"),
        ([GOOD, GOOD, "--metric", "nope/"], "no metric in common that begins with nope/"),
        ([GOOD, GOOD, "--assert", "nope"], "--assert 'nope'"),
        ([GOOD, GOOD, "--assert", 'max(delta("critic/score/men")) < 1'], "did you mean critic/score/me"),
        ([GOOD, GOOD, "--pair", "x"], "--pair 'x' has no '='"),
        ([f"{GOOD},{GOOD}", GOOD, "--paired"], "--paired needs as many runs on each side"),
        ([str(Path(GOOD).parent), GOOD, "--configs"], "not a job directory"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_printed(capsys, arguments, says):
    with pytest.raises(SystemExit) as ended:
        main(["compare", *arguments])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert says in printed.err
