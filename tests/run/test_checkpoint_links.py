"""The script's trainer.default_local_dir: what it shows of the job's checkpoints, and what it keeps."""

import contextlib
import os
import threading
from types import SimpleNamespace

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.run import run
from trinity_compat.run.job_dir.checkpoint_links import CheckpointLinks
from trinity_compat.run.job_dir.job_dir import JobDir, locked


@pytest.fixture
def job(tmp_path):
    return new_job(tmp_path / "ck" / "toy" / "grpo")


def new_job(root):
    made = JobDir(root)
    made.create()
    made.write_config({"run.json": "{}"})
    return made


def links(job, wanted, tmp_path):
    said = []
    made = CheckpointLinks(job, wanted, cwd=tmp_path, say=said.append)
    made.begin()
    return made, said


def save(job, step):
    """A checkpoint as veRL leaves it: the folder, then the marker."""
    (job.root / f"global_step_{step}").mkdir()
    (job.root / f"global_step_{step}" / "data.pt").write_text(str(job.root))
    (job.root / "latest_checkpointed_iteration.txt").write_text(str(step))


def shown(folder):
    """Checkpoints that the script would find in a folder: step → what lies in it; and the marker."""
    steps = {path.parent.name: path.read_text() for path in folder.glob("global_step_*/data.pt")}
    marker = folder / "latest_checkpointed_iteration.txt"
    return steps, marker.read_text() if marker.exists() else None


def test_a_free_folder_becomes_a_link(job, tmp_path):
    for _ in range(2):
        links(job, "out/run1", tmp_path)
        assert (tmp_path / "out" / "run1").resolve() == job.root
    save(job, 2)
    assert shown(tmp_path / "out" / "run1") == ({"global_step_2": str(job.root)}, "2")


def test_an_empty_folder_becomes_a_link(job, tmp_path):
    (tmp_path / "out").mkdir()
    _, said = links(job, "out", tmp_path)
    assert (tmp_path / "out").is_symlink() and "out →" in said[0]


@pytest.mark.parametrize("wanted", ["ck", "ck/toy"])
def test_a_folder_that_holds_the_job_gets_each_checkpoint_as_it_is_written(job, tmp_path, wanted):
    made, said = links(job, wanted, tmp_path)
    assert shown(tmp_path / wanted) == ({}, None)
    for step in (2, 4):
        save(job, step)
        made.update()
    assert shown(tmp_path / wanted) == ({f"global_step_{n}": str(job.root) for n in (2, 4)}, "4")
    assert said == [f"checkpoints: each one is linked into {tmp_path / wanted} as it is written"]


def test_somebody_s_own_checkpoints_stay_and_are_told_once(job, tmp_path):
    folder = tmp_path / "out"
    (folder / "global_step_2").mkdir(parents=True)
    (folder / "global_step_2" / "data.pt").write_text("theirs")
    (folder / "latest_checkpointed_iteration.txt").write_text("2")
    made, said = links(job, str(folder), tmp_path)
    for step in (2, 4):
        save(job, step)
        made.update()
    assert shown(folder) == ({"global_step_2": "theirs", "global_step_4": str(job.root)}, "2")
    assert [line for line in said if "existed before" in line] == [
        f"checkpoints: {folder}/{name} existed before and is kept; this run's is {job.root}/{name}"
        for name in ("global_step_2", "latest_checkpointed_iteration.txt")
    ]


def test_a_checkpoint_that_veRL_removed_is_not_shown_any_more(job, tmp_path):
    made, _ = links(job, "ck", tmp_path)
    for step in (2, 4):
        save(job, step)
    made.update()
    (job.root / "global_step_2" / "data.pt").unlink()
    (job.root / "global_step_2").rmdir()
    made.update()
    assert not (tmp_path / "ck" / "global_step_2").is_symlink()
    assert shown(tmp_path / "ck")[0] == {"global_step_4": str(job.root)}


def test_another_job_of_ours_gives_way_in_the_same_folder(job, tmp_path):
    made, _ = links(job, "ck", tmp_path)
    save(job, 2)
    made.update()
    other = new_job(tmp_path / "ck" / "toy" / "ppo")
    save(other, 2)
    links(other, "ck", tmp_path)
    assert shown(tmp_path / "ck") == ({"global_step_2": str(other.root)}, "2")


def test_a_user_s_link_to_a_disk_of_theirs_stays_and_is_filled(job, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "out").symlink_to(disk)
    made, _ = links(job, "out", tmp_path)
    save(job, 2)
    made.update()
    assert (tmp_path / "out").readlink() == disk
    assert shown(disk) == ({"global_step_2": str(job.root)}, "2")


@pytest.mark.parametrize("wanted", [None, "hdfs://cluster/ckpts", "ck/toy/grpo"])
def test_folders_that_need_no_link(job, tmp_path, wanted):
    assert links(job, wanted, tmp_path)[1] == []


def test_a_file_in_the_place_of_the_link_is_named(job, tmp_path):
    (tmp_path / "out").write_text("mine")
    _, said = links(job, "out", tmp_path)
    assert "is a file" in said[0] and (tmp_path / "out").read_text() == "mine"


# -- two jobs that run --------------------------------------------------------------------------


def test_a_running_job_s_link_is_not_taken(job, tmp_path):
    links(job, "out", tmp_path)
    other = new_job(tmp_path / "other")
    with locked(job, "both"):
        for stage in (CheckpointLinks.check, CheckpointLinks.begin):
            made = CheckpointLinks(other, "out", cwd=tmp_path, say=print)
            with pytest.raises(
                UserError, match=rf"default_local_dir=out .* {job.root} \(pid {os.getpid()}\)"
            ):
                stage(made)
        links(job, "out", tmp_path)  # its own is its own
        assert (tmp_path / "out").resolve() == job.root
    links(other, "out", tmp_path)
    assert (tmp_path / "out").resolve() == other.root


@pytest.mark.parametrize("side", ["train", "explore"])
def test_a_running_job_s_folder_is_not_filled(job, tmp_path, side):
    """Its next checkpoint would be written into the other one's."""
    other = new_job(tmp_path / "other")
    with locked(job, side), pytest.raises(UserError, match="is in use"):
        links(other, str(job.root), tmp_path)
    assert not list(job.root.glob("global_step_*"))


def test_a_folder_that_a_running_job_fills_is_not_filled_by_another(job, tmp_path):
    """Also before the first checkpoint, when nothing else in it names the job."""
    other = new_job(tmp_path / "ck" / "toy" / "ppo")
    with locked(job, "both"):
        links(job, "ck", tmp_path)
        with pytest.raises(UserError, match="is in use"):
            links(other, "ck", tmp_path)
    made, _ = links(other, "ck", tmp_path)
    save(other, 2)
    made.update()
    assert shown(tmp_path / "ck") == ({"global_step_2": str(other.root)}, "2")
    with locked(other, "both"), pytest.raises(UserError):
        links(job, "ck", tmp_path)


def test_of_two_that_start_at_once_one_has_the_folder(tmp_path):
    jobs = [new_job(tmp_path / f"job{number}") for number in range(8)]
    (tmp_path / "out").symlink_to(new_job(tmp_path / "ended").root)
    refused = []

    def start(job):
        try:
            links(job, "out", tmp_path)
        except UserError as error:
            refused.append(error)

    with contextlib.ExitStack() as held:
        for job in jobs:
            held.enter_context(locked(job, "both"))
        threads = [threading.Thread(target=start, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == len(jobs) - 1
        assert (tmp_path / "out").resolve() in [job.root for job in jobs]


def test_a_stage_s_job_may_fill_its_run_s_folder(tmp_path):
    run, stage = new_job(tmp_path / "run"), new_job(tmp_path / "run" / "first")
    with locked(run, "both"), locked(stage, "both"):
        links(stage, "run", tmp_path)


@pytest.mark.parametrize(
    ("mode", "has"), [("both", True), ("train", True), ("colocate", True), ("explore", False)]
)
def test_an_explorer_s_command_has_no_checkpoints_to_show(job, tmp_path, mode, has):
    plan = SimpleNamespace(job=job, spec=SimpleNamespace(mode=mode), local_dir="out", cwd=tmp_path)
    run._checkpoint_links(plan).begin()
    assert (tmp_path / "out").is_symlink() == has
