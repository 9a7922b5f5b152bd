"""A job on a read-only mount is shown, and nothing is written there."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from studio_jobs import make_job

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


@pytest.fixture(params=LEFT)
def job(tmp_path, request):
    """As a run leaves it: ended, or killed, with the last rows in the WAL alone."""
    made = make_job(tmp_path / "a?b #c 100%", evil=False)
    file = made / "buffer" / "experiences.db"
    if request.param == LEFT[0]:
        return made
    code = """import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint=0")
db.execute("UPDATE experiences SET reward = 77.0 WHERE id = 1")
os._exit(9)"""
    subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    assert Path(f"{file}-wal").stat().st_size
    if request.param == LEFT[2]:
        Path(f"{file}-shm").unlink()
    return made


def read_only(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [*NAMESPACE, "sh", "-c", MOUNT, "sh", str(folder), *words]
    return subprocess.run(command, text=True, capture_output=True, check=False, env={**os.environ, **env})


def files_of(job: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(job.rglob("*")) if path.is_file()}


@needs_mounts
def test_the_studio_shows_it_and_keeps_its_index_in_the_user_s_cache(job, tmp_path):
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from urllib.parse import quote
from studio_jobs import client_of
name = quote(Path(sys.argv[1]).name)
studio = client_of(Path(sys.argv[1]))
for page in ("run", "experiences"):
    print(page, studio.get(f"/{page}/{name}").status_code)
"""
    killed = (job / "buffer" / "experiences.db-wal").exists()
    before, cache = files_of(job), tmp_path / "cache"
    here = str(Path(__file__).parent)
    shown = read_only(job, sys.executable, "-c", code, str(job), here, XDG_CACHE_HOME=str(cache))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.split("\n")[:2] == ["run 200", "experiences 200"]
    found = list((cache / "trinity-compat" / "studio").glob("*.db"))
    assert len(found) == 1
    with sqlite3.connect(found[0]) as db:
        assert (db.execute("SELECT max(reward) FROM rows").fetchone()[0] == 77.0) == killed
    assert files_of(job) == before
