"""The index of runs that were read: what it saves, and that nothing depends on it."""

import json
import os
import sqlite3
import threading
import time
from dataclasses import asdict

import pytest
from studio_jobs import SECRET, client_of, make_job, train_step

from trinity_compat.buffer import open_buffer
from trinity_compat.studio import run_index, run_state, runs_page
from trinity_compat.studio.jobs import Jobs
from trinity_compat.studio.private_files import cache_folder
from trinity_compat.studio.run_index import IndexedRun, RunIndex
from trinity_compat.studio.summaries import Summaries

FIGURES = "/?sort=reward&column=actor.optim.lr&column=reward.api_key"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the index; files need not rest for two seconds."""
    monkeypatch.setattr(run_index, "cache_folder", cache_folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("trinity_compat.studio.summaries._SETTLED_S", -1.0)
    return tmp_path / "cache" / "trinity-compat" / "studio"


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        path = make_job(tmp_path / "jobs" / name) / "config" / "run.json"
        spec = json.loads(path.read_text())
        spec["verl"]["reward"] = {"api_key": SECRET}
        path.write_text(json.dumps(spec))
    return tmp_path / "jobs"


@pytest.fixture
def read(monkeypatch):
    """The names of the jobs that were read."""
    found, summary = [], run_state.summary_of
    monkeypatch.setattr(run_state, "summary_of", lambda job: found.append(job.name) or summary(job))
    return found


def test_a_studio_that_is_started_again_reads_no_run_that_has_not_changed(cache, folder, read):
    first = client_of(folder).get(FIGURES).text
    assert sorted(read) == ["a", "b"]
    read.clear()
    assert (
        client_of(folder).get(FIGURES).text.partition("<form action")[2] == first.partition("<form action")[2]
    )
    assert read == []


def test_a_run_that_has_changed_is_read_again(cache, folder, read):
    client_of(folder).get(FIGURES)
    read.clear()
    buffer = open_buffer(f"sqlite:///{folder}/b/buffer/experiences.db")
    train_step(buffer, 7)
    buffer.close()
    assert ">7<" in client_of(folder).get(FIGURES).text and read == ["b"]


def test_a_file_of_the_same_time_and_size_is_another(cache, folder, read):
    client_of(folder).get(FIGURES)
    read.clear()
    path = folder / "a" / "config" / "run.json"
    text, times = path.read_text(), path.stat()
    path.write_text(text.replace("1e-06", "3e-06"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    assert "3e-06" in client_of(folder).get(FIGURES).text and read == ["a"]


@pytest.mark.parametrize("state", ["running", "lost"])
def test_a_run_that_goes_on_is_not_kept_and_a_lost_one_is(cache, tmp_path, read, state):
    make_job(tmp_path / "jobs" / "job", state="running")
    if state == "lost":
        db = sqlite3.connect(tmp_path / "jobs" / "job" / "buffer" / "experiences.db")
        db.execute("UPDATE participants SET beat_at = beat_at - 1000")
        db.commit()
        db.close()
    client_of(tmp_path / "jobs").get(FIGURES)
    read.clear()
    assert f">{state}<" in client_of(tmp_path / "jobs").get(FIGURES).text
    assert read == (["job"] if state == "running" else [])


def test_files_that_changed_just_now_are_not_kept(cache, folder, read, monkeypatch):
    monkeypatch.setattr("trinity_compat.studio.summaries._SETTLED_S", 3600.0)
    client_of(folder).get(FIGURES)
    read.clear()
    client_of(folder).get(FIGURES)
    assert sorted(read) == ["a", "b"]


def test_the_index_is_the_user_s_alone_and_has_no_secret(cache, folder):
    page = client_of(folder).get(FIGURES).text
    (file,) = cache.glob("runs.db*")
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0
    index = RunIndex(file)
    job = Jobs(folder).get("a")
    found = index.configuration(job.dir.root, json.dumps(job.signature()))
    assert found["reward.api_key"] == "***" and SECRET not in page
    assert not [path for path in folder.rglob("*") if path.name.startswith("runs.db")]


def damaged(path, how):
    if how == "no database":
        path.write_bytes(b"no database" * 1000)
    elif how == "torn":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "a link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
    else:
        with sqlite3.connect(path) as db:
            db.execute(how)
        db.close()


@pytest.mark.parametrize(
    "how",
    [
        "no database",
        "torn",
        "a folder",
        "a link",
        "UPDATE form SET value = 'another release'",
        "DROP TABLE runs",
        "UPDATE runs SET summary = x'00'",
        "UPDATE runs SET summary = substr(summary, 1, 40)",
        "UPDATE runs SET summary = 7, configuration = 'text'",
        "ALTER TABLE runs RENAME COLUMN summary TO other",
    ],
)
def test_an_index_that_is_damaged_changes_nothing(cache, folder, read, how):
    expected = client_of(folder).get(FIGURES).text.partition("<form action")[2]
    damaged(cache / "runs.db", how)
    read.clear()
    assert client_of(folder).get(FIGURES).text.partition("<form action")[2] == expected
    assert sorted(read) == ["a", "b"]
    if how not in ("a folder", "a link"):  # it was thrown away: a new one is there
        read.clear()
        client_of(folder).get(FIGURES)
        assert read == []


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {"state": "done"},
        {"alerts": 7},
        {"step": "x"},
        {"step": 1e999},
        {"spark": [[1]]},
        {"state": "<b>"},
    ],
)
def test_an_entry_of_another_form_is_read_again(cache, folder, read, summary):
    job = Jobs(folder).get("a")
    expected = Summaries().of(job)
    plain = {**asdict(expected), **summary} if summary else {}
    index = RunIndex()
    index.keep([IndexedRun(job.dir.root, json.dumps(job.signature()), plain, {})])
    read.clear()
    assert Summaries(RunIndex()).of(job) == expected
    assert read == ([] if summary == {"state": "done"} else ["a"])


def test_a_large_configuration_is_not_kept(cache, folder, monkeypatch):
    monkeypatch.setattr(run_index, "_LARGEST", 2000)
    job = Jobs(folder).get("a")
    stamp = json.dumps(job.signature())
    index = RunIndex()
    index.keep([IndexedRun(job.dir.root, stamp, {"a": 1}, {"key": "x" * 3000})])
    assert index.summary(job.dir.root, stamp) == {"a": 1} and index.configuration(job.dir.root, stamp) is None


def test_the_runs_read_longest_ago_are_dropped(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "_MOST", 2)
    index = RunIndex()
    for name in "abc":
        index.keep([IndexedRun(tmp_path / name, "s", {"of": name}, None)])
    assert [index.summary(tmp_path / name, "s") for name in "abc"] == [None, {"of": "b"}, {"of": "c"}]


def test_where_no_index_can_be_written_the_page_is_the_same(cache, folder, monkeypatch):
    expected = client_of(folder).get(FIGURES).text.partition("<form action")[2]
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    assert client_of(folder).get(FIGURES).text.partition("<form action")[2] == expected


def test_runs_for_which_a_request_has_no_time_are_read_beside_it(cache, folder, monkeypatch):
    monkeypatch.setattr(runs_page, "_READING_S", 0.0)
    begun, summary = threading.Event(), run_state.summary_of
    monkeypatch.setattr(run_state, "summary_of", lambda job: begun.wait(300) and summary(job))
    studio = client_of(folder)
    page = studio.get("/?state=done")
    assert "2 runs are still being read" in page.text and 'name="run"' not in page.text
    assert "No run matches" not in page.text
    begun.set()
    while "still being read" in (page := studio.get("/?state=done")).text:
        time.sleep(0.05)
    assert page.text.count('name="run"') == 2
