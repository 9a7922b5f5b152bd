"""The page Start: planned, checked and started once, with what is the user's own, by nobody else."""

import html
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from start_commands import FULL_DISK, NO_DATA, Commands
from studio_jobs import SECRET, client_of, make_job

from trinity_compat.common.bounded_process import BoundedProcess
from trinity_compat.common.process_limits import ProcessLimits

SCRIPT = "#!/bin/bash\npython3 -m verl.trainer.main_ppo data.train_files=$DATA\n"


@pytest.fixture
def commands(monkeypatch):
    return Commands(monkeypatch)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "run.sh").write_text(SCRIPT)
    return tmp_path / "jobs"


@pytest.fixture
def studio(root, commands):
    client = client_of(root)
    yield client
    drafts = client.app.state.drafts
    for draft in list(drafts._drafts.values()):
        if draft.run and draft.run.lives:
            os.killpg(draft.run.pid, signal.SIGKILL)
            until(lambda run=draft.run: not run.lives)
    drafts.close()


def until(true):
    """Waits as long as the test may take."""
    while not true():
        time.sleep(0.02)


def post(studio, path, **fields):
    return studio.post(path, data={"csrf": studio.app.state.studio.listener.csrf, **fields})


def checked(studio, **fields):
    """The address of a draft whose checks have ended."""
    answer = post(studio, "/start", check="1", **({"source": "run.sh"} | fields))
    assert answer.status_code == 303, said(answer.text)
    until(lambda: not draft_of(studio, answer).check.lives)
    return answer.headers["location"]


def draft_of(studio, answer):
    address = answer if isinstance(answer, str) else answer.headers["location"]
    return studio.app.state.drafts.get(address.rpartition("/")[2])


def said(page):
    return html.unescape(
        " ".join(re.findall(r'<(?:p|pre|li) class="(?:alert|error)"[^>]*>(.*?)</(?:p|li)', page, re.S))
    )


def refused(studio, **fields):
    """The page's words for fields that are not taken."""
    answer = post(studio, "/start", check="1", **({"source": "run.sh"} | fields))
    assert answer.status_code == 400 and not studio.app.state.drafts._drafts
    return said(answer.text)


# -- the draft's page


def test_it_shows_command_environment_doctor_and_dry_run_before_anything_starts(studio, root, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    page = studio.get(checked(studio, environment="DATA=/d\nunset HF_HOME", name="grpo")).text
    text = html.unescape(page)
    assert f"cd {root}\nenv -u HF_HOME DATA=/d " in text
    assert re.search(r"<code>DATA</code></th><td><code>/d</code></td><td>changed here", page)
    assert re.search(r"<code>HF_HOME</code></th><td><span class=\"dim\">not set", page)
    assert re.search(r"<code>WANDB_API_KEY</code></th><td><code>\*\*\*</code>", page) and SECRET not in page
    assert "9.0 GiB free" in page and "Ready: nothing is missing." in page
    assert f"job {root}/grpo" in text and "project: toy" in page and "a note" in page
    assert '<button class="primary">Start</button>' in page
    assert not (root / "grpo").exists() and not list(root.glob(".trinity-compat-check-*"))


def test_blockers_stand_first_and_switch_start_off_but_for_a_script_that_makes_what_is_missing(
    studio, commands, root
):
    commands.doctor, commands.dry_run = FULL_DISK, NO_DATA.replace("a note", "run.sh:1: warning TW001 slow")
    address = checked(studio, name="grpo")
    page = html.unescape(studio.get(address).text)
    assert "2 points would stop this run." in page
    assert re.search(
        r'class="error">run.sh:2: /d.parquet does not exist <span class="hint">→ make it', page
    ) and re.search(r'class="error">disk: 1.0 GiB free <span class="hint">→ free some space', page)
    assert page.index("/d.parquet") < page.index("warning TW001") < page.index(f"job {root}/grpo")
    assert '<button class="primary" disabled>Start</button>' in page
    assert "Start all the same" in page and post(studio, address).headers["location"] == address
    assert draft_of(studio, address).run


def test_what_is_only_to_look_at_leaves_start_on(studio, commands):
    commands.dry_run = commands.dry_run.replace("a note", "profile cpu: no accelerator here")
    page = studio.get(checked(studio, name="grpo")).text
    assert "Ready, with 1 point to look at." in page and '<button class="primary">Start</button>' in page


def test_the_command_is_the_one_that_run_takes(root, monkeypatch):
    studio = client_of(root)
    from trinity_compat.studio.start_plan import StartFields, plan_of

    fields = StartFields(
        source="run.sh", name="a/b", settings="trainer.nnodes=1\n\nmode=both", mode="colocate",
        arguments="x 'y z'", profiles="cpu", device="cpu", release="0.3.0",
    )  # fmt: skip
    plan = plan_of(fields, studio.app.state.studio.jobs)
    words = ["--profile", "cpu", "--set", "trainer.nnodes=1", "--set", "mode=both", "--mode", "colocate"]
    words += ["--device", "cpu", "--verl-version", "0.3.0", "--job", str(root / "a/b"), "--", "x", "y z"]
    assert plan.command() == [
        sys.executable,
        "-P",
        "-m",
        "trinity_compat",
        "run",
        str(root / "run.sh"),
        *words,
    ]


def test_a_launch_that_is_refused_shows_why_and_cannot_be_started(studio, commands, root):
    commands.dry_run = (
        "import sys; print('error: run.sh:3: no such key', sys.argv[1], file=sys.stderr); sys.exit(2)"
    )
    address = checked(studio, name="grpo")
    page = studio.get(address).text
    assert (
        said(page).strip().startswith(f"run.sh:3: no such key {root}/grpo")
        and '<button class="primary" disabled>Start</button>' in page
        and "Start all the same" not in page
    )
    answer = post(studio, address)
    assert answer.status_code == 409 and draft_of(studio, address).run is None


def test_a_start_goes_to_the_run_s_page_which_has_the_launcher_s_lines(studio, root):
    address = checked(studio, name="grpo")
    assert post(studio, address).headers["location"] == address
    until(lambda: studio.get(address).status_code == 303)
    assert studio.get(address).headers["location"] == "/run/grpo"
    assert 'data-run="/run/grpo"' in studio.get(f"{address}?part=1").text
    assert "makes the job" in draft_of(studio, address).run.output()
    assert studio.get("/run/grpo").status_code == 200


def test_a_second_click_does_not_start_a_second_run(studio, commands):
    address = checked(studio, name="grpo")
    commands.run = "import time; print('once', flush=True); time.sleep(600)"
    post(studio, address)
    pid = draft_of(studio, address).run.pid
    runs = studio.get("/").text  # which has it before there is a job
    assert f'<a href="{address}">grpo</a>' in runs and "is being launched" in runs
    assert f'href=\\"{address}\\"' in studio.get("/?table=1&has=x").text
    assert post(studio, address).status_code == 303 and draft_of(studio, address).run.pid == pid
    # Neither does another form of the same name while the first has no job yet.
    other = checked(studio, name="grpo")
    answer = post(studio, other)
    assert (
        answer.status_code == 409
        and "is starting" in said(answer.text)
        and draft_of(studio, other).run is None
    )


def test_a_click_on_an_old_page_leads_to_the_run(studio):
    address = checked(studio, name="grpo")
    post(studio, address)
    until(lambda: studio.get(address).status_code == 303)
    pid = draft_of(studio, address).run.pid
    assert post(studio, address).headers["location"] == "/run/grpo"
    assert draft_of(studio, address).run.pid == pid


def test_a_launch_that_ends_with_2_says_so_and_may_be_changed(studio, commands, root):
    address = checked(studio, name="grpo", environment=f"API_KEY={SECRET}\nDATA=1")
    commands.run = "import sys; print('error: no GPU here', file=sys.stderr); sys.exit(2)"
    post(studio, address)
    until(lambda: not draft_of(studio, address).run.lives)
    page = studio.get(address).text
    assert "refused (exit code 2): nothing was started" in said(page) and "error: no GPU here" in page
    form = html.unescape(studio.get(f"/start?draft={address.rpartition('/')[2]}").text)
    assert "API_KEY=***" in form and SECRET not in form
    again = checked(studio, name="grpo", draft=address.rpartition("/")[2], environment="API_KEY=***\nDATA=2")
    environ = draft_of(studio, again).plan.environ
    assert environ["API_KEY"] == SECRET and environ["DATA"] == "2"


def test_a_text_of_another_page_is_kept_for_this_user_and_started(studio, root, commands):
    page = post(studio, "/start", text="a\r\nb", file_name="my.sh").text
    assert "a\nb</textarea>" in page and 'value="my"' in page and not commands.asked
    address = checked(studio, source="", text=SCRIPT.replace("\n", "\r\n"), file_name="my.sh")
    source = draft_of(studio, address).plan.source
    assert source.read_text() == SCRIPT and source.name == "my.sh"
    assert source.stat().st_mode & 0o077 == 0 and source.parent.stat().st_mode & 0o077 == 0
    assert draft_of(studio, address).plan.folder == root


@pytest.mark.parametrize("name", ["../my.sh", "my.py", "-x.sh", "a/b.sh"])
def test_a_text_s_name_is_a_file_s(studio, name):
    assert "is not the name of a script" in refused(studio, source="", text=SCRIPT, file_name=name)


# -- who, and with what


def test_a_studio_that_is_read_only_neither_offers_nor_does_it(root, commands):
    studio = client_of(root, read_only=True)
    for path in ("/", "/configure", "/translate"):
        assert "/start" not in studio.get(path).text and "Start…" not in studio.get(path).text
    assert "/start" in client_of(root).get("/").text
    for path in ("/start", "/start/abc"):
        assert studio.get(path).status_code == 403
        assert post(studio, path, source="run.sh", check="1").status_code == 403
    assert commands.asked == []


@pytest.mark.parametrize("how", ["no secret", "another site", "no cookie"])
def test_only_the_studio_s_own_page_starts(studio, how):
    address = checked(studio)
    before = dict(studio.app.state.drafts._drafts)
    csrf = "" if how == "no secret" else studio.app.state.studio.listener.csrf
    headers = {"sec-fetch-site": "cross-site"} if how == "another site" else {}
    if how == "no cookie":
        studio.cookies.clear()
    for path in (address, "/start"):
        answer = studio.post(path, data={"csrf": csrf, "source": "run.sh", "check": "1"}, headers=headers)
        assert answer.status_code in (401, 403)
    (draft,) = before.values()
    assert draft.run is None and studio.app.state.drafts._drafts == before


@pytest.mark.parametrize("what", ["run.sh", ".", "everybody-s"])
def test_what_others_could_have_changed_is_not_started(studio, root, what):
    (root / "everybody-s").mkdir()
    (root / what).chmod(0o777)
    fields = {"folder": str(root / "everybody-s")} if what == "everybody-s" else {}
    assert f"{(root / what).resolve()} can be written by other users" in refused(studio, **fields)


def test_what_others_can_change_after_the_check_is_not_started(studio, root):
    address = checked(studio)
    (root / "run.sh").chmod(0o666)
    answer = post(studio, address)
    assert answer.status_code == 409 and "can be written by other users" in said(answer.text)
    assert draft_of(studio, address).run is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_another_user_s_script_is_not_started(studio, root):
    os.chown(root / "run.sh", 12345, 12345)
    assert "belongs to user 12345, not to you" in refused(studio)


def test_a_link_is_not_offered_nor_taken(studio, root, tmp_path):
    (tmp_path / "elsewhere.sh").write_text(SCRIPT)
    (root / "link.sh").symlink_to(tmp_path / "elsewhere.sh")
    (root / "folder").symlink_to(tmp_path)
    page = studio.get("/start").text
    assert "run.sh" in page and "link.sh" not in page and "elsewhere.sh" not in page
    for source in ("link.sh", "folder/elsewhere.sh", "../elsewhere.sh"):
        assert "has no script" in refused(studio, source=source)


def test_a_script_elsewhere_is_taken_by_its_path(studio, tmp_path):
    (tmp_path / "mine.sh").write_text(SCRIPT)
    address = checked(studio, source=str(tmp_path / "mine.sh"))
    assert draft_of(studio, address).plan.source == tmp_path / "mine.sh"
    assert draft_of(studio, address).plan.name == "mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [("none.sh", "does not exist"), ("a.py", "is not a file that ends in"), (".", "is not a file")],
)
def test_a_path_that_is_no_script_is_refused(studio, tmp_path, name, words):
    (tmp_path / "a.py").write_text(SCRIPT)
    assert words in refused(studio, source=str(tmp_path / name))


def test_a_script_elsewhere_that_others_can_write_is_refused(studio, tmp_path):
    (tmp_path / "mine.sh").write_text(SCRIPT)
    (tmp_path / "mine.sh").chmod(0o666)
    assert "can be written by other users" in refused(studio, source=str(tmp_path / "mine.sh"))


def test_a_script_that_has_changed_since_is_checked_again(studio, root):
    address = checked(studio)
    (root / "run.sh").write_text(SCRIPT + "rm -r x\n")
    answer = post(studio, address)
    assert answer.status_code == 409 and "has changed: check it again" in said(answer.text)


@pytest.mark.parametrize("taken", ["job", "a folder", "a link"])
def test_a_name_that_is_taken_is_refused(studio, root, taken):
    if taken == "job":
        make_job(root / "grpo")
    elif taken == "a folder":
        (root / "grpo").mkdir()
    else:
        (root / "grpo").symlink_to("/nowhere")
    assert "exists: give the run another name" in refused(studio, name="grpo")
    address = checked(studio, name="")
    assert draft_of(studio, address).plan.name == "run"


BAD = [
    ({"name": "../out"}, "is not a folder below"),
    ({"name": "/tmp/x"}, "is not a folder below"),
    ({"name": ".hidden"}, "is not a folder below"),
    ({"name": "a/b/c/d/e/f"}, "is not a folder below"),
    ({"folder": "jobs"}, "is not the absolute path of a folder here"),
    ({"folder": "/nowhere"}, "is not the absolute path of a folder here"),
    ({"mode": "--job"}, "is not one of both"),
    ({"device": "tpu"}, "is not one of cpu"),
    ({"release": "1.2"}, "is not one of 0.2.0"),
    ({"arguments": "'x"}, "No closing quotation"),
    ({"settings": "--dry-run"}, "is not NAME=VALUE"),
    ({"settings": "api_key=***"}, "*** stands for a secret"),
    ({"profiles": "--job"}, "is not the name of a profile"),
    ({"environment": "PATH"}, "is neither NAME=VALUE nor unset NAME"),
    ({"environment": "A B=1"}, "is neither NAME=VALUE nor unset NAME"),
    ({"environment": "A=1\0"}, "null byte"),
    ({"source": ""}, "choose a script"),
]


@pytest.mark.parametrize(("fields", "words"), BAD)
def test_a_field_that_is_wrong_is_named(studio, fields, words):
    assert words in refused(studio, **fields)


def test_a_studio_of_one_job_starts_no_other(tmp_path, commands):
    make_job(tmp_path / "job")
    (tmp_path / "job" / "run.sh").write_text(SCRIPT)
    assert "shows one job" in refused(client_of(tmp_path / "job"))


def test_a_draft_that_is_not_known_is_said_so(studio):
    answer = studio.get("/start/nothing")
    assert answer.status_code == 404 and "Begin again" in answer.text


def test_many_checks_at_once_are_refused(studio, commands):
    commands.dry_run = "import time; time.sleep(600)"
    made = [post(studio, "/start", source="run.sh", check="1") for _ in range(3)]
    assert [each.status_code for each in made] == [303, 303, 400] and "checks are at work" in said(
        made[2].text
    )
    processes = [draft_of(studio, each).check.dry_run for each in made[:2]]
    assert "cannot" not in post(studio, made[0].headers["location"]).text
    assert draft_of(studio, made[0]).run is None
    studio.app.state.drafts.close()
    assert all(process.result.code == -signal.SIGTERM for process in processes)


# -- limits of the checks


def bounded(code, **limits):
    process = BoundedProcess(
        [sys.executable, "-c", code], Path("/"), os.environ, ProcessLimits(**{"wall_s": 300} | limits)
    )
    until(lambda: not process.lives)
    return process.result


def test_a_command_s_output_and_code_are_its_result():
    found = bounded("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (found.code, found.out, found.err, found.limit) == (3, "out\n", "err\n", "")


# A command gets its limits after its start.
AFTER_LIMIT = """
import resource, sys, time
while resource.getrlimit(resource.RLIMIT_{})[0] < 0:
    time.sleep(0.01)
"""


def test_a_command_is_ended_at_its_limits():
    assert bounded("import time; time.sleep(600)", wall_s=0.1).limit == "it took more than 0 s"
    assert "MemoryError" in bounded(AFTER_LIMIT.format("DATA") + "b'x' * (3 << 30)", memory=1 << 30).err
    assert (
        "1 MiB"
        in bounded(AFTER_LIMIT.format("FSIZE") + "sys.stdout.write('x' * (9 << 20))", file=1 << 20).limit
    )


LEAVES = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
"""


def test_nothing_of_a_command_stays(tmp_path):
    pid = bounded(LEAVES).out
    until(lambda: not Path(f"/proc/{pid.strip()}/cmdline").exists() or _is_dead(pid.strip()))


def _is_dead(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
