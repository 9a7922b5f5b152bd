"""Links, pipes and devices in a job lead nowhere; a link of the user's own to a job is that job."""

import os
import shutil
import socket
import sqlite3
from pathlib import Path

import pytest
from studio_jobs import client_of, make_job

from trinity_compat.common.errors import UserError
from trinity_compat.studio import job_files, live, logs
from trinity_compat.studio.jobs import Jobs

VICTIM = "the-content-of-another-file"
PAGES = [
    "/",
    "/run/job",
    "/metrics/job?name=critic/score/mean",
    "/seconds/job",
    "/configuration/job",
    "/experiences/job",
    "/groups/job",
    "/group/job?id=1",
    "/tokens/job?id=1&from=0",
    "/selection/job",
    "/compare?a=job&b=other",
    "/report?a=job&b=other",
    "/stop/job",
    "/resume/job",
]
PLACES = [
    "config",
    "config/run.json",
    "config/launch.json",
    "config/audit.json",
    "config/trinity.yaml",
    "buffer",
    "buffer/experiences.db",
    "buffer/experiences.db-wal",
    "buffer/experiences.db-shm",
    "log",
    "log/trainer.log",
    "monitor",
    "monitor/tensorboard/trainer",
    "latest_checkpointed_iteration.txt",
    "studio.db",
    "studio.db-wal",
]


@pytest.fixture
def root(tmp_path):
    make_job(tmp_path / "jobs" / "other", wobble=0.1)
    return make_job(tmp_path / "jobs" / "job", state="stopped")


def replaced(place, make):
    """What lies at ``place`` moves out of the job, and ``make`` puts something in its place."""
    gone = place.parents[2] / f"moved-{place.name}"
    if place.is_dir():
        shutil.copytree(place, gone)
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
        gone.write_text(f"{VICTIM}\n" * 5)
    make(place, gone)
    return gone


def asked(folder):
    """Each page's answer, and what an open page is told of the logs."""
    studio = client_of(folder)
    found = [studio.get(page) for page in PAGES]
    job = studio.app.state.studio.jobs.get("job")
    if job is not None:
        watch = live.PageState(job, studio.app.state.studio.store, 1, {})
        assert VICTIM not in str(watch.look())
        assert VICTIM not in str(logs.follow(job.dir, {}))
    return found


@pytest.mark.parametrize("place", PLACES)
def test_a_link_in_a_job_shows_nothing_of_where_it_leads(tmp_path, root, place):
    gone = replaced(root / place, lambda link, target: link.symlink_to(target))
    before = snapshot(gone)
    for answer in asked(root.parent):
        assert VICTIM not in answer.text and answer.status_code in (200, 404, 503)
    assert snapshot(gone) == before


def snapshot(place):
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("place", ["config/launch.json", "log/trainer.log", "buffer", "config"])
def test_a_link_is_named(root, place):
    replaced(root / place, lambda link, target: link.symlink_to(target))
    studio = client_of(root.parent)
    page = "/resume/job" if place == "config/launch.json" else "/run/job"
    if place == "log/trainer.log":  # the other logs are shown
        assert list(logs.follow(studio.app.state.studio.jobs.get("job").dir, {})) == ["explorer"]
    else:
        assert "link" in studio.get(page).text


@pytest.mark.parametrize("place", [place for place in PLACES if "." in place])
def test_a_pipe_makes_nobody_wait(root, place):
    replaced(root / place, lambda pipe, _: os.mkfifo(pipe))
    for answer in asked(root.parent):
        assert answer.status_code in (200, 404, 503)


@pytest.mark.parametrize("place", ["config/launch.json", "log/trainer.log"])
def test_a_socket_is_no_file(root, place, monkeypatch):
    def bind(path, _):
        monkeypatch.chdir(path.parent)  # a socket's name is at most 107 bytes long
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)

    replaced(root / place, bind)
    for answer in asked(root.parent):
        assert answer.status_code in (200, 404, 503)


def test_an_endless_device_is_not_read(tmp_path):
    with pytest.raises(OSError, match="is not a regular file"):
        job_files.text(Path("/dev/zero"))
    with pytest.raises(OSError, match="is not a regular file"):
        job_files.text(tmp_path)


def test_a_text_is_read_up_to_a_size(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="is larger than"):
        job_files.text(tmp_path / "large")


def test_a_folder_that_a_link_replaces_meanwhile_is_not_followed(tmp_path, root):
    job = Jobs(root.parent).get("job")
    assert job.spec.job_dir == str(root)
    root.parent.rename(tmp_path / "elsewhere")
    root.parent.symlink_to(tmp_path / "elsewhere")
    assert job.latest_checkpoint is None and logs.names(job.dir) == []
    with pytest.raises(OSError, match="is a link"):
        job_files.text(root / "config" / "launch.json")


def test_a_database_that_a_link_replaces_just_before_it_is_opened_is_not_read(tmp_path, root, monkeypatch):
    job = Jobs(root.parent).get("job")
    database = job.database()
    (root / "buffer").rename(tmp_path / "elsewhere")
    (root / "buffer").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(database, "_look_at_file", lambda: None)
    with pytest.raises(UserError, match="is reached by a link"):
        database.run(lambda conn: None, write=False)


def test_another_s_database_gets_no_tables(tmp_path, root):
    victim = tmp_path / "cookies.db"
    with sqlite3.connect(victim) as db:
        db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, secret TEXT)")
    (root / "studio.db").symlink_to(victim)
    before = victim.read_bytes()
    assert "link" in client_of(root.parent).get("/experiences/job").text
    assert victim.read_bytes() == before


def test_notes_and_the_index_are_for_their_user_alone(root):
    (root / "studio.db").touch(mode=0o644)
    assert client_of(root.parent).get("/experiences/job").status_code == 200
    for path in root.glob("studio.db*"):
        assert path.stat().st_mode & 0o077 == 0


def test_nothing_is_written_into_a_job_that_others_may_write(tmp_path, root, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root.chmod(0o777)
    assert client_of(root.parent).get("/experiences/job").status_code == 200
    assert not (root / "studio.db").exists() and list((tmp_path / "cache").rglob("*.db"))


def test_a_model_that_this_user_cannot_look_for_leaves_the_answers_plain(tmp_path):
    make_job(tmp_path / "job", model=Path("/" + "x" * 5000))
    answer = client_of(tmp_path).get("/group/job?id=1")
    assert answer.status_code == 200 and "answer1x0x0" in answer.text


# -- which folders are jobs


def names(folder):
    return list(Jobs(folder).all())


def test_a_run_s_link_to_its_job_is_not_listed_twice(tmp_path):
    job = make_job(tmp_path / "work" / "mine")
    (tmp_path / "work" / "checkpoints" / "P").mkdir(parents=True)
    (tmp_path / "work" / "checkpoints" / "P" / "N").symlink_to(job)
    assert names(tmp_path / "work") == ["mine"]


def test_a_run_s_link_to_a_job_elsewhere_is_the_job(tmp_path):
    job = make_job(tmp_path / "elsewhere" / "mine")
    (tmp_path / "work" / "checkpoints" / "P").mkdir(parents=True)
    for name in ("N", "M"):
        (tmp_path / "work" / "checkpoints" / "P" / name).symlink_to(job)
    assert names(tmp_path / "work") == ["checkpoints/P/M"]
    studio = client_of(tmp_path / "work")
    for page in ("run", "configuration", "experiences", "resume"):
        assert studio.get(f"/{page}/checkpoints/P/M").status_code == 200
    assert Jobs(tmp_path / "work").get("checkpoints/P/M").dir.root == job


def test_a_studio_over_a_link_shows_the_jobs_there(tmp_path):
    make_job(tmp_path / "real" / "job")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert names(tmp_path / "link") == ["job"] and names(tmp_path / "link" / "job") == ["job"]
    assert client_of(tmp_path / "link").get("/run/job").status_code == 200


def test_a_link_to_a_folder_of_jobs_or_to_nothing_is_passed_by(tmp_path, root):
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "jobs").symlink_to(root.parent)
    (tmp_path / "shown" / "nothing").symlink_to(tmp_path / "nothing")
    (tmp_path / "shown" / "round").symlink_to(tmp_path / "shown" / "round")
    assert names(tmp_path / "shown") == []


def test_a_name_that_is_not_utf_8_can_be_shown(tmp_path):
    make_job(tmp_path / "job").rename(tmp_path / os.fsdecode(b"odd-\xff"))
    studio = client_of(tmp_path)
    assert "odd-\\xff" in studio.get("/").text
    assert studio.get("/run/odd-%5Cxff").status_code == 200
