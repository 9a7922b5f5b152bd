"""A job on a read-only mount: `status` and `buffer` show all that was committed, and write nothing there."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from buffer_samples import groups

from trinity_compat.buffer import open_buffer
from trinity_compat.runtime.job.jobdir import JobDir
from trinity_compat.spec import RunSpec, SyncSpec

MOUNT = """mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@" """
NAMESPACE = ["unshare", "--mount", "--map-root-user"]
CAN_MOUNT = shutil.which("unshare") is not None and (
    subprocess.run(
        [*NAMESPACE, "sh", "-c", MOUNT, "sh", "/tmp", "true"], check=False, stderr=subprocess.DEVNULL
    ).returncode
    == 0
)
needs_mounts = pytest.mark.skipif(not CAN_MOUNT, reason="this kernel lets this user mount nothing")
COMMAND = [sys.executable, "-m", "trinity_compat"]
LEFT = ["ended", "killed", "killed, without -shm"]


@pytest.fixture(params=LEFT)
def job(tmp_path, request):
    """As a run leaves it: ended, or killed, with the last rows in the WAL alone."""
    made = JobDir(tmp_path / "a?b %41#c")
    made.create()
    spec = RunSpec(
        str(made.root), made.default_database_url, {}, updates_per_step=1, total_steps=2, sync=SyncSpec()
    )
    spec.save(made.spec_path)
    buffer = open_buffer(spec.database_url)
    buffer.put_groups(groups(8))
    buffer.close()
    file = made.root / "buffer" / "experiences.db"
    if request.param == LEFT[0]:
        return made.root
    code = """import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint=0")
db.execute("UPDATE experiences SET reward = 77.0 WHERE id = 1")
os._exit(9)"""
    subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    assert Path(f"{file}-wal").stat().st_size
    if request.param == LEFT[2]:
        Path(f"{file}-shm").unlink()
    return made.root


def reward_of_the_first(job: Path) -> float:
    """In a copy: SQLite, as everybody opens it."""
    copy = job.with_name("copy")
    shutil.copytree(job / "buffer", copy)
    with sqlite3.connect(copy / "experiences.db") as db:
        return db.execute("SELECT reward FROM experiences WHERE id = 1").fetchone()[0]


def read_only(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [*NAMESPACE, "sh", "-c", MOUNT, "sh", str(folder), *words]
    return subprocess.run(command, text=True, capture_output=True, check=False, env={**os.environ, **env})


def files_of(job: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(job.rglob("*")) if path.is_file()}


@needs_mounts
def test_status_and_buffer_show_all_that_was_committed(job):
    before, reward = files_of(job), reward_of_the_first(job)
    status = read_only(job, *COMMAND, "status", str(job))
    assert status.returncode == 0, status.stderr
    assert "8 ready" in status.stdout
    stats = read_only(job, *COMMAND, "buffer", "stats", str(job))
    assert "schema" in stats.stdout, stats.stderr
    exported = read_only(job, *COMMAND, "buffer", "export", str(job))
    assert f'"reward": {reward}' in exported.stdout.splitlines()[0], exported.stderr
    pruned = read_only(job, *COMMAND, "buffer", "prune", str(job), "--keep-steps", "0")
    assert (pruned.returncode, "cannot be written" in pruned.stderr) == (2, True)
    assert files_of(job) == before
