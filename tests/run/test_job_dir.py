"""The job directory: who holds it, what becomes of an earlier one."""

import contextlib
import fcntl
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run import acquire_job
from trinity_compat.run.job_dir.job_dir import JobDir, locked, set_aside


@pytest.fixture
def job(tmp_path):
    made = JobDir(tmp_path / "project" / "name")
    made.create()
    return made


def test_both_sides_hold_it_against_a_second_run(job):
    with locked(job, "both"):
        for mode in ("both", "train", "explore"):
            with pytest.raises(UserError, match=r"another run \(pid \d+\) holds"), locked(job, mode):
                pass


def test_the_two_sides_of_a_split_run_share_it(job):
    with locked(job, "explore") as first, locked(job, "train") as second:
        assert (first, second) == (False, True)


def test_two_sides_that_start_at_once_start_one_after_the_other(job, monkeypatch):
    """Else both could find the other's lock, and join a run that nobody has prepared."""
    held = []

    def prepare(made, source, options, report, *, joined):
        with (job.root.parent / ".locks" / "name.start").open() as start, pytest.raises(BlockingIOError):
            fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(joined)

    monkeypatch.setattr(acquire_job, "_prepare", prepare)
    monkeypatch.setattr(acquire_job, "_reset_participants", lambda made: held.append("forgot"))
    explore, train = (plan_of(job, mode) for mode in ("explore", "train"))
    with acquire_job.acquire_job(explore, None, None, None), acquire_job.acquire_job(train, None, None, None):
        assert held == [False, "forgot", True]


@pytest.mark.parametrize("acquire", ["acquire_job", "acquire_standalone"])
def test_an_acquired_job_is_held_without_its_lock_files_too(job, monkeypatch, acquire):
    """Also one that was set aside while it was prepared."""
    monkeypatch.setattr(acquire_job, "_prepare", lambda *_, **__: (set_aside(job), job.create()))
    monkeypatch.setattr(acquire_job, "_reset_participants", lambda made: None)
    lone = acquire == "acquire_standalone"
    plan = plan_of(job, "bench" if lone else "both")
    plan.spec.save = MagicMock()
    with getattr(acquire_job, acquire)(plan, *([MagicMock()] if lone else [None] * 3)):
        for folder in (job.root, job.root.parent):
            shutil.rmtree(folder / ".locks")
        with (
            pytest.raises(UserError, match="its lock files were deleted"),
            locked(job, "bench" if lone else "train"),
        ):
            pass


@pytest.mark.parametrize(("mode", "left"), [("both", False), ("train", False), ("explore", True)])
def test_weights_in_shared_memory_go_with_the_trainer_s_side_however_it_ends(
    job, tmp_path, monkeypatch, mode, left
):
    for name in ("_prepare", "_reset_participants"):
        monkeypatch.setattr(acquire_job, name, lambda *_, **__: None)
    made = plan_of(job, mode)
    Path(made.spec.sync.directory).mkdir()
    with contextlib.suppress(ZeroDivisionError), acquire_job.acquire_job(made, None, None, None):
        raise ZeroDivisionError
    assert Path(made.spec.sync.directory).exists() == left


@pytest.mark.parametrize(("mode", "finished"), [("both", False), ("train", False), ("explore", True)])
def test_a_trainer_s_start_takes_down_the_mark_of_the_last_end(job, mode, finished):
    """An explorer whose engine takes long would find it, and end."""
    made = plan_of(job, mode)
    buffer = open_buffer(made.spec.database_url)
    buffer.set_state("finished", True)
    acquire_job._reset_participants(made)
    assert buffer.get_state("finished") == finished
    buffer.close()


def plan_of(job, mode):
    sync = SimpleNamespace(directory=str(job.root.parent / "shm"))
    spec = SimpleNamespace(mode=mode, sync=sync, database_url=job.default_database_url)
    return SimpleNamespace(job=job, spec=spec, explorer=None)


def test_explorers_of_several_commands_share_the_explore_side(job):
    with (
        locked(job, "explore", 0) as first,
        locked(job, "explore", 1) as second,
        locked(job, "train") as third,
    ):
        assert (first, second, third) == (False, True, True)
        for mode, explorer in (("explore", None), ("explore", 0), ("both", None)):
            with pytest.raises(UserError, match="another run"), locked(job, mode, explorer):
                pass
    with locked(job, "explore"), pytest.raises(UserError), locked(job, "explore", 1):
        pass


def test_a_bench_disturbs_nobody_and_a_job_of_a_similar_name_is_another(job):
    other = JobDir(job.root.with_name(f"{job.root.name}.train"))
    with locked(other, "both"), locked(job, "bench"), locked(job, "both") as joined:
        assert not joined


def test_a_run_that_ended_holds_nothing(job):
    with locked(job, "both"):
        pass
    with locked(job, "both") as joined:
        assert not joined


def test_an_earlier_job_is_renamed_whole(job):
    (job.root / "buffer" / "experiences.db").write_text("rows")
    moment = time.struct_time((2026, 1, 2, 3, 4, 5, 0, 0, 0))
    moved = set_aside(job, now=moment)
    assert moved.name == "name_20260102030405"
    assert (moved / "buffer" / "experiences.db").read_text() == "rows"
    assert not job.root.exists()
    job.create()
    assert set_aside(job, now=moment).name == "name_20260102030405_1"


def test_the_latest_checkpoint_is_the_marker_s(job):
    assert job.latest_checkpoint is None
    (job.root / "latest_checkpointed_iteration.txt").write_text("40")
    assert job.latest_checkpoint == 40


def test_a_renamed_or_copied_job_names_its_own_database(job, tmp_path):
    spec = RunSpec(
        job_dir=str(job.root),
        database_url=job.default_database_url,
        verl={"trainer": {"default_local_dir": str(job.root)}, "data": {"train_files": ["/data/t.parquet"]}},
        updates_per_step=1,
        total_steps=None,
        sync=SyncSpec(directory=f"{job.root}/weights"),
    )
    spec.save(job.spec_path)
    assert job.load_spec() == spec
    moved = JobDir(set_aside(job))
    found = moved.load_spec()
    assert found.database_url == moved.default_database_url
    assert (found.job_dir, found.sync.directory) == (str(moved.root), f"{moved.root}/weights")
    assert found.verl["trainer"]["default_local_dir"] == str(moved.root)
    assert found.verl["data"]["train_files"] == ["/data/t.parquet"]


def test_a_folder_that_does_not_exist_is_not_called_a_job_without_a_file(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        JobDir(tmp_path / "nowhere").load_spec()


def test_a_run_that_has_not_started_has_no_state_to_read(job):
    RunSpec(str(job.root), f"sqlite:///{job.root}/experiences.db", {}, 4, 10, SyncSpec()).save(job.spec_path)
    with pytest.raises(UserError, match="its run has not started"):
        job.load_started_spec()
    open_buffer(job.load_spec().database_url).close()
    assert job.load_started_spec() == job.load_spec()
