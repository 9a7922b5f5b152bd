"""Jobs as an ended or a killed run leaves them, and commands that see them on a read-only mount."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MOUNT = """mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@" """
NAMESPACE = ["unshare", "--mount", "--map-root-user"]
CAN_MOUNT = shutil.which("unshare") is not None and (
    subprocess.run(
        [*NAMESPACE, "sh", "-c", MOUNT, "sh", "/tmp", "true"], check=False, stderr=subprocess.DEVNULL
    ).returncode
    == 0
)
needs_mounts = pytest.mark.skipif(not CAN_MOUNT, reason="this kernel lets this user mount nothing")
LEFT = ["ended", "killed", "killed, without -shm"]
KILLED = """import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint=0")
db.execute("UPDATE experiences SET reward = 77.0 WHERE id = 1")
os._exit(9)"""


def left(job: Path, how: str) -> Path:
    """``job`` as a run leaves it that ended, or was killed with the last rows in the WAL alone."""
    file = job / "buffer" / "experiences.db"
    if how == LEFT[0]:
        return job
    subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert Path(f"{file}-wal").stat().st_size
    if how == LEFT[2]:
        Path(f"{file}-shm").unlink()
    return job


def read_only(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [*NAMESPACE, "sh", "-c", MOUNT, "sh", str(folder), *words]
    return subprocess.run(command, text=True, capture_output=True, check=False, env={**os.environ, **env})


def files_of(job: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(job.rglob("*")) if path.is_file()}
