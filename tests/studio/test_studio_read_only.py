"""A job on a read-only mount is shown, and nothing is written there."""

import sqlite3
import sys
from pathlib import Path

import pytest
from read_only import LEFT, files_of, left, needs_mounts, read_only
from studio_jobs import make_job

from trinity_compat.common.errors import UserError
from trinity_compat.studio.read_only_database import ReadOnlyDatabase


@pytest.fixture(params=LEFT)
def job(tmp_path, request):
    return left(make_job(tmp_path / "a?b #c 100%", evil=False), request.param)


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


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(UserError, match="no buffer at"):
        ReadOnlyDatabase(f"sqlite:///{tmp_path}/buffer/experiences.db", tmp_path)
    assert list(tmp_path.iterdir()) == []
