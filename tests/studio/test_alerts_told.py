"""Alerts of a run: on its page, in the list of runs, in ``status``, and told to a command or an address."""

import http.server
import json
import threading

import pytest
from click.testing import CliRunner
from studio_jobs import client_of, make_job

from trinity_compat.buffer import open_buffer
from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.studio.jobs import Jobs
from trinity_compat.studio.notify import Notifier
from trinity_compat.studio.summaries import Summaries

TEXT = "actor/grad_norm is NaN since step 6"


@pytest.fixture
def folder(tmp_path):
    """A running job whose gradient breaks at its last step, one that goes well, and one that has ended."""
    for name, state in (("bad", "running"), ("well", "running"), ("ended", "failed")):
        buffer = open_buffer(f"sqlite:///{make_job(tmp_path / name, state=state)}/buffer/experiences.db")
        norm = 1.0 if name == "well" else float("nan")
        buffer.log_metrics("trainer", 6, {"critic/score/mean": 0.5, "actor/grad_norm": norm})
        buffer.close()
    return tmp_path


def test_the_pages_name_the_alert_and_count_it_in_the_title(folder):
    studio = client_of(folder)
    page = studio.get("/run/bad").text
    assert f"<li>{TEXT}</li>" in page and "<title>(1) bad" in page
    assert "<title>(1) Runs" in studio.get("/").text  # of the two with an alert, one is running
    assert studio.get("/").text.count(f"<li>{TEXT}</li>") == 2
    well = studio.get("/run/well").text
    assert "<title>well" in well and "NaN" not in well


def test_a_look_brings_the_alert_to_an_open_page(folder):
    events = dict(client_of(folder).get("/look/bad").json()["events"][:1])
    assert events["now"]["alerts"] == [TEXT]


def test_status_prints_the_alert(folder):
    said = CliRunner().invoke(cli, ["status", str(folder / "bad"), "--once"]).output
    assert f"alert      {TEXT}\n" in said
    assert "\nalert " not in CliRunner().invoke(cli, ["status", str(folder / "well"), "--once"]).output


def notifier(folder, target):
    return Notifier(Jobs(folder), Summaries(), target)


def test_a_command_gets_each_alert_of_a_running_job_once(folder, tmp_path):
    script, said = tmp_path / "tell", tmp_path / "said"
    script.write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    script.chmod(0o755)
    watch = notifier(folder, f"{script} --now")
    watch.look()
    watch.look()
    assert said.read_text() == f"--now -- bad: {TEXT}\n"


def test_a_message_that_begins_with_a_dash_is_no_option_of_the_command(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notifier(folder, "mkdir")._tell("--help", "kind", "x")
    assert (tmp_path / "--help: x").is_dir()


def test_an_address_gets_a_post(folder):
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        notifier(folder, f"http://127.0.0.1:{server.server_port}/hook").look()
        server.shutdown()
    assert got == [{"text": f"bad: {TEXT}", "job": "bad", "kind": "not a number"}]


def test_what_cannot_be_told_is_said_in_the_terminal(folder, capsys):
    notifier(folder, "false").look()
    assert f"bad: {TEXT} was not told" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["no-such-command-here --x", "'", " "])
def test_a_command_that_is_not_there_is_refused(folder, target):
    with pytest.raises(UserError, match="--notify"):
        notifier(folder, target)
    answer = CliRunner().invoke(cli, ["studio", str(folder), "--port", "0", "--notify", target])
    assert isinstance(answer.exception, UserError)
