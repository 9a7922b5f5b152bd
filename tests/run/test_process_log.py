"""The log of a run's process: one line a diagnostic, on stdout, apart from other libraries' loggers."""

import subprocess
import sys

PROGRAM = """
import logging
from trinity_compat.common import process_log
logging.basicConfig(format="root: %(message)s")
process_log.configure()
log = logging.getLogger("trinity_compat.trainer.exchange")
log.debug("hidden")
log.info("history 2 continues")
log.warning("no space left")
logging.getLogger("verl").warning("of another library")
"""


def test_a_process_writes_its_diagnostics_to_stdout_once():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    assert [text for _, _, text in lines] == [
        "[trinity] history 2 continues",
        "[trinity] warning: no space left",
    ]
    assert all(len(time.split(":")) == 3 for time, _, _ in lines)
    assert done.stderr == "root: of another library\n"
