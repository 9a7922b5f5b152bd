import os
import subprocess
import sys

import psutil

from trinity_compat.common.parent_watch import SUPERVISOR

SIDE = """
import signal, time
from trinity_compat.common.parent_watch import end_with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as good as a main thread that is in a C call
end_with_parent(0.2)
print("on", flush=True)
time.sleep(120)
"""
COMMAND = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]]).pid, flush=True)
time.sleep(120)
"""


def test_a_side_that_hears_no_signal_ends_with_its_command():
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, SIDE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, SUPERVISOR: "1"},
    )
    lines = sorted(command.stdout.readline().strip() for _ in range(2))
    side = psutil.Process(int(lines[0]))
    assert lines[1] == "on"
    command.kill()
    command.wait()
    _, left = psutil.wait_procs([side], timeout=30)
    assert not left
