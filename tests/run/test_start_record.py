"""A start's phases with their times, its end, and what its launcher printed, in the job's log folder."""

import json

import pytest

from trinity_compat.buffer.model import Participant
from trinity_compat.job.run_spec import RowsSpec, RunSpec, SyncSpec
from trinity_compat.run.job_dir import start_record
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.progress import say
from trinity_compat.run.job_dir.snapshot import Snapshot
from trinity_compat.run.job_dir.start_record import ENGINE, RAY, WEIGHTS, RecordedStart, StartRecorder


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def job(tmp_path):
    (tmp_path / "log").mkdir()
    return JobDir(tmp_path)


def spec(job, **given):
    return RunSpec(str(job.root), "sqlite://", {}, 1, 4, SyncSpec(), **given)


def snapshot(explorer="", trainer="", *, version=None, quiet_s=None):
    states = (("explorer", explorer), ("trainer", trainer))
    sides = [Participant(role, role, 1, "here", state, 0.0) for role, state in states if state]
    return Snapshot(4, 1, [], {}, sides, version, 1, quiet_s=quiet_s)


def seconds(job, name="phases"):
    """Phase → its seconds; None where it has not ended."""
    record = json.loads((job.root / "log" / f"{name}.json").read_text())
    return {p["name"]: p["ended"] and p["ended"] - p["began"] for p in record["phases"]}


def test_each_phase_has_its_time(job, clock):
    start = StartRecorder(job, spec(job), clock=clock)
    clock.now += 9
    with start.hold():
        clock.now += 4
        start.next(RAY, ENGINE, WEIGHTS)
        looks = [
            (5, snapshot(quiet_s=100.0, version=3)),  # an earlier start's group and version
            (6, snapshot("starting", "starting", quiet_s=106.0, version=3)),
            (10, snapshot("starting", "waiting", quiet_s=116.0, version=4)),
            (20, snapshot("running", "waiting", quiet_s=136.0, version=4)),
            (7, snapshot("running", "waiting", quiet_s=2.0, version=4)),
            (1, snapshot("waiting", "running", quiet_s=0.5, version=4)),
        ]
        for after, seen in looks:
            clock.now += after
            start.look(seen)
    expected = {"checks": 9, "Ray": 4, "engine": 41, "weights": 21, "first answers": 5}
    assert seconds(job) == expected
    (found,) = start_record.read(job)
    text = "checks 9 s, Ray 4 s, engine 41 s, weights 21 s, first answers 5 s"
    assert start_record.line(found, clock.now, live=True) == text


def test_a_start_on_its_way_says_what_it_waits_for(job, clock):
    start = StartRecorder(job, spec(job), clock=clock)
    with start.hold():
        clock.now += 3
        start.next(RAY, ENGINE, WEIGHTS)
        start.look(snapshot("starting", "starting"))
    (found,) = start_record.read(job)
    clock.now += 8
    assert (
        start_record.line(found, clock.now, live=True)
        == "checks 0 s, Ray 3 s, engine for 8 s, weights for 8 s"
    )
    assert "engine not reached" in start_record.line(found, clock.now, live=False)


ROWS = RowsSpec("sft", ("a",))


@pytest.mark.parametrize(
    ("given", "names", "file"),
    [
        ({"mode": "train"}, ["checks", "Ray", "weights", "first answers"], "phases-train"),
        ({"mode": "explore"}, ["checks", "Ray", "engine", "weights", "first answers"], "phases-explore-2"),
        ({"rows": ROWS}, ["checks", "Ray", "weights"], "phases"),
    ],
)
def test_a_start_has_the_phases_of_its_sides(job, clock, given, names, file):
    start = StartRecorder(job, spec(job, **given), 2 if file.endswith("2") else None, clock)
    with start.hold():
        start.next(RAY, ENGINE, WEIGHTS)
        start.look(
            snapshot(*(("", "running") if given.get("mode") != "explore" else ("running", "")), version=1)
        )
    found = seconds(job, file)
    assert list(found) == names and found["weights"] == 0
    assert start_record.read(job)[0].side == file.removeprefix("phases").lstrip("-")


def test_what_the_launcher_says_is_kept_without_secrets(job, clock):
    (job.root / "log" / "launcher.log").write_text("of an earlier start\n")
    with StartRecorder(job, spec(job), clock=clock).recording() as start:
        say("checking …")
        assert "checking" not in (job.root / "log" / "launcher.log").read_text()  # the job may be another's
        with start.hold():
            say("two\nlines of api_key=sk-12345")
            start.finish(1, "the trainer ended: api_key=sk-12345", str(job.root / "log" / "trainer.log"))
    say("later")
    lines = (job.root / "log" / "launcher.log").read_text().splitlines()
    assert lines[0] == "of an earlier start" and lines[1].startswith("--- start of 19")
    assert lines[2:] == ["checking …", "two", "lines of api_key=***", "error: the trainer ended: api_key=***"]
    (found,) = start_record.read(job)
    assert (found.end.failure, found.end.log) == ("the trainer ended: api_key=***", "trainer.log")


def test_a_start_that_never_held_the_job_leaves_nothing(job, clock):
    start = StartRecorder(job, spec(job), clock=clock)
    start.finish(2, "no such file")
    assert list((job.root / "log").iterdir()) == []


def test_an_error_of_the_launcher_is_the_end(job, clock):
    start = StartRecorder(job, spec(job), clock=clock)
    with pytest.raises(RuntimeError), start.hold():
        raise RuntimeError("no space left")
    assert start_record.read(job)[0].end.failure == "no space left"


def test_a_record_that_cannot_be_written_ends_no_run(job, clock):
    (job.root / "log").rmdir()
    start = StartRecorder(job, spec(job), clock=clock)
    with start.recording(), start.hold():
        say("on its way")
        start.next(RAY, ENGINE, WEIGHTS)


BROKEN = [
    *("", "[]", "{}", "[" * 100_000, '{"began": "x", "phases": [], "end": null}'),
    *('{"began": null, "phases": [], "end": null}', '{"began": 1e999, "phases": [], "end": null}'),
    '{"began": 1, "phases": [{"name": 3, "began": 1, "ended": 2}], "end": null}',
    '{"began": 1, "phases": [], "end": {"code": "0", "failure": "", "log": "", "at": 1}}',
    '{"began": 1, "phases": [], "end": {"code": 0, "failure": ["x"], "log": "", "at": 1}}',
]


@pytest.mark.parametrize("text", BROKEN)
def test_what_no_launcher_wrote_is_left_out(job, text):
    with pytest.raises(ValueError):
        RecordedStart.of_text(text)
    (job.root / "log" / "phases.json").write_text(text)
    assert start_record.read(job) == []
