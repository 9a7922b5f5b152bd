"""A job is one thing by whatever path it is named: its locks, its database, its configuration."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run import acquire_job
from trinity_compat.run.job_dir import job_dir, status
from trinity_compat.run.job_dir.job_dir import JobDir, holder, locked, locked_folders, set_aside, starting
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions, from_yaml
from trinity_compat.run.supervise.children import _is_side

MOUNT = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
NAMESPACE = ["unshare", "--mount", "--map-root-user"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "trinity" / "grpo.yaml"
CAN_MOUNT = shutil.which("unshare") is not None and (
    subprocess.run(
        [*NAMESPACE, "sh", "-c", MOUNT, "sh", "/tmp", "/tmp", "true"], capture_output=True
    ).returncode
    == 0
)
ODD = [
    "a?b %41#c",
    "q?timeout=1",
    "100%",
    "a%2Fb",
    "ä ö",
    "a;b&c=d",
    'it\'s "it"',
    "a\nb",
    "~",
    "a:b@c",
    "-x",
]


@pytest.fixture
def job(tmp_path):
    made = JobDir(tmp_path / "real" / "name")
    made.create()
    return made


def spec_of(job):
    return RunSpec(
        job_dir=str(job.root),
        database_url=job.default_database_url,
        verl={"trainer": {"default_local_dir": str(job.root)}},
        updates_per_step=1,
        total_steps=2,
        sync=SyncSpec(directory=f"{job.root}/weights"),
    )


def refused(job):
    """What a second start is told."""
    with pytest.raises(UserError, match=rf"pid {os.getpid()}\D") as caught, locked(job, "both"):
        pass
    return str(caught.value)


def names_of(job, tmp_path):
    (tmp_path / "link").symlink_to(job.root)
    (tmp_path / "above").symlink_to(job.root.parent)
    os.chdir(job.root.parent)
    yield tmp_path / "link"
    yield tmp_path / "above" / "name"
    yield Path("name")
    yield job.root / ".." / "name"
    yield job.root / "log" / ".."


def test_by_each_of_its_names_the_second_start_is_told_who_holds_it(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with locked(job, "both"):
        for name in names_of(job, tmp_path):
            assert JobDir.at(name) == job
            refused(JobDir.at(name))


@pytest.mark.skipif(not CAN_MOUNT, reason="this kernel lets this user mount nothing")
@pytest.mark.parametrize("mounted", ["real/name", "real"])
def test_a_job_is_held_through_a_bind_mount_too(job, tmp_path, mounted):
    code = """
import sys
from trinity_compat.common.errors import UserError
from trinity_compat.run.job_dir.job_dir import JobDir, locked
from trinity_compat.run.supervise.children import _is_side
try:
    with locked(JobDir.at(sys.argv[1]), "both"):
        print("held twice")
except UserError as error:
    print(error)
print(_is_side(["python", "-m", "trinity_compat.trainer", sys.argv[2]], sys.argv[1]))
"""
    (tmp_path / "mount").mkdir()
    here = str(tmp_path / "mount" / Path("real/name").relative_to(mounted))
    words = [
        str(tmp_path / mounted),
        str(tmp_path / "mount"),
        sys.executable,
        "-c",
        code,
        here,
        str(job.root),
    ]
    with locked(job, "both"):
        command = [*NAMESPACE, "sh", "-c", MOUNT, "sh", *words]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"another run (pid {os.getpid()}) holds" in told.stdout, told
    assert told.stdout.splitlines()[-1] == "True"


def test_a_job_that_was_moved_or_deleted_under_its_run_is_held(job):
    with locked(job, "both"):
        moved = JobDir(job.root.rename(job.root.with_name("moved")))
        refused(moved)
        refused(job)
        shutil.rmtree(moved.root)
        refused(job)


@pytest.mark.parametrize(
    ("holds", "wants"), [("both", "train"), ("train", "both"), ("explore", "explore"), ("bench", "bench")]
)
def test_a_job_whose_lock_files_were_deleted_is_held(job, holds, wants):
    with locked(job, holds), locked_folders(job, holds):
        for folder in (job.root, job.root.parent):
            shutil.rmtree(folder / ".locks")
        with pytest.raises(UserError, match="its lock files were deleted"), locked(job, wants):
            pass
    with locked(job, wants) as joined:
        assert not joined


def test_a_side_whose_lock_files_were_deleted_is_joined_and_not_set_aside(job):
    with locked(job, "train"), locked_folders(job, "train"):
        for folder in (job.root, job.root.parent):
            shutil.rmtree(folder / ".locks")
        with locked(job, "explore") as joined:
            assert joined


def test_a_job_that_is_set_aside_takes_its_locks_to_its_successor(job):
    (job.root / "buffer" / "experiences.db").write_text("rows")
    with starting(job), locked(job, "both"):
        old = JobDir(set_aside(job))
        job.create()
        refused(job)
        with (job.root / ".locks" / "start").open() as start, pytest.raises(BlockingIOError):
            fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with locked(old, "both") as joined:
            assert not joined
    with locked(job, "both") as joined:
        assert not joined


def test_a_lock_that_went_with_its_folder_while_one_waited_is_not_the_job_s(job, monkeypatch):
    """Else a start that waited would hold the job that was set aside, and another one the job itself."""
    flock, calls = fcntl.flock, []

    def wait(handle, how):
        flock(handle, how)
        calls.append(handle)
        if len(calls) == 2:  # of the lock inside the job
            job.root.rename(job.root.with_name("old"))

    monkeypatch.setattr(job_dir.fcntl, "flock", wait)
    with starting(job):
        monkeypatch.undo()
        assert len(calls) == 3
        with (job.root / ".locks" / "start").open() as start, pytest.raises(BlockingIOError):
            fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_look_at_a_lock_refuses_no_start(job, monkeypatch):
    path = job_dir.inner_lock_path(job, "train")
    path.parent.mkdir()
    path.touch()
    look = path.open()
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr(job_dir.time, "sleep", lambda s: look.close())
    with locked(job, "both") as joined:
        assert not joined


@pytest.mark.parametrize("side", ["train", "explore"])
def test_a_lock_beside_the_job_is_enough(job, side):
    path = job_dir.lock_path(job, side)
    path.parent.mkdir()
    path.write_text("4711")
    with path.open() as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="pid 4711"), locked(job, "both"):
            pass
        assert holder(job) == "4711"
    assert holder(job) is None


def test_where_nothing_around_a_mount_point_can_be_written_its_inside_is_enough(job):
    (job.root.parent / ".locks").write_text("in the way")
    with locked(job, "both"):
        refused(job)


@pytest.mark.parametrize(("mode", "of_lock"), [(0o700, 0o600), (0o2770, 0o660)])
def test_the_lock_inside_is_for_those_to_whom_the_job_is_open(job, mode, of_lock):
    job.root.chmod(mode)
    with locked(job, "both"):
        found = job_dir.inner_lock_path(job, "train").stat().st_mode
    assert found & 0o777 == of_lock


@pytest.mark.parametrize("place", [job_dir.lock_path, job_dir.inner_lock_path])
def test_a_link_in_a_lock_s_place_is_not_followed(job, tmp_path, place):
    (tmp_path / "mine").write_text("mine")
    place(job, "train").parent.mkdir()
    place(job, "train").symlink_to(tmp_path / "mine")
    with contextlib.suppress(UserError), locked(job, "both"):
        refused(job)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_file_is_not_taken_for_a_job(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="cannot be written"), locked(JobDir(tmp_path / "file"), "both"):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_mount_point_is_not_renamed_and_the_user_is_told(job, monkeypatch):
    def busy(self, target):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(UserError, match=r"cannot be renamed.*busy"):
        set_aside(job)


@pytest.mark.parametrize("path", ["loop/x", "a\0b", "a\udcffb", "a${b}"])
def test_a_path_that_no_folder_can_have_is_told(tmp_path, path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="cannot be a job's folder"):
        job_dir.resolved(path, tmp_path)


# -- what is written down ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD)
def test_each_name_is_a_job_with_a_database_of_its_own(tmp_path, name):
    jobs = [JobDir.at(tmp_path / each) for each in (name, "other")]
    for number, job in enumerate(jobs):
        job.create()
        spec_of(job).save(job.spec_path)
        buffer = open_buffer(job.load_spec().database_url)
        buffer.set_state("mine", number)
        buffer.close()
    moved = JobDir(jobs[0].root.rename(tmp_path / f"{name} moved"))
    copy = JobDir(shutil.copytree(moved.root, tmp_path / "copy"))
    for job in (moved, copy):
        spec = job.load_spec()
        assert spec == spec_of(job)
        assert status.read_job(job.root)[0] == job
        with contextlib.closing(open_buffer(spec.database_url, create=False)) as buffer:
            assert buffer.get_state("mine") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        {"other", "copy", f"{name} moved", *([".locks"] if (tmp_path / ".locks").exists() else [])}
    )


def test_the_database_is_named_relative_to_the_job(job):
    spec_of(job).save(job.spec_path)
    assert '"database_url": "sqlite:///buffer/experiences.db"' in job.spec_path.read_text()


def test_a_job_that_was_started_through_a_link_agrees_with_itself(job, tmp_path):
    spec_of(job).save(job.spec_path)
    (tmp_path / "link").symlink_to(job.root)
    acquire_job.check_agreement(JobDir.at(tmp_path / "link"), spec_of(job))
    assert RunSpec.load(tmp_path / "link" / "config" / "run.json") == spec_of(job)


# -- plans --------------------------------------------------------------------------------------


def planned(tmp_path, **options):
    source = from_yaml(EXAMPLE)
    return make_plan(source.config, RunOptions(**options), cwd=tmp_path, device="cpu")


@pytest.mark.parametrize("name", [name for name in ODD if name != "~"])
def test_a_plan_takes_a_job_of_any_name(tmp_path, name):
    made = planned(tmp_path, job=name)
    assert made.job.root == tmp_path / name
    assert made.spec.database_url == made.job.default_database_url
    assert made.spec.verl["trainer"]["default_local_dir"] == str(tmp_path / name)


def test_plans_through_a_link_are_the_same(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "checkpoints" / "toy").mkdir(parents=True)
    (tmp_path / "checkpoints" / "toy" / "trinity-grpo").symlink_to(tmp_path / "real")
    first, second, third = (
        planned(tmp_path, job=job) for job in ("real", "checkpoints/toy/trinity-grpo", None)
    )
    assert first.spec == second.spec == third.spec
    assert first.job.root == tmp_path / "real"


def test_the_database_that_is_asked_for_is_one_file_from_every_folder(tmp_path):
    spec = planned(tmp_path, database="sqlite:///x.db").spec
    assert spec.database_url == f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(UserError, match="takes no parameters"):
        planned(tmp_path, database="sqlite:///x.db?timeout=1")
    with pytest.raises(UserError, match="no such kind"):
        planned(tmp_path, database="mysql://h/db")


def test_a_run_of_a_script_may_have_another_folder_for_its_links(tmp_path):
    """As the refusal of a folder in use says."""
    made = planned(tmp_path, sets=("trainer.default_local_dir=elsewhere",))
    assert made.local_dir == "elsewhere"


def test_two_words_of_a_side_s_command_line_may_name_one_job(job, tmp_path):
    (tmp_path / "link").symlink_to(job.root)
    side = ["python", "-m", "trinity_compat.trainer"]
    assert _is_side([*side, str(job.root)], str(tmp_path / "link"))
    assert not _is_side([*side, str(tmp_path)], str(job.root))
