"""Alerts of a run: on its page, in the list of runs and in ``status``."""

import pytest
from click.testing import CliRunner
from studio_jobs import client_of, make_job

from trinity_compat.buffer import open_buffer
from trinity_compat.cli import cli

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
    assert f"<li>{TEXT}" in page and "<title>(1) bad" in page
    assert (
        "One thing is wrong, since step 6" in page and "Healthy after step 6" in studio.get("/run/well").text
    )
    links = ("/run/bad?show=actor/grad_norm&amp;at=6", "/groups/bad?step=6")
    assert all(f'href="{link}"' in text for link in links for text in (page, studio.get("/").text))
    assert "<title>(1) Runs" in studio.get("/").text  # of the two with an alert, one is running
    assert studio.get("/").text.count(f"<li>{TEXT}") == 2
    well = studio.get("/run/well").text
    assert "<title>well" in well and "NaN" not in well


def test_a_look_brings_the_alert_to_an_open_page(folder):
    events = dict(client_of(folder).get("/look/bad").json()["events"][:1])
    assert events["now"]["alerts"] == [{"text": TEXT, "metric": "actor/grad_norm", "since": 6}]


def test_status_prints_the_alert(folder):
    said = CliRunner().invoke(cli, ["status", str(folder / "bad"), "--once"]).output
    assert f"alert      {TEXT}\n" in said
    assert "\nalert " not in CliRunner().invoke(cli, ["status", str(folder / "well"), "--once"]).output
