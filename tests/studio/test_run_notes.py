"""Tags and notes of runs: kept for this user, whoever the run belongs to, and never lost by a fault."""

import re
import threading

import pytest
from studio_jobs import client_of, make_job

from trinity_compat.common.errors import UserError
from trinity_compat.studio import job_files
from trinity_compat.studio.run_notes import RunNote, RunNotes

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder of the user's own files."""
    monkeypatch.setattr("trinity_compat.studio.run_notes.data_folder", lambda: tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def folder(data, tmp_path):
    for name in ("a", "b"):
        make_job(tmp_path / "jobs" / name, evil=False, steps=1)
    return tmp_path / "jobs"


def give(studio, name, tags, note=""):
    form = {"csrf": studio.app.state.studio.listener.csrf, "tags": tags, "note": note}
    return studio.post(f"/tags/{name}", data=form)


def names(answer):
    assert answer.status_code == 200
    return re.findall(r'name="run" value="([^"]+)"', answer.text)


def test_tags_and_a_note_are_on_both_pages_and_outlive_the_studio(folder):
    answer = give(client_of(folder), "a", "baseline, seed1  seed1", " the first ")
    assert (answer.status_code, answer.headers["location"]) == (303, "/run/a")
    studio = client_of(folder)
    page = studio.get("/?sort=name").text
    assert re.findall(r'class="tag" href="([^"]+)">([^<]+)', page) == [
        ("/?tag=baseline", "baseline"), ("/?tag=seed1", "seed1")
    ]  # fmt: skip
    assert "the first" in page
    run = studio.get("/run/a").text
    assert 'value="baseline seed1"' in run and 'value="the first"' in run


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("tag=good", ["a", "b"]),
        ("tag=seed1", ["a"]),
        ("tag=see", []),
        ("words=SEED1", ["a"]),
        ("words=second+look", ["b"]),
        ("tag=good&words=b", ["b"]),
    ],
)
def test_the_list_is_filtered_by_tags_and_words_of_notes(folder, query, found):
    studio = client_of(folder)
    give(studio, "a", "good seed1")
    give(studio, "b", "good", "needs a second look")
    assert names(studio.get(f"/?sort=name&{query}")) == found


def test_a_row_of_an_open_list_changes_with_its_note(folder):
    studio = client_of(folder)
    page = studio.get("/?sort=name").text
    give(studio, "b", "new")
    has = ",".join(re.findall(r'data-mark="(\w+)"', page))
    (row,) = studio.get(f"/?sort=name&table=1&has={has}").json()["rows"].values()
    assert 'value="b"' in row and ">new<" in row


def test_nothing_is_written_into_a_job_and_the_file_is_the_user_s_alone(folder, data):
    before = sorted(str(path) for path in folder.rglob("*"))
    give(client_of(folder), "a", "x", "y")
    assert sorted(str(path) for path in folder.rglob("*")) == before
    assert {path.name for path in data.iterdir()} == {"run-notes.json", "run-notes.lock"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in data.iterdir())


def test_hostile_tags_and_notes_are_text(folder):
    studio = client_of(folder)
    give(studio, "a", EVIL, EVIL)
    for page in ("/", "/run/a", "/?tag=%3Cimg"):
        assert "<img src=x" not in studio.get(page).text
    assert "&lt;img" in studio.get("/").text


@pytest.mark.parametrize(
    ("tags", "note"), [(" ".join("abcdefghijklm"), ""), ("x" * 41, ""), ("", "x" * 2001)]
)
def test_too_much_is_refused_and_nothing_is_cut(folder, tags, note):
    studio = client_of(folder)
    give(studio, "a", "kept", "kept")
    assert give(studio, "a", tags, note).status_code == 400
    assert 'value="kept"' in studio.get("/run/a").text


def test_nothing_of_both_forgets_the_run(folder, data):
    studio = client_of(folder)
    give(studio, "a", "x")
    give(studio, "a", " , ")
    assert (data / "run-notes.json").read_text() == "{}\n"


def test_a_studio_that_changes_nothing_shows_them_and_has_no_form(folder):
    give(client_of(folder), "a", "x", "seen")
    studio = client_of(folder, read_only=True)
    page = studio.get("/run/a").text
    assert "seen" in page and 'action="/tags/' not in page
    assert give(studio, "a", "y").status_code == 403 and "seen" in studio.get("/").text


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"/a": 1}', '{"/a": {"tags": [1], "note": ""}}', '{"/a": {"tags": [], "note": {}}}']
)
def test_a_file_that_is_damaged_is_named_and_never_written_over(folder, data, text):
    data.mkdir()
    (data / "run-notes.json").write_text(text)
    studio = client_of(folder)
    assert "run-notes.json" in studio.get("/").text
    assert give(studio, "a", "x").status_code == 503
    assert (data / "run-notes.json").read_text() == text


def test_two_studios_that_write_at_once_lose_nothing(data, tmp_path):
    def write(number):
        notes = RunNotes()
        for at in range(10):
            notes.keep(tmp_path / f"{number}-{at}", RunNote((str(number),), "x"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(RunNotes().all()) == 40


def test_a_lock_that_another_studio_makes_at_the_same_moment_is_taken(data, tmp_path, monkeypatch):
    lock, status = data / "run-notes.lock", job_files.status

    def overtaken(path):
        if path == lock and not lock.exists():
            lock.touch(mode=0o644)
            raise FileNotFoundError(path)
        return status(path)

    monkeypatch.setattr(job_files, "status", overtaken)
    RunNotes().keep(tmp_path, RunNote(("x",)))
    assert RunNotes().of(tmp_path).tags == ("x",) and lock.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("trinity_compat.studio.run_notes.data_folder", lambda: tmp_path / "file")
    with pytest.raises(UserError, match="run-notes"):
        RunNotes().keep(tmp_path, RunNote(("x",)))
