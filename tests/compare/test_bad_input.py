"""Bad input: exit code 2, one clear message, never a traceback."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
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


@pytest.mark.parametrize(
    "text",
    [
        "{'actor_rollout_ref': [" + "1," * 4_000_000 + "]}\n",
        "{'actor_rollout_ref': [\n" + "1,\n" * 2_000_000 + "]}\n",
        "{'actor_rollout_ref': {\n" + " [1],}\n" * 1_000_000,
        "x\n" * 4_000_000,
        "x" * 8_000_000 + "\n",
    ],
    ids=["one line", "lines", "ends", "others", "one long line"],
)
def test_a_log_takes_no_more_memory_than_a_few_times_its_size(tmp_path, text):
    log = tmp_path / "verl.log"
    log.write_text(text + "step:1 - critic/score/mean:0.5\n")
    ended = subprocess.run(
        [sys.executable, "-c", READS, str(log)], capture_output=True, text=True, check=True, timeout=300
    )
    series, held = ended.stdout.split()
    assert series == "1" and int(held) < 200 << 20


READS = """
import resource, sys
from pathlib import Path
from trinity_compat.compare.sources import read_runs
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
(run,) = read_runs(Path(sys.argv[1]))
print(len(run.series), int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10)
"""


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW metrics AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
        " SELECT 'r' AS run_uuid, 'k' AS key, x AS step, 1.0 AS value, 1 AS timestamp, 0 AS is_nan FROM n",
        "CREATE TABLE metrics (run_uuid, key AS (hex(zeroblob(400000000))), step, value, timestamp, is_nan)",
        "CREATE TABLE metrics (run_uuid, key, step)",
    ],
)
def test_an_mlflow_database_that_computes_is_refused(tmp_path, capsys, statement):
    with sqlite3.connect(tmp_path / "mlflow.db") as db:
        db.execute("CREATE TABLE runs (run_uuid, name, start_time)")
        db.execute("INSERT INTO runs VALUES ('r', 'a', 1)")
        db.execute(statement)
    code, said = run(capsys, f"a={tmp_path / 'mlflow.db'}", f"b={GOOD}")
    assert code == 2 and "mlflow.db" in said and "metrics" in said
