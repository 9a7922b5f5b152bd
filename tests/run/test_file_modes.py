"""Who may read a job: its user alone, until the user opens it."""

import os
import stat
import sys

import pytest

from trinity_compat.common import file_modes
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.supervise import children
from trinity_compat.run.supervise.children import ProcessCommand


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def open_paths(root):
    """What others than its user may do anything with."""
    return [path for path in (root, *root.rglob("*")) if not path.is_symlink() and mode(path) & 0o077]


@pytest.fixture(autouse=True)
def usual_umask():
    with file_modes.umask(0o022):
        yield


def run_in(job, text="import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('')"):
    """A process of the run that writes a file; the file."""
    written = job.root / "global_step_1"
    command = ProcessCommand(
        "trainer", "trainer", [sys.executable, "-c", text, written], os.environ, job.log("t"), umask=job.umask
    )
    assert children.start(command).process.wait() == 0
    return written


def test_a_new_job_is_closed_and_so_is_all_that_its_processes_write(tmp_path):
    job = JobDir(tmp_path / "project" / "job")
    job.create()
    run_in(job)
    assert (job.root / "log" / "t.log").exists()
    assert open_paths(job.root) == []
    assert mode(tmp_path / "project") == 0o755, "the folder around jobs is the user's"
    (tmp_path / "another").touch()
    assert mode(tmp_path / "another") == 0o644, "the command's own umask stays"


@pytest.mark.parametrize(("opened", "written"), [(0o2770, 0o660), (0o750, 0o640), (0o755, 0o644)])
def test_a_job_that_its_user_has_opened_stays_open(tmp_path, opened, written):
    job = JobDir(tmp_path / "job")
    job.create()
    job.root.chmod(opened)
    job.create()
    assert mode(job.root) == opened
    assert mode(run_in(job)) == written


def test_an_existing_folder_is_made_private_and_its_files_are_left_alone(tmp_path):
    job = JobDir(tmp_path / "job")
    job.root.mkdir()
    (job.root / "notes.txt").touch()
    job.create()
    assert mode(job.root) == 0o700
    assert mode(job.root / "notes.txt") == 0o644
