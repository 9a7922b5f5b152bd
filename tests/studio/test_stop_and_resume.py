"""Stopping and resuming: asked first, and done only with what is the user's own."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoint_files import saved, shard
from studio_jobs import client_of, make_job

from trinity_compat.job import stop_request
from trinity_compat.run.job_dir.job_dir import JobDir, identity_of, inner_lock_path, lock_path, locked
from trinity_compat.studio import control
from trinity_compat.studio.jobs import Jobs
from trinity_compat.studio.started_runs import StartedRun

HOLD = """
import sys, time
from pathlib import Path
from trinity_compat.run.job_dir.job_dir import JobDir, locked
with locked(JobDir(Path(sys.argv[1])), "both"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holding():
    """Starts a process that holds a job's locks; ends it."""
    started = []

    def hold(root, code=HOLD):
        process = subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()


def post(studio, path, **given):
    return studio.post(path, data={"csrf": studio.app.state.studio.listener.csrf, **given})


# -- stopping


def test_a_stop_after_the_step_is_the_form_s_default_and_shows_at_once(tmp_path, holding):
    root = make_job(tmp_path / "job", state="running")
    studio, process = client_of(tmp_path), holding(root)
    page = studio.get("/stop/job").text
    assert "6 steps after the start would be lost" in page
    assert page.index("Stop after this step") < page.index("Stop now")
    assert post(studio, "/stop/job").headers["location"] == "/run/job"
    assert stop_request.read(root) == "step" and process.poll() is None
    page = studio.get("/run/job").text
    assert '<span class="pill stopping"' in page and "ends after the step that is being trained" in page
    assert '<span class="pill stopping"' in studio.get("/").text
    assert "It was asked to end after this step." in studio.get("/stop/job").text
    post(studio, "/stop/job", moment="now")
    assert process.wait(60) == -signal.SIGTERM and stop_request.read(root) == "now"


def test_a_stop_is_asked_names_the_process_and_ends_it(tmp_path, holding):
    root = make_job(tmp_path / "job", state="running")
    studio = client_of(tmp_path)
    assert "the studio cannot stop it" in studio.get("/stop/job").text
    process = holding(root)
    assert f"process {process.pid}" in studio.get("/stop/job").text and process.poll() is None
    assert post(studio, "/stop/job", moment="now").headers["location"] == "/run/job"
    assert process.wait(60) == -signal.SIGTERM


def test_a_studio_that_is_read_only_offers_neither_and_says_why(tmp_path, holding):
    holding(make_job(tmp_path / "job", state="running"))
    offered = [f'href="/{action}/job"' for action in ("stop", "resume")]
    page = client_of(tmp_path).get("/run/job").text
    assert offered[0] in page
    page = client_of(tmp_path, read_only=True).get("/run/job").text
    assert "The studio was started with --read-only." in page
    assert not any(link in page for link in offered)


def test_a_side_of_another_machine_is_not_stopped_from_here(tmp_path):
    root = make_job(tmp_path / "job", state="running")
    raw = sqlite3.connect(root / "buffer" / "experiences.db")
    raw.execute("UPDATE participants SET host = 'elsewhere'")
    raw.commit()
    with locked(JobDir(root), "both"):
        assert "the studio cannot stop it" in client_of(tmp_path).get("/stop/job").text


@pytest.mark.parametrize("held", [True, False])
def test_a_process_that_wrote_a_lock_counts_while_it_holds_it(tmp_path, holding, held):
    path = tmp_path / "side.lock"
    process = holding(path, LOCKED_PID_FILE)
    assert control._holder(path) == control.LockHolder(process.pid, str(process.pid), path)
    if not held:
        process.kill()
        process.wait()
    path.write_text(str(process.pid) if held else str(os.getpid()))  # this process lives, and holds nothing
    assert (control._holder(path) is not None) == held


@pytest.mark.parametrize("text", ["", "a word", "0", "1", "-5"])
def test_a_lock_that_names_no_process_has_no_holder(tmp_path, text):
    (tmp_path / "side.lock").write_text(text)
    assert control._holder(tmp_path / "side.lock") is None
    assert control._holder(tmp_path / "none.lock") is None


@pytest.fixture
def no_signal(monkeypatch):
    sent = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *how: sent.append(how))
    yield sent
    assert sent == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (lambda pid, start, command: f"{pid} {int(start) - 1} {command}", "did not write"),
        (lambda pid, start, command: f"{pid} {start} {'0' * 16}", "did not write"),
        (lambda pid, start, command: pid, "does not record when process"),
    ],
)
def test_a_process_other_than_the_lock_s_is_not_signalled(tmp_path, holding, no_signal, words, said):
    root = make_job(tmp_path / "job", state="running")
    process = holding(root)
    for side in ("train", "explore"):
        for path in (lock_path(JobDir(root), side), inner_lock_path(JobDir(root), side)):
            path.write_text(words(*identity_of(process.pid).split()))
    studio = client_of(tmp_path)
    page = studio.get("/stop/job").text
    assert said in page and "Stop the run" not in page
    assert post(studio, "/stop/job", moment="now").status_code == 409 and process.poll() is None


def test_a_process_that_takes_the_pid_meanwhile_is_not_signalled(tmp_path, holding, no_signal, monkeypatch):
    process = holding(make_job(tmp_path / "job", state="running"))
    studio = client_of(tmp_path)
    opened = []
    monkeypatch.setattr(os, "pidfd_open", lambda pid, real=os.pidfd_open: opened.append(pid) or real(pid))
    after = f"{process.pid} 1 {'0' * 16}"
    monkeypatch.setattr(
        "trinity_compat.studio.control.identity_of", lambda pid: after if opened else identity_of(pid)
    )
    assert post(studio, "/stop/job", moment="now").status_code == 409 and opened == [process.pid]


def test_a_process_that_ends_meanwhile_is_no_error(tmp_path, holding, no_signal):
    root = make_job(tmp_path / "job", state="running")
    process = holding(root)
    studio = client_of(tmp_path)
    studio.get("/stop/job")
    process.kill()
    process.wait()
    assert post(studio, "/stop/job", moment="now").status_code in (303, 409)


LOCKED_PID_FILE = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
file.write(str(os.getpid())); file.flush()
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_that_is_a_link_names_nobody(tmp_path, holding, no_signal):
    root = make_job(tmp_path / "jobs" / "job", state="running")
    victim = holding(tmp_path / "other.pid", LOCKED_PID_FILE)
    for side in ("train", "explore", "explore.0"):
        lock = lock_path(JobDir(root), side)
        lock.parent.mkdir(exist_ok=True)
        lock.symlink_to(tmp_path / "other.pid")
    studio = client_of(tmp_path / "jobs")
    assert str(victim.pid) not in studio.get("/stop/job").text
    post(studio, "/stop/job", moment="now")
    assert victim.poll() is None


# -- resuming


@pytest.fixture
def started(monkeypatch):
    """(command, folder) of each resume, none of which runs."""
    found = []
    monkeypatch.setattr("trinity_compat.studio.control.StartedRun", lambda *how: found.append(how[:2]))
    return found


def test_a_resume_shows_its_command_and_starts_it_in_its_folder(tmp_path, started):
    make_job(tmp_path / "job", state="stopped")
    studio = client_of(tmp_path)
    assert "-P -m trinity_compat run run.sh --profile cpu" in studio.get("/resume/job").text and not started
    assert post(studio, "/resume/job").headers["location"] == "/run/job"
    ((command, folder),) = started
    assert command == [sys.executable, "-P", "-m", "trinity_compat", "run", "run.sh", "--profile", "cpu"]
    assert folder == tmp_path


def test_a_script_counts_from_the_folder_that_it_was_started_in(tmp_path, started):
    root = make_job(tmp_path / "job", state="stopped")
    (tmp_path / "begun").mkdir()
    (tmp_path / "run.sh").rename(tmp_path / "begun" / "run.sh")
    recorded(root, cwd=str(tmp_path), started_in=str(tmp_path / "begun"))
    post(client_of(tmp_path), "/resume/job")
    assert started[0][1] == tmp_path / "begun"


def recorded(root, **words):
    path = root / "config" / "launch.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | words))


def refused(tmp_path, started, said):
    studio = client_of(tmp_path)
    name = next(iter(studio.app.state.studio.jobs.all()))
    assert said in studio.get(f"/resume/{name}").text
    assert ">Resume</button>" not in studio.get(f"/resume/{name}").text
    assert post(studio, f"/resume/{name}").status_code == 409 and not started
    return studio.get(f"/run/{name}").text


def test_a_copy_is_not_resumed_in_its_original_s_place(tmp_path, started):
    make_job(tmp_path / "job", state="stopped").rename(tmp_path / "copy")
    refused(tmp_path, started, "This is a copy")


def test_a_command_that_held_a_secret_is_not_started(tmp_path, started):
    recorded(make_job(tmp_path / "job", state="stopped"), script_arguments=["--api_key", "***"])
    refused(tmp_path, started, "secret")


def test_a_finished_run_is_not_resumed(tmp_path, started):
    make_job(tmp_path / "job", state="done")
    page = refused(tmp_path, started, "trained all its steps")
    assert '<span id="resume" hidden>' in page


def test_a_run_whose_explorer_failed_after_the_last_step_is_not_resumed(tmp_path, started):
    root = make_job(tmp_path / "job", state="done")
    raw = sqlite3.connect(root / "buffer" / "experiences.db")
    raw.execute("UPDATE participants SET state = 'failed' WHERE role = 'explorer'")
    raw.commit()
    page = refused(tmp_path, started, "trained all its steps")
    assert "trained all its steps" in page and "Resume…" not in page


@pytest.mark.parametrize("gone", ["run.sh", "begun"])
def test_a_script_or_folder_that_is_gone_is_said_so(tmp_path, started, gone):
    root = make_job(tmp_path / "job", state="stopped")
    recorded(root, started_in=str(tmp_path / "begun" if gone == "begun" else tmp_path))
    if gone == "run.sh":
        (tmp_path / "run.sh").unlink()
    page = refused(tmp_path, started, gone)
    assert gone in page and "Resume…" not in page


WRITABLE = {
    "job": "job",
    "its configuration": "job/config",
    "the record": "job/config/launch.json",
    "the spec": "job/config/run.json",
    "the buffer": "job/buffer",
    "the database": "job/buffer/experiences.db",
    "the logs": "job/log",
    "a checkpoint": "job/global_step_2/actor/model.pt",
    "the checkpoint's mark": "job/latest_checkpointed_iteration.txt",
    "the locks' folder": ".locks",
    "a lock": ".locks/job.train",
    "the script": "run.sh",
    "the folder of the script": ".",
    "plugins": "plugins",
}


@pytest.mark.parametrize("what", WRITABLE)
def test_what_others_could_have_changed_is_shown_and_not_resumed(tmp_path, started, what):
    folder = tmp_path / "jobs"
    root = make_job(folder / "job", state="stopped")
    (folder / "plugins").mkdir()
    recorded(root, options={"profiles": ["cpu"], "plugin_dirs": ["plugins"]})
    saved(root, 2)
    shard(root / "global_step_2" / "actor" / "model.pt")
    with locked(JobDir(root), "both"):
        pass
    assert ">Resume</button>" in client_of(folder).get("/resume/job").text
    place = folder / WRITABLE[what]
    place.chmod(0o777 if place.is_dir() else 0o666)
    page = refused(folder, started, f"{place} can be written by other users")
    assert f"{place} can be written by other users" in page and "Resume…" not in page


def test_a_run_whose_newest_checkpoint_is_gone_is_not_resumed(tmp_path, started):
    root = make_job(tmp_path / "jobs" / "job", state="stopped")
    recorded(root)
    saved(root, 2, 4)
    assert ">Resume</button>" in client_of(tmp_path / "jobs").get("/resume/job").text
    shutil.rmtree(root / "global_step_4")
    said = f"trainer.resume_mode=resume_path trainer.resume_from_path={root}/global_step_2"
    refused(tmp_path / "jobs", started, said)


def test_a_working_directory_that_everybody_writes_into_is_not_used(tmp_path, started):
    """The sticky bit keeps the script in place, not what others put beside it."""
    root = make_job(tmp_path / "jobs" / "job", state="stopped")
    (tmp_path / "everybody-s").mkdir()
    (tmp_path / "everybody-s").chmod(0o1777)
    (tmp_path / "everybody-s" / "run.sh").write_text("")
    recorded(root, started_in=str(tmp_path / "everybody-s"))
    refused(tmp_path / "jobs", started, "everybody-s can be written by other users (mode 1777)")


def test_a_job_that_others_could_have_changed_is_not_stopped(tmp_path, holding, no_signal):
    root = make_job(tmp_path / "job", state="running")
    process = holding(root)
    (root / "config").chmod(0o777)
    studio = client_of(tmp_path)
    page = studio.get("/run/job").text
    assert f"{root / 'config'} can be written by other users" in page and "Stop…" not in page
    assert "Stop the run" not in studio.get("/stop/job").text
    assert post(studio, "/stop/job", moment="now").status_code == 409 and process.poll() is None


def test_no_module_of_a_resume_comes_from_its_working_directory(tmp_path):
    root = make_job(tmp_path / "job", state="stopped")
    for name in ("trinity_compat", "click", "json"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (tmp_path / name / file).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write({name!r})\n")
    studio = client_of(tmp_path)
    assert post(studio, "/resume/job").status_code == 303
    until(lambda: not job_of(studio).resumed.lives)
    assert not (tmp_path / "ran").exists()
    assert "run.sh" in (root / "log" / "studio.log").read_text()  # the real program looked at it


def job_of(studio, name="job"):
    return studio.app.state.studio.jobs.get(name)


def until(true):
    """Waits as long as the test may take."""
    while not true():
        time.sleep(0.02)


def test_a_resume_that_fails_is_reaped_and_says_why_on_the_run_s_page(tmp_path):
    root = make_job(tmp_path / "job", state="stopped")
    (root / "log" / "studio.log").write_text("of an earlier resume\n")
    studio = client_of(tmp_path)
    post(studio, "/resume/job")
    until(lambda: not job_of(studio).resumed.lives)
    page = studio.get("/run/job").text
    assert "ended with exit code 2" in page and "run.sh" in page.partition("exit code")[2][:500]
    assert "of an earlier resume" not in page
    assert not (Path("/proc") / str(job_of(studio).resumed.pid)).exists()


SECRET_ERROR = "import sys; print('api_key=sk-123456789 wrong', file=sys.stderr); sys.exit(3)"


def test_a_resume_says_how_it_goes(tmp_path):
    (tmp_path / "job").mkdir()
    waiting = "import sys; sys.stdin.read(); import time; time.sleep(600)"
    resumed = StartedRun([sys.executable, "-c", waiting], tmp_path, tmp_path / "a.log")
    assert "is starting up" in resumed.message(running=False) and resumed.message(running=True) == ""
    assert resumed.message(running=False) == ""  # it ends, after it ran
    os.kill(resumed.pid, signal.SIGKILL)
    until(lambda: not resumed.lives)
    assert "ended by signal 9" in resumed.message(running=False)
    failed = StartedRun([sys.executable, "-c", SECRET_ERROR], tmp_path, tmp_path / "b.log")
    until(lambda: not failed.lives)
    assert "exit code 3" in failed.message(running=False) and "api_key=***" in failed.message(running=False)
    fine = StartedRun([sys.executable, "-c", ""], tmp_path, tmp_path / "c.log")
    until(lambda: not fine.lives)
    assert fine.message(running=False) == ""
    assert (tmp_path / "c.log").stat().st_mode & 0o077 == 0


def test_a_resume_is_not_started_twice(tmp_path):
    make_job(tmp_path / "job", state="stopped")
    studio = client_of(tmp_path)
    job = job_of(studio)
    job.resumed = StartedRun(
        [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, tmp_path / "log"
    )
    assert post(studio, "/resume/job").status_code == 409
    assert "is starting up" in studio.get("/run/job").text
    os.kill(job.resumed.pid, signal.SIGTERM)
    until(lambda: not job.resumed.lives)


def test_a_log_that_is_a_link_is_not_written_through(tmp_path):
    root = make_job(tmp_path / "jobs" / "job", state="stopped")
    (tmp_path / "victim").write_text("kept\n")
    (root / "log" / "studio.log").symlink_to(tmp_path / "victim")
    studio = client_of(tmp_path / "jobs")
    assert post(studio, "/resume/job").status_code == 409
    assert (tmp_path / "victim").read_text() == "kept\n"


def test_the_studio_s_token_is_not_handed_to_a_resumed_run(monkeypatch):
    from trinity_compat.common.errors import UserError
    from trinity_compat.studio import serving

    monkeypatch.setenv(serving.TOKEN, "x" * 32)
    assert serving._given_token() == "x" * 32 and serving.TOKEN not in os.environ
    assert serving._given_token() is None
    for bad in ("short", "x" * 21, "ü" * 32, "a b" * 20, ""):
        monkeypatch.setenv(serving.TOKEN, bad)
        with pytest.raises(UserError, match="TRINITY_COMPAT_STUDIO_TOKEN"):
            serving._given_token()


def test_a_job_by_another_place_is_another_job(tmp_path):
    """A link that leads elsewhere since: nothing that was kept of its old place is shown."""
    for name in ("one", "two"):
        make_job(tmp_path / name / "job", steps=1 if name == "one" else 2)
    (tmp_path / "shown").mkdir()
    link = tmp_path / "shown" / "it"
    link.symlink_to(tmp_path / "one" / "job")
    jobs = Jobs(tmp_path / "shown")
    before = jobs.get("it")
    link.unlink()
    link.symlink_to(tmp_path / "two" / "job")
    jobs.scan.make_due()
    assert jobs.get("it").dir.root == tmp_path / "two" / "job" and jobs.get("it") is not before
