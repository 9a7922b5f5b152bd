"""What the user sees of a run, read from a real database."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from trinity_compat.buffer import open_buffer
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.job_dir import status
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.progress import Progress, panel
from trinity_compat.run.job_dir.snapshot import age, now_line, read_snapshot


@pytest.fixture
def spec(tmp_path):
    url = f"sqlite:///{tmp_path}/experiences.db"
    return RunSpec(str(tmp_path), url, {}, updates_per_step=4, total_steps=10, sync=SyncSpec())


@pytest.fixture
def buffer(spec):
    made = open_buffer(spec.database_url)
    made.beat("trainer", "host-12", state="waiting")
    made.beat("explorer", "explorer", state="running")
    made.log_metrics("trainer", 1, {"critic/score/mean": 0.25, "training/model_version_lag/mean": 1.0})
    made.log_metrics("trainer", 2, {"critic/score/mean": 0.5, "perf/tokens_per_second": 1234.0})
    return made


def test_a_line_holds_both_units_the_reward_and_both_sides(spec, buffer):
    line = now_line(read_snapshot(buffer, spec))
    assert "step 2/10 (updates 8/40)" in line
    assert "reward 0.500" in line and "tokens/s 1234" in line
    assert "trainer waiting" in line and "explorer running" in line


def test_the_panel_shows_every_step_s_figures(spec, buffer):
    text = io.StringIO()
    Console(file=text, width=120).print(panel(read_snapshot(buffer, spec)))
    shown = text.getvalue()
    assert "veRL step 2/10" in shown and "Trinity updates 8/40" in shown
    assert "0.250" in shown and "0.500" in shown and "trainer" in shown


def test_plain_output_says_each_step_once_and_states_when_they_change(spec, buffer):
    out = io.StringIO()
    with Progress(spec, lambda: open_buffer(spec.database_url), out=out) as progress:
        progress._next = 0.0
        progress.update()
        progress._next = 0.0
        buffer.beat("trainer", "host-12", state="running")
        progress.update()
        buffer.beat("trainer", "host-12", state="done")
    lines = out.getvalue().splitlines()
    assert sum("step 1/10" in line for line in lines) == 1
    assert sum("trainer done" in line for line in lines) == 1
    assert len(lines) == 4


def test_a_failure_s_reason_is_the_participant_s_own(spec, buffer):
    buffer.beat("trainer", "host-12", state="failed", detail={"reason": "loss is NaN"})
    progress = Progress(spec, lambda: buffer, out=io.StringIO())
    assert progress.reason("trainer", os.getpid()) == "loss is NaN"
    assert progress.reason("explorer", os.getpid()) is None
    assert progress.reason("trainer", 1) is None


def test_an_unreadable_database_does_not_end_the_run(spec):
    def refuse():
        raise OSError("gone")

    out = io.StringIO()
    Progress(spec, refuse, out=out).update()
    assert "cannot be read just now" in out.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(7, "7 s"), (200, "3 min"), (9000, "2 h")])
def test_an_age_is_told_in_its_largest_unit(seconds, text):
    assert age(seconds) == text


def test_a_new_start_forgets_what_an_earlier_one_said_last(spec, buffer):
    buffer.beat("trainer", "host-12", state="failed", detail={"reason": "killed"})
    buffer.forget_participants()
    assert buffer.participants() == []
    buffer.beat("trainer", "host-13", state="running")
    assert [who.name for who in buffer.participants()] == ["host-13"]


def test_a_side_that_a_signal_ended_is_stopped_and_not_missing(spec):
    now = [100.0]
    (Path(spec.job_dir) / "config").mkdir()
    spec.save(Path(spec.job_dir) / "config" / "run.json")
    buffer = open_buffer(spec.database_url, clock=lambda: now[0])
    buffer.beat("trainer", "host-12", state="stopped", detail={"reason": "by a signal"})
    buffer.beat("explorer", "explorer", state="running")
    now[0] += 60
    told = list(status.lines(JobDir(Path(spec.job_dir)), read_snapshot(buffer, spec)))
    (trainer,) = [line for line in told if line.startswith("trainer ")]
    (explorer,) = [line for line in told if line.startswith("explorer ")]
    assert "stopped: by a signal" in trainer and "(gone?)" not in trainer
    assert "(gone?)" in explorer


def test_what_a_side_has_to_tell_is_told_as_it_comes_and_shown_later(spec, buffer):
    (Path(spec.job_dir) / "config").mkdir()
    spec.save(Path(spec.job_dir) / "config" / "run.json")
    note = "engine 0: it died; started again (1 restarts of an engine left)"
    buffer.beat("explorer", "explorer", state="running", detail={"note": note})
    out = io.StringIO()
    with Progress(spec, lambda: open_buffer(spec.database_url), out=out) as progress:
        for _ in range(2):
            progress._next = 0.0
            progress.update()
    assert out.getvalue().count(f"explorer {note}\n") == 1
    job, snapshot = JobDir(Path(spec.job_dir)), read_snapshot(buffer, spec)
    (explorer,) = [line for line in status.lines(job, snapshot) if line.startswith("explorer ")]
    assert explorer.endswith(note)
    assert {one["name"]: one["note"] for one in status.record(job, snapshot)["processes"]} == {
        "explorer": note,
        "trainer": None,
    }


def test_what_is_left_follows_the_latest_steps_pace(spec, buffer):
    assert read_snapshot(buffer, spec).left_s is None
    for step in (3, 4):
        buffer.log_metrics("trainer", step, {"critic/score/mean": 0.5, "timing_s/step": 20.0})
    snapshot = read_snapshot(buffer, spec)
    assert snapshot.left_s == pytest.approx(6 * 20.0)
    text = io.StringIO()
    Console(file=text, width=120).print(panel(snapshot))
    assert "about 2 min left" in text.getvalue()


def test_the_last_validation_stays_on_show_and_step_0_is_no_row(spec, buffer):
    name = "val-core/toy/acc/mean@1"
    buffer.log_metrics("trainer", 0, {name: 0.125, "buffer/ready": 3.0})
    progress = Progress(spec, lambda: buffer, out=io.StringIO())
    progress.update()
    buffer.log_metrics("trainer", 3, {"critic/score/mean": 0.5})
    progress._next = 0.0
    progress.update()
    assert progress.last.validation == {name: 0.125}
    assert [row.step for row in progress.last.rows] == [1, 2, 3]


def test_following_a_job_ends_with_it(spec, buffer):
    Path(spec.job_dir, "config").mkdir()
    spec.save(Path(spec.job_dir, "config", "run.json"))
    job, snapshot = status.read_job(Path(spec.job_dir))
    assert status.is_live(snapshot.participants)
    for role, name in (("trainer", "host-12"), ("explorer", "explorer")):
        buffer.beat(role, name, state="done")
    out = io.StringIO()
    status.follow(job, out=out)
    assert "step 2/10" in out.getvalue()
    assert not status.is_live(status.read_job(Path(spec.job_dir))[1].participants)
