"""The fork server of the scoring processes ends with the process that it serves, whatever it is doing."""

import subprocess
import sys

import psutil

KILLED = """
import os, signal
from trinity_compat.explorer.sandbox.process import warm
warm(["takes_for_ever"])
from multiprocessing import forkserver
print(forkserver._forkserver._forkserver_pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_an_explorer_that_is_killed_while_it_imports(tmp_path):
    (tmp_path / "takes_for_ever.py").write_text("while True: pass\n")
    path = [str(tmp_path), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{KILLED}"], stdout=subprocess.PIPE
    )
    try:
        server = psutil.Process(int(done.stdout))
        server.wait(60)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        server.kill()
        raise


SETTLES = """
import gc, os
from trinity_compat.explorer.sandbox.child_setup import Surroundings, settle

def main(channel, output, cwd):
    before = gc.isenabled()
    settle(output, Surroundings(cwd, None))
    os.write(1, f"{before} {gc.isenabled()} {gc.get_freeze_count() > 1000}".encode())  # in one piece
"""
STARTS = """
import os, settles
from trinity_compat.explorer.sandbox import process
process.warm(["settles"])
child, _, output = process._fork(settles.main, os.getcwd())
print(os.read(output, 100).decode())
"""


def test_a_process_that_it_forks_collects_again_but_not_among_what_was_imported(tmp_path):
    (tmp_path / "settles.py").write_text(SETTLES)
    path = [str(tmp_path), *sys.path]
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{STARTS}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


STOPPED = """
import os, signal, time
from trinity_compat.explorer.sandbox import process
process.warm([])
from multiprocessing import forkserver, get_context
get_context("forkserver").Process(target=time.sleep, args=(600,), daemon=True).start()
os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
"""


def test_a_stopped_one_keeps_no_explorer_from_its_end():
    subprocess.run([sys.executable, "-c", STOPPED], check=True, timeout=120)
