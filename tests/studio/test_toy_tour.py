"""The guided tour of an empty studio: the toy is made and started, once each."""

import os
import signal

import pytest
from start_commands import MADE, Toys
from studio_jobs import client_of, make_job
from test_start_page import post, said, until

from trinity_compat.common.resources import data_path

WAITS = MADE + "; import time; time.sleep(600)"


@pytest.fixture
def toys(monkeypatch):
    found = Toys(monkeypatch)
    yield found
    for process in found.started():
        os.killpg(process, signal.SIGKILL)


@pytest.fixture
def studio(tmp_path, toys):
    client = client_of(tmp_path)
    yield client
    client.app.state.drafts.close()
    client.app.state.toy.close()


def made(studio):
    assert post(studio, "/tour").headers["location"] == "/tour"
    until(lambda: not studio.app.state.toy.process.lives)
    return studio.get("/tour").text


def test_an_empty_studio_offers_the_toy_and_others_do_not(studio, tmp_path):
    assert "Make the toy" in studio.get("/").text
    assert "Make the toy" not in studio.get("/?words=x").text
    assert "Make the toy" not in client_of(tmp_path, read_only=True).get("/").text
    make_job(tmp_path / "job")
    assert "Make the toy" not in client_of(tmp_path).get("/").text


def test_it_is_made_and_started_once_and_its_run_s_page_opens(studio, toys, tmp_path):
    assert "Start it" not in studio.get("/tour").text and toys.made == []
    assert "Start it" in made(studio)
    assert toys.made == [("trinity_compat", "toy", str(tmp_path / "toy"))]
    address = post(studio, "/tour/start").headers["location"]
    assert post(studio, "/tour/start").headers["location"] == address
    (record,) = toys.asked
    assert record["script"] == str(data_path("examples/verl_scripts/run_toy_grpo.sh"))
    assert record["options"]["job"] == str(tmp_path / "toy-grpo")
    assert studio.app.state.toy.draft.plan.environ["TOY_DIR"] == str(tmp_path / "toy")
    until(lambda: studio.get(address).status_code == 303)
    assert studio.get(address).headers["location"] == "/run/toy-grpo"


def test_a_second_click_makes_no_second_toy(studio, toys):
    toys.make = WAITS
    for _ in range(2):
        assert post(studio, "/tour").status_code == 303
    until(lambda: "300 steps" in studio.get("/tour").text)
    assert len(toys.made) == 1 and "Start it" not in studio.get("/tour").text
    assert post(studio, "/tour/start").status_code == 409 and toys.asked == []
    studio.app.state.toy.close()
    assert studio.app.state.toy.process.result.code == -signal.SIGTERM


def test_a_toy_that_is_not_made_says_why_and_may_be_made_again(studio, toys):
    toys.make = "import sys; print('error: torch is not <b>installed</b>', file=sys.stderr); sys.exit(2)"
    page = made(studio)
    assert (
        "exit code 2" in said(page)
        and "torch is not <b>installed</b>" in said(page)
        and "<b>installed" not in page
    )
    assert post(studio, "/tour/start").status_code == 409
    toys.make = MADE
    assert "Start it" in made(studio)


@pytest.mark.parametrize("what", ["the folder", "the toy", "a link"])
def test_no_toy_is_made_where_others_could_change_it(studio, toys, tmp_path, what):
    if what == "the folder":
        tmp_path.chmod(0o777)
    elif what == "the toy":
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy").chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "toy").symlink_to(tmp_path / "elsewhere")
    answer = post(studio, "/tour")
    assert answer.status_code == 409 and "The studio makes no toy there" in answer.text and toys.made == []
    tmp_path.chmod(0o700)


def test_a_studio_that_is_read_only_makes_and_starts_none(tmp_path, toys):
    studio = client_of(tmp_path, read_only=True)
    assert studio.get("/tour").status_code == 403
    assert [post(studio, path).status_code for path in ("/tour", "/tour/start")] == [403, 403]
    assert toys.made == toys.asked == []


@pytest.mark.verl
def test_the_real_commands_make_it_and_take_its_launch(tmp_path):
    """The toy is there already, as made by this command before; the dry run starts nothing."""
    from toys import made_toy  # it imports torch

    made_toy(tmp_path / "toy")
    studio = client_of(tmp_path)
    assert "Start it" in made(studio)
    toy = studio.app.state.toy
    draft = studio.app.state.drafts.add(toy.plan(studio.app.state.studio.jobs))
    until(lambda: not draft.check.dry_run.lives)
    assert draft.check.problem == "" and draft.check.launches()
    studio.app.state.drafts.close()
