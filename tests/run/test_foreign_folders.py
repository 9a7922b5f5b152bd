"""A job's folder that another user has made, or may write in, is not used unless its user says so."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from checkpoint_files import saved
from test_resume_point import plan_of

from trinity_compat.common import file_modes
from trinity_compat.common.errors import UserError
from trinity_compat.common.path_ownership import ANY_OWNER, check_checkpoint, check_job
from trinity_compat.run import debug, staged_run
from trinity_compat.run.checks import preflight
from trinity_compat.run.job_dir import export
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan.source import RunOptions

OTHER = 12345
foreign = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's folder")


@pytest.fixture
def shared(monkeypatch):
    """A folder as /scratch: every user may make folders in it, and replace none of another's."""
    monkeypatch.delenv(ANY_OWNER, raising=False)
    with file_modes.umask(0o022):
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
        folder.chmod(0o1777)
        yield folder
    shutil.rmtree(folder)


def refused(root):
    with pytest.raises(UserError) as told:
        check_job(root)
    assert ANY_OWNER in told.value.hint and "can replace checkpoints" in told.value.hint
    with pytest.raises(UserError):
        JobDir(root).create()
    return told.value.message


def made_by_other(path, mode=0o755):
    path.mkdir()
    path.chmod(mode)
    os.chown(path, OTHER, OTHER)
    return path


@foreign
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o2777])
def test_a_job_that_another_user_made_first_is_refused(shared, mode):
    job = made_by_other(shared / "job", mode)
    assert refused(job) == f"{job} belongs to user {OTHER}, not to you"
    assert list(job.iterdir()) == []


@foreign
def test_what_another_user_made_in_a_shared_folder_is_refused_above_a_job_too(shared):
    above = made_by_other(shared / "project", 0o775)
    assert refused(above / "me" / "job") == f"{above} belongs to user {OTHER}, not to you"


@foreign
def test_the_owner_of_a_folder_above_is_trusted_where_not_everybody_could_have_made_it(shared):
    project = shared / "mine"
    project.mkdir()
    made_by_other(project / "lab", 0o2775)
    JobDir(project / "lab" / "me" / "job").create()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_folder_that_everybody_may_write_is_refused_without_the_sticky_bit(shared, level):
    job = shared / "project" / "runs" / "job"
    job.mkdir(parents=True)
    place = [job, *job.parents][level]
    place.chmod(0o777)
    assert refused(job) == f"{place} can be written by other users (mode 0777)"
    place.chmod(0o1777)
    if place == job:  # others could put a checkpoint into it
        refused(job)
    else:
        JobDir(job).create()


@pytest.mark.parametrize("mode", [0o775, 0o2770, 0o755])
def test_folders_of_a_group_are_used(shared, mode):
    project = shared / "project"
    project.mkdir()
    project.chmod(mode)
    JobDir(project / "job").create()
    JobDir(project / "job").root.chmod(0o2770)
    JobDir(project / "job").create()


def test_a_first_start_makes_no_folder_that_the_second_refuses(shared):
    job = JobDir(shared / "project" / "name" / "job")
    with file_modes.umask(0):
        for _ in range(2):
            job.create()


@foreign
def test_the_user_may_trust_the_others(shared, monkeypatch):
    job = made_by_other(shared / "job", 0o2770)
    monkeypatch.setenv(ANY_OWNER, "1")
    JobDir(job).create()
    assert job.stat().st_uid == OTHER and (job / "config").is_dir()


@foreign
def test_a_checkpoint_of_another_user_is_not_loaded(shared, monkeypatch):
    job = shared / "job"
    job.mkdir()
    saved(job, 2)
    check = preflight.check_resume
    check(plan_of(job))
    words = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={job}/global_step_2")
    file = job / "global_step_2" / "actor" / "model_world_size_1_rank_0.pt"
    for place in (file, file.parent, job / "global_step_2"):
        os.chown(place, OTHER, OTHER)
        for plan in (plan_of(job), plan_of(shared / "another", *words)):
            with pytest.raises(UserError, match=f"{place} belongs to user {OTHER}") as told:
                check(plan)
            assert ANY_OWNER in told.value.hint
        monkeypatch.setenv(ANY_OWNER, "1")
        check(plan_of(job))
        monkeypatch.delenv(ANY_OWNER)
        os.chown(place, 0, 0)
    file.chmod(0o666)
    with pytest.raises(UserError, match="can be written by other users"):
        check(plan_of(job))


@foreign
def test_a_link_in_a_checkpoint_leads_to_this_user_s_file(shared):
    saved(shared / "job", 2)
    file = shared / "job" / "global_step_2" / "actor" / "model_world_size_1_rank_0.pt"
    shutil.move(file, shared / "moved.pt")
    file.symlink_to(shared / "moved.pt")
    check_checkpoint(shared / "job" / "global_step_2")
    os.chown(shared / "moved.pt", OTHER, OTHER)
    with pytest.raises(UserError, match=r"moved\.pt belongs to user"):
        check_checkpoint(shared / "job" / "global_step_2")


@foreign
def test_each_command_that_would_run_a_job_s_code_looks(shared, monkeypatch):
    job = made_by_other(shared / "job")
    (job / "config").mkdir()
    (job / "config" / "run.json").write_text("{}")
    yaml = shared / "x.yaml"
    yaml.write_text("mode: both\n")
    monkeypatch.setattr(staged_run, "parts", lambda *_: ["a stage"])
    monkeypatch.setattr(staged_run, "check", lambda *_: None)
    monkeypatch.setattr(staged_run, "root_of", lambda *_: job)
    for look in (
        lambda: preflight.check(plan_of(job)),
        lambda: debug.spec_of(str(job), (), RunOptions()),
        lambda: debug.score_again(str(job), None),
        lambda: staged_run.run_yaml(yaml, RunOptions()),
    ):
        with pytest.raises(UserError, match=f"{job} belongs to user {OTHER}"):
            look()


@foreign
def test_the_merger_opens_no_pickle_of_another_user(shared, monkeypatch):
    saved(shared / "job", 2)
    actor = made_by_other(shared / "job" / "global_step_2" / "critic")
    monkeypatch.setattr(JobDir, "load_spec", lambda job: None)
    with pytest.raises(UserError, match=f"{actor} belongs to user {OTHER}"):
        export.to_hf(shared / "job", step=2, out=None, critic=True)


@foreign
def test_root_s_folders_are_trusted(shared, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    (shared / "job").mkdir()
    check_job(shared / "job")
    os.chown(shared / "job", OTHER + 1, OTHER + 1)
    with pytest.raises(UserError, match=f"job belongs to user {OTHER + 1}, not to you"):
        check_job(shared / "job")
