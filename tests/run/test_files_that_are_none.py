"""Pipes, folders, devices and other text where a file of a job should be: told, and never waited for."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_resume_point import plan_of

from trinity_compat.buffer import open_buffer
from trinity_compat.cli.buffer import command as buffer
from trinity_compat.cli.status import command as status
from trinity_compat.common import regular_files
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.run import run
from trinity_compat.run.checks import preflight
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.supervise import cluster


@pytest.fixture
def job(tmp_path):
    job = JobDir(tmp_path / "job")
    job.create()
    plan_of(job.root).spec.save(job.spec_path)
    open_buffer(job.default_database_url).close()
    return job


def asked(words, command=status):
    result = CliRunner().invoke(command, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert isinstance(result.exception, UserError | RunError), result.exception
    return result


def pipe(path):
    os.mkfifo(path)


def link_to(target):
    return lambda path: path.symlink_to(target)


NONES = [pipe, Path.mkdir, link_to("/dev/zero"), link_to("nowhere"), link_to("run.json")]
TEXTS = ["", "{", "[]", "7", "null", "\udcff", "[" * 100_000, '{"sync": 1}', '{"database_url": 1}']


@pytest.mark.parametrize("make", NONES)
@pytest.mark.parametrize(
    "name",
    [
        "config/run.json", "stages.json", "log/phases.json", "latest_checkpointed_iteration.txt",
        "buffer/experiences.db", "buffer/experiences.db-wal", "buffer/experiences.db-shm",
    ],
)  # fmt: skip
def test_no_command_waits_for_what_is_not_a_file(job, name, make):
    path = job.root / name
    path.unlink(missing_ok=True)
    make(path)
    result = asked([str(job.root)])
    if name == "config/run.json" or (name == "stages.json" and path.exists()):
        assert isinstance(result.exception, UserError) and name in str(result.exception)
    for words in (["stats"], ["show"], ["export"]):
        asked([words[0], str(job.root)], buffer)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["config/run.json", "stages.json", "log/phases.json"])
def test_other_text_is_named(job, name, text):
    path = job.root / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    result = asked([str(job.root)])
    if name != "log/phases.json":
        assert isinstance(result.exception, UserError) and str(path) in str(result.exception)


def test_a_file_is_appended_to_and_a_pipe_is_not(tmp_path):
    for text in (b"a", b"b"):
        with regular_files.appended(tmp_path / "log") as log:
            log.write(text)
    assert regular_files.followed_text(tmp_path / "log") == "ab"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError):
        regular_files.appended(tmp_path / "pipe")


def test_an_error_about_a_file_of_the_job_is_told_without_a_traceback(job):
    plan = plan_of(job.root)
    error = run._about_job(FileNotFoundError(2, "No such file or directory", str(job.log("trainer"))), plan)
    assert isinstance(error, RunError) and str(job.log("trainer")) in error.message
    assert run._about_job(FileNotFoundError(2, "No such file or directory", "/elsewhere"), plan) is None
    job.root.rename(job.root.with_name("moved"))
    error = run._about_job(OSError(2, "No such file or directory", os.fsencode(job.log("trainer"))), plan)
    assert "was renamed or deleted while the run used it" in error.message
    assert error.hint.startswith(f"put {job.root} back")


def test_each_run_s_ray_has_a_token_of_its_own(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    texts = []
    for _ in range(2):  # Ray's driver keeps the first token of a process
        with cluster._own_token():
            path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
            texts.append(path.read_text())
            assert path.parent.stat().st_mode & 0o077 == 0
        assert not path.exists() and "RAY_AUTH_TOKEN_PATH" not in os.environ
    assert texts[0] == texts[1] and len(texts[0]) == 64
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/mine")
    with cluster._own_token():
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == "/mine"
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == "/mine"


@pytest.mark.parametrize("name", ["HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE"])
def test_a_cache_that_cannot_be_made_is_told_before_the_start(tmp_path, monkeypatch, name):
    for other in ("HF_DATASETS_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    preflight.check_cache()
    monkeypatch.setenv(name, str(tmp_path / "closed" / "new"))
    monkeypatch.setattr(os, "access", lambda path, how: tmp_path != Path(path))
    with pytest.raises(UserError, match="is not writable") as told:
        preflight.check_cache()
    assert "HF_HOME" in told.value.hint


def test_a_database_that_was_cut_off_is_not_begun_anew(job):
    file = job.root / "buffer" / "experiences.db"
    for end in ("", "-wal", "-shm"):
        file.with_name(file.name + end).unlink(missing_ok=True)
    file.touch()
    preflight.check_database(job.default_database_url, job.root)  # killed at its first start
    (job.root / "latest_checkpointed_iteration.txt").write_text("2")
    with pytest.raises(UserError, match="is empty, though the job has trained") as told:
        preflight.check_database(job.default_database_url, job.root)
    assert "move the file away" in told.value.hint
