"""Real attacks of another user of the machine, who may write into a folder that the studio shows (/tmp, a
team's scratch disk), and what that user's own studio shows of our jobs. Needs root, to be that user."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from studio_browser import serving
from studio_jobs import client_of, make_job

from trinity_compat.run.job_dir.job_dir import JobDir, lock_path
from trinity_compat.studio import live, logs

NOBODY = 65534
HERE = Path(__file__).parent
VICTIM = "only-the-owner-may-read-this"


# Loads the code, and runs it once where it is told to, as root: Python's own files may be closed to others.
DROP = """
import contextlib, encodings.idna, io, json, os, sys
code, nobody, warm, *words = sys.argv[1:]
exec(code)
if warm:
    with contextlib.redirect_stdout(io.StringIO()):
        main(warm)
os.setgroups([])
os.setgid(int(nobody))
os.setuid(int(nobody))
main(*words)
"""


def as_nobody(code, *words, warm="", **options):
    """Runs ``main(*words)`` of Python code as another user; its output. ``warm``: a folder that root runs it
    over before."""
    command = [sys.executable, "-c", DROP, textwrap.dedent(code), NOBODY, warm, *words]
    ended = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=240,
        cwd="/",
        env={"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "PATH": os.environ["PATH"], **options},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")


@pytest.fixture
def shared():
    """A folder that everybody may write into, as /tmp is."""
    place = Path(tempfile.mkdtemp(prefix="trinity-compat-tests-"))
    place.chmod(0o755)
    (place / "shared").mkdir()
    (place / "shared").chmod(0o1777)
    yield place / "shared"
    shutil.rmtree(place)


EVIL_JOB = """
import json
from pathlib import Path

def main(shared):
    shared = Path(shared)
    evil, cwd = shared / "evil", shared / "cwd"
    for name in ("config", "buffer", "log"):
        (evil / name).mkdir(parents=True)
    (cwd / "trinity_compat").mkdir(parents=True)
    for name in ("__init__", "__main__"):
        (cwd / "trinity_compat" / f"{name}.py").write_text(f"open({str(shared / 'ran')!r}, 'w')")
    (cwd / "run.sh").write_text(f"touch {shared / 'ran'}; python3 -m verl.trainer.main_ppo")
    spec = {"job_dir": str(evil), "database_url": f"sqlite:///{evil}/buffer/experiences.db", "verl": {}}
    spec |= {"updates_per_step": 1, "total_steps": 1, "sync": {}}
    (evil / "config" / "run.json").write_text(json.dumps(spec))
    record = {"script": "run.sh", "cwd": str(cwd), "options": {}}
    (evil / "config" / "launch.json").write_text(json.dumps(record))
"""
ASK = """
import json, urllib.error, urllib.request

def main(url):
    def ask(path, data=None):
        try:
            with urllib.request.urlopen(url + path, data, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
    paths = ["", "run/private", "metrics/private", "experiences/private", "resume/evil", "stop/private"]
    found = [ask(path) for path in paths]
    found += [ask("resume/evil", data) for data in (b"csrf=x", b"")]
    print(json.dumps(found))
"""


def test_another_user_gets_no_page_no_secret_and_no_resume(shared):
    make_job(shared / "private")
    (shared / "private").chmod(0o700)
    as_nobody(EVIL_JOB, shared)
    with serving(shared) as listener:
        found = json.loads(as_nobody(ASK, listener.url))
    assert [status for status, _ in found] == [401] * len(found)
    assert not any("csrf" in text or "private" in text or str(shared) in text for _, text in found)
    assert not (shared / "ran").exists()


def test_a_job_of_another_user_is_shown_and_neither_resumed_nor_stopped(shared):
    as_nobody(EVIL_JOB, shared)
    studio = client_of(shared)
    page = studio.get("/resume/evil").text
    assert f"{shared / 'evil'} belongs to nobody, not to you" in page and ">Resume</button>" not in page
    for path in ("/resume/evil", "/stop/evil"):
        answer = studio.post(path, data={"csrf": studio.app.state.studio.listener.csrf})
        assert answer.status_code == 409
    assert not (shared / "ran").exists()


CHOWNED = ["job", "job/config", "job/config/launch.json", "job/buffer/experiences.db", "run.sh", "."]


@pytest.mark.parametrize("place", CHOWNED)
def test_a_part_of_ours_that_belongs_to_another_user_is_not_used(shared, place):
    make_job(shared / "jobs" / "job", state="stopped")
    (shared / "run.sh").write_text("")
    assert ">Resume</button>" in client_of(shared / "jobs").get("/resume/job").text
    place = shared / "jobs" / place
    os.chown(place, NOBODY, NOBODY)
    studio = client_of(shared / "jobs")
    page = studio.get("/resume/job").text
    assert str(place) in page and "belongs to nobody, not to you" in page
    csrf = {"csrf": studio.app.state.studio.listener.csrf}
    assert studio.post("/resume/job", data=csrf).status_code == 409


def test_a_folder_above_that_belongs_to_another_user_is_not_trusted(shared):
    make_job(shared / "above" / "jobs" / "job", state="stopped")
    os.chown(shared / "above", NOBODY, NOBODY)
    assert f"{shared / 'above'} belongs to nobody" in client_of(shared).get("/resume/above/jobs/job").text


def test_a_link_of_another_user_lists_no_job(shared, tmp_path):
    make_job(shared.parent / "elsewhere" / "job")
    as_nobody(LINK, shared.parent / "elsewhere" / "job", shared / "theirs")
    assert "theirs" not in client_of(shared).get("/").text
    (shared / "ours").symlink_to(shared.parent / "elsewhere" / "job")
    assert "ours" in client_of(shared).get("/").text


LINK = """
import os

def main(target, link):
    os.symlink(target, link)
"""


def test_a_log_that_another_user_links_to_our_file_is_not_shown(shared):
    victim = shared.parent / "victim"
    victim.write_text(f"{VICTIM}\n")
    victim.chmod(0o600)
    as_nobody(EVIL_JOB, shared)
    as_nobody(LINK, victim, shared / "evil" / "log" / "trainer.log")
    studio = client_of(shared)
    job = studio.app.state.studio.jobs.get("evil")
    assert logs.follow(job.dir, {}) == {}
    assert VICTIM not in str(live.PageState(job, studio.app.state.studio.store, 0, {}).look())


OWN_PID_FILE = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
file.write(str(os.getpid())); file.flush()
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_that_another_user_links_to_a_program_of_ours_ends_nothing(shared):
    job = make_job(shared / "theirs" / "job", state="running")
    (job.parent / ".locks").mkdir()
    for path in (job.parent, job, *job.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    pid_file = shared.parent / "program.pid"
    program = subprocess.Popen(
        [sys.executable, "-c", OWN_PID_FILE, pid_file], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline() == "held\n"
        os.chown(job.parent / ".locks", NOBODY, NOBODY)
        for side in ("train", "explore"):
            as_nobody(LINK, pid_file, lock_path(JobDir(job), side))
        assert lock_path(JobDir(job), "train").read_text() == str(program.pid)
        studio = client_of(shared)
        assert "Stop the run" not in studio.get("/stop/theirs/job").text
        studio.post("/stop/theirs/job", data={"csrf": studio.app.state.studio.listener.csrf})
        assert program.poll() is None
    finally:
        program.kill()
        program.wait()


SHOW = """
import json, os
from pathlib import Path
from studio_jobs import client_of

PAGES = ["", "run/job", "metrics/job?name=critic/score/mean", "configuration/job", "experiences/job"]

def main(folder):
    os.environ["XDG_CACHE_HOME"] = str(Path.home() / str(os.geteuid()))
    studio = client_of(Path(folder))
    found = {page: studio.get(f"/{page}") for page in [*PAGES, "group/job?id=1"]}
    csrf = studio.app.state.studio.listener.csrf
    refused = studio.post("/resume/job", data={"csrf": csrf})
    shown = {page: [answer.status_code, answer.text] for page, answer in found.items()}
    print(json.dumps([shown, refused.status_code]))
"""


@pytest.mark.parametrize("state", ["stopped", "running"])
def test_another_user_s_studio_shows_what_that_user_may_read_and_writes_nothing(shared, state):
    """A finished job has no WAL, whose index that user could not make; a running one has both."""
    job = make_job(shared / "job", state=state)
    opened = None
    if state == "running":
        from trinity_compat.buffer import open_buffer

        opened = open_buffer(f"sqlite:///{job}/buffer/experiences.db")
        opened.beat("trainer", "trainer", state="running")
    (job / "config" / "run.json").chmod(0o644)
    for path in (job / "buffer").iterdir():
        path.chmod(0o644)
    warm = make_job(shared.parent / "warm" / "job").parent
    home = shared.parent / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    before = sorted(str(path) for path in job.rglob("*"))
    found, refused = json.loads(as_nobody(SHOW, shared, warm=warm, HOME=str(home)))
    assert {page: status for page, (status, _) in found.items()} == dict.fromkeys(found, 200)
    assert f"{job} belongs to root, not to you" in found["run/job"][1]
    assert "answer1x0x0" in found["group/job?id=1"][1] and refused == 409
    assert sorted(str(path) for path in job.rglob("*")) == before
    kept = list((home / str(NOBODY)).rglob("*.db"))
    assert len(kept) == 2  # of experiences, of runs
    for file in kept:
        assert file.stat().st_mode & 0o077 == 0 and file.stat().st_uid == NOBODY
    if opened:
        opened.close()


LIST = """
from pathlib import Path
from trinity_compat.studio.jobs import Jobs

def main(folder):
    print(list(Jobs(Path(folder)).all()))
"""


def test_a_folder_that_is_closed_to_a_user_is_not_listed(shared):
    make_job(shared / "open")
    make_job(shared / "closed")
    (shared / "open" / "config" / "run.json").chmod(0o644)
    (shared / "closed").chmod(0o700)
    (shared / "listed").mkdir(mode=0o744)
    assert as_nobody(LIST, shared) == "['open']\n"


LISTED = """
import os
from pathlib import Path
from trinity_compat.studio import job_files

def main(folder):
    with job_files.folder(Path(folder), listed=True) as handle:
        print(*os.listdir(handle))
"""


def test_only_the_folder_that_is_listed_has_to_be_readable(shared):
    closed = shared / "team"  # may be passed through and not listed, as many homes are
    (closed / "jobs" / "toy").mkdir(parents=True)
    closed.chmod(0o711)
    assert as_nobody(LISTED, closed / "jobs").split() == ["toy"]
