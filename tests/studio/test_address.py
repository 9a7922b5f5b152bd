"""`status` names the studio that has the job."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner
from studio_jobs import make_job

from trinity_compat.cli import cli
from trinity_compat.studio import address


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()


def test_the_studio_over_a_job_is_named_while_it_runs(tmp_path):
    job = make_job(tmp_path / "jobs" / "toy")
    with address.announced("http://127.0.0.1:1/", tmp_path / "jobs"):
        assert address.of_job(job) == "http://127.0.0.1:1/run/toy"
        assert address.of_job(tmp_path) is None
        shown = CliRunner().invoke(cli, ["status", "--once", str(job)]).output
        assert "studio     http://127.0.0.1:1/run/toy" in shown
    assert address.of_job(job) is None
    assert "studio     http" not in CliRunner().invoke(cli, ["status", "--once", str(job)]).output


def test_the_terminal_names_the_address_and_who_may_have_it(tmp_path, monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    shown = CliRunner().invoke(cli, ["studio", str(tmp_path), "--port", "0"]).output
    assert "studio     http://127.0.0.1:" in shown and f"shows {tmp_path};" in shown
    assert "anyone with this address can act as you" in shown


def test_a_studio_that_was_killed_is_not_named(tmp_path):
    with address.announced("http://127.0.0.1:1/", tmp_path):
        (file,) = (tmp_path / "run").rglob("*.json")
        gone = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
        )
        file.rename(file.with_name(f"{gone.stdout.strip()}.json"))
        assert address.of_job(tmp_path / "job") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "x"}', json.dumps({"url": 1, "root": None})])
def test_a_damaged_file_names_nobody(tmp_path, text):
    with address.announced("http://127.0.0.1:1/", tmp_path / "elsewhere"):
        (file,) = (tmp_path / "run").rglob("*.json")
        file.write_text(text)
        assert address.of_job(tmp_path / "job") is None


def test_the_file_is_for_its_user_alone(tmp_path):
    with address.announced("http://127.0.0.1:1/", tmp_path):
        (file,) = (tmp_path / "run").rglob("*.json")
        assert file.parent.stat().st_mode & 0o077 == 0 and file.stat().st_uid == os.getuid()


def test_the_file_goes_when_the_studio_is_asked_to_end(tmp_path):
    words = ["-m", "trinity_compat", "studio", str(tmp_path), "--port", "0"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("studio     http")
        until = time.monotonic() + 120
        while not list((tmp_path / "run").rglob("*.json")):
            assert time.monotonic() < until
            time.sleep(0.1)
        url = json.loads(next((tmp_path / "run").rglob("*.json")).read_text())["url"]
        while _answer(f"{url}alive") is None:
            assert time.monotonic() < until
            time.sleep(0.1)
        process.terminate()
        assert process.wait(120) == 143
        assert list((tmp_path / "run").rglob("*.json")) == []
    finally:
        process.kill()
        process.wait()


def _answer(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_a_folder_that_is_a_link_is_not_written_into(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "run" / f"trinity-compat-studio-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with address.announced("http://127.0.0.1:1/", tmp_path):
        assert list((tmp_path / "theirs").iterdir()) == []
        assert address.of_job(tmp_path / "job") is None
