"""A start's phases and a run's failure: on the run's page, in its row of the table."""

import json
import shutil
import sqlite3
import time

import pytest
from studio_jobs import EVIL, SECRET, client_of, make_job

from trinity_compat.buffer.model import Participant
from trinity_compat.run.job_dir.start_record import Phase, RecordedStart, StartEnd
from trinity_compat.studio.starts import as_page, state_of

FAILURE = f"the explorer ended with exit code 1: ValueError: {EVIL} api_key={SECRET}"


def record(root, end=None, *, open_phase=True, name="phases", began=None):
    began = time.time() - 60 if began is None else began
    phases = [Phase("checks", began, began + 9), Phase("Ray", began + 9, began + 13)]
    phases += [Phase("engine", began + 13, None if open_phase else began + 40), Phase("first answers")]
    start = RecordedStart(began, phases, end)
    (root / "log" / f"{name}.json").write_text(start.as_text())


def ended(code=1, failure=FAILURE, log="explorer.log"):
    return StartEnd(code, failure, log, time.time())


def now_of(studio, name="job"):
    events = dict(studio.get(f"/look/{name}?history=1").json()["events"])
    return events["now"]


def silence(root):
    """No heartbeat for an hour."""
    raw = sqlite3.connect(root / "buffer" / "experiences.db")
    raw.execute("UPDATE participants SET beat_at = beat_at - 3600")
    raw.commit()


@pytest.fixture
def root(tmp_path):
    return make_job(tmp_path / "job", state="running", evil=False)


@pytest.fixture
def studio(root):
    return client_of(root.parent)


def test_the_phases_of_a_start_are_shown_with_their_times(root, studio):
    record(root)
    (start,) = now_of(studio)["starts"]
    (name, took, state) = start["phases"][2]
    assert start["phases"][:2] == [["checks", "9 s", "done"], ["Ray", "4 s", "done"]]
    assert (name, state) == ("engine", "now") and took.startswith("for 4") and took.endswith(" s")
    assert start["phases"][3] == ["first answers", "", "later"]
    at_once = [Phase("engine", 5.0, 35.0), Phase("weights", 7.0, 30.0), Phase("first answers", 35.0, 36.0)]
    (start,) = as_page([RecordedStart(1.0, at_once)])
    assert [name for name, _, _ in start["phases"]] == ["engine", "meanwhile weights", "first answers"]
    page = studio.get("/run/job").text
    assert '<li class="now" aria-current="step">engine <b>for 4' in page
    assert '<details id="failure" class="alert" hidden>' in page


def test_sides_of_their_own_have_a_line_each(root, studio):
    record(root, name="phases-train")
    record(root, name="phases-explore-1", began=time.time())
    record(root, name="phases-other")
    assert [start["side"] for start in now_of(studio)["starts"]] == ["explore-1", "train"]


def test_a_failure_is_shown_with_the_last_lines_of_the_log_that_tells_more(root, studio):
    record(root, ended())
    lines = [f"line {number} api_key={SECRET}" for number in range(40)]
    (root / "log" / "explorer.log").write_text("\n".join(lines) + "\n")
    now = now_of(studio)
    assert now["state"] == "failed" and now["failure"]["log"] == "explorer"
    assert now["verdict"][1].partition(": ")[2] == FAILURE.replace(SECRET, "***")
    assert now["failure"]["lines"].splitlines()[-1] == "line 39 api_key=***"
    assert len(now["failure"]["lines"].splitlines()) == 12
    for page in (studio.get("/run/job").text, studio.get("/").text):
        assert "ended with exit code 1: ValueError" in page
        assert SECRET not in page and "<script>window" not in page and "onerror='" not in page


def test_a_failure_that_only_a_side_told_is_shown_too(root, studio):
    raw = sqlite3.connect(root / "buffer" / "experiences.db")
    detail = json.dumps({"reason": "RuntimeError: out of memory"})
    raw.execute("UPDATE participants SET state = 'failed', detail = ? WHERE role = 'trainer'", (detail,))
    raw.execute("UPDATE participants SET state = 'stopped' WHERE role = 'explorer'")
    raw.commit()
    now = now_of(studio)
    assert now["verdict"][1].endswith(": trainer: RuntimeError: out of memory")
    assert now["failure"]["log"] == "trainer"
    assert "RuntimeError: out of memory" in studio.get("/").text


def test_a_run_that_is_gone_says_that_nobody_told_why(root, studio):
    record(root)
    silence(root)
    now = now_of(studio)
    assert now["state"] == "lost" and "none of them said why" in now["verdict"][1]
    shutil.copytree(root, root.parent / "copied")
    copy = client_of(root.parent / "copied")
    assert "This is a copy that was made while the run was at work" in copy.get("/run/copied").text
    assert now["starts"][0]["phases"][1][2] == "done"


@pytest.mark.parametrize("log", ["../config/run.json", "/etc/passwd", "sub/trainer.log", "none.log", ".."])
def test_a_log_that_is_not_one_of_the_job_s_is_not_read(root, studio, log):
    record(root, ended(log=log))
    assert now_of(studio)["failure"]["log"] == "trainer"


def test_a_failure_is_seen_although_nothing_else_of_the_job_has_changed(root, studio):
    silence(root)
    assert "ValueError" not in studio.get("/").text
    record(root, ended())
    assert "ValueError" in studio.get("/").text


@pytest.mark.parametrize("text", ["", "[]", "{" * 50_000, '{"began": 1, "phases": [[]], "end": null}'])
def test_a_record_that_no_launcher_wrote_is_left_out(root, studio, text):
    (root / "log" / "phases.json").write_text(text)
    now = now_of(studio)
    assert now["starts"] == [] and now["state"] == "running"


def test_a_record_that_is_a_link_is_not_followed(root, studio):
    record(root, ended())
    (root / "log" / "phases.json").rename(root.parent / "elsewhere")
    (root / "log" / "phases.json").symlink_to(root.parent / "elsewhere")
    assert now_of(studio)["starts"] == []


def side(role, state, age_s=0.0):
    return Participant(role, role, 1, "here", state, age_s)


def start(began=None, end=None):
    soon = time.time() + 3600  # pytest collects this; the test may run minutes later
    return RecordedStart(0.0, [Phase("checks", soon if began is None else began)], end)


RUNS, GONE = [side("trainer", "running"), side("explorer", "waiting")], [side("trainer", "running", 99.0)]


@pytest.mark.parametrize(
    ("participants", "starts", "state"),
    [
        ([], [], "new"),
        ([], [start()], "starting"),
        ([], [start(began=1.0)], "lost"),
        ([], [start(end=ended())], "failed"),
        ([], [start(end=ended(143, ""))], "stopped"),
        (RUNS, [], "running"),
        (RUNS, [start()], "running"),
        (RUNS, [start(end=ended())], "failed"),  # its heartbeats are young
        (RUNS, [start(end=ended()), start()], "running"),  # another side goes on
        (GONE, [], "lost"),
        (GONE, [start(end=ended(143, ""))], "stopped"),
        (GONE, [start(end=ended(0, ""))], "done"),
        ([side("trainer", "done"), side("explorer", "stopped")], [], "done"),
        ([side("trainer", "stopped"), side("explorer", "done")], [], "stopped"),
        ([side("trainer", "done"), side("explorer", "failed")], [], "failed"),
        ([side("trainer", "failed"), side("explorer", "stopped")], [start(end=ended(143, ""))], "stopped"),
        ([side("trainer", "failed"), side("explorer", "stopped")], [start(end=ended(1))], "failed"),
    ],
)
def test_the_state_of_a_run(participants, starts, state):
    assert state_of(participants, starts) == state


ENDING = [side("trainer", "stopped"), side("explorer", "stopped")]


@pytest.mark.parametrize(
    ("participants", "starts", "state"),
    [
        (RUNS, [start()], "stopping"),
        (RUNS, [start(end=ended(143, "")), start()], "stopping"),
        (ENDING, [start()], "stopping"),  # its launcher is at work
        (ENDING, [start(end=ended(143, ""))], "stopped"),
        (ENDING, [], "stopped"),
        (GONE, [start()], "stopped"),  # the launcher was killed, too
        ([side("trainer", "done"), side("explorer", "done")], [start(end=ended(0, ""))], "done"),
        ([side("trainer", "failed")], [start(end=ended())], "failed"),
    ],
)
def test_the_state_of_a_run_that_was_asked_to_stop(participants, starts, state):
    assert state_of(participants, starts, "step") == state
