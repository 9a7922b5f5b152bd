"""Ctrl-C ends the parity study and everything that it started, in one line."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

STUDY = Path(__file__).parents[2] / "benchmarks" / "parity"
# A run as Ray makes it: a daemon in a session of its own, below it an agent whose environment tells nothing.
RUN = "setsid bash -c 'env -i sleep 600 & echo $$ $! > {pids}; wait' & wait"
DRIVER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import run, toy_runs
pids = sys.argv.pop(1)
toy_runs.make_toy = lambda folder: folder
toy_runs._command = lambda *given: ["bash", "-c", {run!r}.format(pids=pids)]
run.main()
"""


def said_by(study, file):
    """The line that a run of the study writes, once it is there."""
    while not file.exists() or not file.read_text().endswith("\n"):
        assert study.poll() is None, study.communicate()[1]
        time.sleep(0.05)
    return file.read_text()


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    words = [str(STUDY), str(tmp_path / "pids"), "--out", str(tmp_path / "out"), "--study", "grpo"]
    study = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(run=RUN), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    begun = [psutil.Process(int(pid)) for pid in said_by(study, tmp_path / "pids").split()]
    try:
        study.send_signal(signal.SIGINT)
        _, told = study.communicate(timeout=60)
        left = [process for process in begun if process.is_running()]
        assert [p for p in left if p.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        for process in [*begun, psutil.Process(study.pid)] if study.poll() is None else begun:
            if process.is_running():
                process.kill()
    assert study.returncode == 130
    assert told == "stopped; the same command goes on with the runs that are missing\n"
    assert not list((tmp_path / "out").rglob("done.json"))
