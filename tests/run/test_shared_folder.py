"""Messages between the process of a script and those of its launches."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.script import run_script, shared_folder
from trinity_compat.run.script.shared_folder import ScriptCall

OPTIONS = RunOptions(
    profiles=("small",), sets=("data.seed=1", "trainer.save_freq=2"), mode="train", explorers=2
)
CALL = ScriptCall("run.sh", ("a", "b c"), OPTIONS, "/work", {"HOME": "/root"})


def test_a_launch_reads_the_very_call_of_its_script():
    with shared_folder.folder_of(CALL) as folder:
        assert shared_folder.read_call(folder) == CALL
        assert folder.stat().st_mode & 0o077 == 0  # the environment may hold secrets
    assert not folder.exists()


def test_a_launch_is_known_while_it_runs_and_by_its_end_afterwards(tmp_path):
    end = LaunchEnd(128 + signal.SIGTERM, "/job", "stopped")
    with shared_folder.announced(tmp_path):
        assert shared_folder.running_pids(tmp_path) == [os.getpid()]
        shared_folder.write_end(tmp_path, end)
    assert shared_folder.running_pids(tmp_path) == []
    assert shared_folder.ends_of(tmp_path) == [end]


def test_a_launch_that_raises_is_not_waited_for(tmp_path):
    with pytest.raises(ZeroDivisionError), shared_folder.announced(tmp_path):
        raise ZeroDivisionError
    assert shared_folder.running_pids(tmp_path) == []


def test_a_launch_outlives_the_folder_of_its_script(tmp_path):
    with shared_folder.folder_of(CALL) as folder:
        pass
    shared_folder.write_end(folder, LaunchEnd(0, None))
    assert not folder.exists()


def test_a_launch_that_was_killed_is_told_as_one(tmp_path):
    """It leaves its mark, and no end."""
    process = subprocess.Popen(["sleep", "1000"])
    (tmp_path / f"running-{process.pid}").touch()
    assert shared_folder.killed_launches(tmp_path) == []
    process.kill()
    assert shared_folder.has_ended(process.pid, within_s=60.0)
    (end,) = shared_folder.killed_launches(tmp_path)
    assert end.code == 137 and f"(pid {process.pid}) was killed" in end.message
    process.wait()
    assert shared_folder.killed_launches(tmp_path) == [end]


LAUNCH = """
import pathlib, sys, time
from trinity_compat.run.script.shared_folder import announced
folder = pathlib.Path(sys.argv[1])
while not (folder / sys.argv[2]).exists():
    time.sleep(0.02)
with announced(folder):
    (folder / "trains").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("begins", ["before bash is dead", "afterwards"])
def test_a_signal_reaches_a_launch_that_begins_while_it_is_forwarded(tmp_path, begins, number):
    first = begins == "before bash is dead"
    (tmp_path / "go").touch()
    (tmp_path / "launch.py").write_text(LAUNCH)
    start = f"{sys.executable} {tmp_path}/launch.py {tmp_path} {'go' if first else 'later'} & echo $!\n"
    until = f"until [ -e {tmp_path}/trains ]; do sleep 0.02; done\n" if first else ""
    text = f"{start}{until}kill -{int(number)} $$\nsleep 600"
    with subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, text=True) as bash:
        launch = psutil.Process(int(bash.stdout.readline()))
        assert run_script._wait(bash, tmp_path) == 128 + number
    (tmp_path / "later").touch()
    try:
        launch.wait(60)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            launch.kill()
    assert (tmp_path / "trains").exists() == first
