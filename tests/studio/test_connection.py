"""Requests of an open page, the studio below a proxy's path, and caching by browsers."""

import re

import pytest
from click.testing import CliRunner
from studio_jobs import STEPS, client_of, make_job, stranger_of, train_step

from trinity_compat.buffer import open_buffer
from trinity_compat.cli import cli

BASE = "/user/me/studio"


def look(studio, query=""):
    found = studio.get(f"/look/job?{query}").json()
    return [(name, data) for name, data in found["events"]], found["next"], found["wait_s"]


def test_each_look_has_what_is_new_since_the_one_before(tmp_path):
    root = make_job(tmp_path / "job", state="running")
    studio = client_of(tmp_path)
    first, following, wait_s = look(studio, "history=1")
    assert wait_s == 1
    assert [name for name, _ in first] == ["now", "rows", "log", "log"]
    assert [name for name, _ in look(studio, following)[0]] == ["now"]
    train_step(open_buffer(f"sqlite:///{root}/buffer/experiences.db"), STEPS + 1)
    with (root / "log" / "trainer.log").open("a") as log:
        log.write("another line\n")
    events, following, _ = look(studio, following)
    told = dict(events)
    assert {step for step, _ in told["rows"]["rows"]} == {STEPS + 1}
    assert told["log"] == ["trainer", "another line\n"]
    assert [name for name, _ in look(studio, following)[0]] == ["now"]


def test_a_run_that_has_ended_is_looked_at_seldom(tmp_path):
    make_job(tmp_path / "job")
    assert look(client_of(tmp_path))[2] == 5


def test_a_run_whose_database_is_gone_is_looked_at_on_and_says_so(tmp_path):
    root = make_job(tmp_path / "job")
    studio = client_of(tmp_path)
    (root / "buffer").rename(root / "elsewhere")
    events, _, wait_s = look(studio, "last=trainer:2:3&log=trainer:5")
    assert events[0][0] == "problem" and wait_s == 1


def links(text):
    return re.findall(r'(?:href|src|action)="([^"#?][^"]*)"', text)


def test_every_address_of_a_page_is_below_the_path(tmp_path):
    make_job(tmp_path / "job")
    make_job(tmp_path / "stopped", state="stopped")
    studio = client_of(tmp_path, base=BASE)
    pages = (
        "/",
        "/run/job",
        "/experiences/job",
        "/group/job?id=1",
        "/configuration/job",
        "/compare?a=job&b=job",
    )
    for path in (*pages, "/stop/job", "/resume/stopped", "/nope"):
        found = links(studio.get(BASE + path).text)
        assert len(found) > 5 and all(link.startswith(f"{BASE}/") for link in found), path
    assert all(link.startswith(f"{BASE}/") for link in links(stranger_of(tmp_path, base=BASE).get("/").text))


@pytest.mark.parametrize("given", [BASE, ""])
def test_a_proxy_may_leave_the_path_or_take_it_away(tmp_path, given):
    make_job(tmp_path / "job")
    stranger = stranger_of(tmp_path, base=BASE)
    token = stranger.app.state.studio.listener.token
    answer = stranger.get(f"{given}/run/job?token={token}", headers={"host": "hub.example"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{BASE}/run/job")
    assert f"Path={BASE};" in answer.headers["set-cookie"]
    cookie = answer.headers["set-cookie"].partition(";")[0]
    for path in ("/", "/run/job", "/static/run.js", "/alive"):
        kept = stranger.get(given + path, headers={"host": "hub.example", "cookie": cookie})
        assert kept.status_code in (200, 204)
    if given:
        assert stranger.get(given, headers={"cookie": cookie}).status_code == 200


def test_a_form_comes_back_below_the_path_though_the_proxy_changes_the_host(tmp_path):
    make_job(tmp_path / "job")
    studio = client_of(tmp_path, base=BASE)
    form = {"csrf": studio.app.state.studio.listener.csrf, "name": "kept", "metric": "a", "run": "job"}
    sent = {"origin": "https://hub.example", "sec-fetch-site": "same-origin"}
    answer = studio.post(f"{BASE}/panels", data=form, headers=sent)
    assert answer.headers["location"].startswith(f"{BASE}/compare?run=job")


def test_without_a_path_only_the_machine_s_own_names_are_answered(tmp_path):
    assert stranger_of(tmp_path).get("/", headers={"host": "hub.example"}).status_code == 421


@pytest.mark.parametrize("path", ["studio", "/a b", "https://hub.example/x", "/x?y", "//"])
def test_a_path_that_is_none_is_refused(tmp_path, path):
    answer = CliRunner().invoke(cli, ["studio", str(tmp_path), "--root-path", path])
    assert answer.exit_code == 2 and "is not a path such as" in answer.output


def test_files_are_compressed_and_kept_while_they_are_the_same(tmp_path):
    studio = client_of(tmp_path)
    page = studio.get("/")
    named = re.search(r'src="(/static/runs\.js\?v=[0-9a-f]+)"', page.text)[1]
    found = studio.get(named)
    assert "immutable" in found.headers["cache-control"] and found.headers["content-encoding"] == "gzip"
    old = studio.get("/static/runs.js?v=0")
    assert old.headers["cache-control"] == "no-cache" and old.text == found.text
    again = studio.get("/static/runs.js", headers={"if-none-match": old.headers["etag"]})
    assert again.status_code == 304
    assert page.headers["cache-control"] == "no-store"
    plain = studio.get(named, headers={"accept-encoding": "identity"})
    assert plain.text == found.text and "content-encoding" not in plain.headers
