"""A database on a full disk: the side that writes says so, what was acknowledged before stays."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

WRITER = """
import sys
import numpy as np
from trinity_compat.buffer import BufferFull, open_buffer
from trinity_compat.buffer.model import Experience, Group

buffer = open_buffer(sys.argv[1])
buffer.beat("explorer", "explorer", state="running")
ids = np.zeros(2000, np.int32)


def group(number):
    one = Experience(0, ids, ids, ids.astype(np.uint8), np.zeros(2000, np.float32), 1.0, 0, 0)
    return Group(f"t{number}", number, {"prompt": "x"}, 1, (one,))


done = open(sys.argv[2], "w")
try:
    for number in range(10_000):
        buffer.put_groups([group(number)])
        print(number, file=done, flush=True)
except BufferFull as error:
    sys.exit(f"error: {error}")
"""

SUPERVISOR = """
import os, sys
from pathlib import Path
from trinity_compat.buffer import open_buffer
from trinity_compat.run.supervise.children import ProcessCommand
from trinity_compat.run.supervise.supervisor import StopSignal, Supervision, supervise

work, url = Path(sys.argv[1]), sys.argv[2]


class Watch:
    def update(self): pass
    def reason(self, role, pid): return None
    def heard(self, role, pid): return None


env = dict(os.environ)
def side(role, *words):
    return ProcessCommand(role, role, [sys.executable, *map(str, words)], env, work / f"{role}.log")


writer = side("explorer", work / "writer.py", url, work / "acked")
idle = side("trainer", "-c", "import time; time.sleep(600)")
outcome = supervise([writer, idle], Supervision(Watch(), StopSignal(), grace_s=2))
print(outcome.failure)
os.remove(os.environ["BALLAST"])
stored = len(open_buffer(url).groups("train"))
print(stored, len((work / "acked").read_text().split()))
sys.exit(outcome.code)
"""


def test_it_is_named_and_every_acknowledged_group_is_there(small_disk, tmp_path):
    prefix, small = small_disk
    (tmp_path / "writer.py").write_text(textwrap.dedent(WRITER))
    url = f"sqlite:///{small}/experiences.db"
    done = subprocess.run(
        [*prefix, sys.executable, "-c", SUPERVISOR, str(tmp_path), url],
        env={**os.environ, "BALLAST": str(small / "ballast")},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 1, done.stderr
    failure, counts = done.stdout.splitlines()
    assert "the explorer ended with exit code 1" in failure and "no space left" in failure
    stored, acknowledged = map(int, counts.split())
    assert stored >= acknowledged > 0
