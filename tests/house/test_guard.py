"""A pytest that is killed leaves nothing behind (tests/guard.py)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import guard
import pytest
from processes import lives

TEST = """
import os, subprocess, sys, time
from pathlib import Path

def test_something_long():
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleeps, start_new_session=True)
    Path("pids.part").write_text(f"{os.getpid()} {child.pid}")
    os.rename("pids.part", "pids")
    time.sleep(600)
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "with a worker"])
def test_what_a_killed_pytest_started_ends_too(tmp_path, workers):
    (tmp_path / "conftest.py").write_text("from guard import pytest_configure, pytest_unconfigure")
    (tmp_path / "test_long.py").write_text(TEST)
    env = {name: value for name, value in os.environ.items() if name != guard.MARK and "XDIST" not in name}
    env["PYTHONPATH"] = str(Path(guard.__file__).parent)
    command = [sys.executable, "-m", "pytest", *workers, "test_long.py"]
    killed = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    wait_for((tmp_path / "pids").exists)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    wait_for(lambda: not any(lives(pid) for pid in pids))


def wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)
