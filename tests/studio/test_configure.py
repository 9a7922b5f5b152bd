"""The page that makes a launch from nothing."""

import html
import re
import time
from pathlib import Path

import pytest
from published_forms import FORMS
from start_commands import NO_DATA, PLANNED, Commands
from studio_jobs import stranger_of

from trinity_compat.translate.form import FIELDS, made_from


@pytest.mark.usefixtures("data")
def test_the_page_is_linked_and_shows_a_form_that_runs(studio):
    assert 'href="/configure"' in studio.get("/").text
    page = html.unescape(studio.get("/configure").text)
    assert "Start tries them in a dry run." in page and 'class="state good"' not in page
    for field in FIELDS.values():
        assert f'for="f-{field.name}">{field.label}<' in page
        assert f'id="f-{field.name}"' in page and field.help in page


@pytest.mark.parametrize("name", FORMS)
def test_the_files_are_those_of_the_form(studio, name):
    made = made_from(FORMS[name])
    given = {"test_first": "on"} | FORMS[name]  # a browser sends a flag that is on
    assert studio.get("/configure/file/yaml", params=given).text == made.yaml
    answer = studio.get("/configure/file/script", params=given)
    assert answer.text == made.script
    assert answer.headers["content-disposition"] == 'attachment; filename="run.sh"'
    page = studio.get("/configure", params=given).text
    assert html.unescape(page).count(made.yaml.strip()) == 1 and made.script in html.unescape(page)


def test_a_flag_that_a_browser_leaves_out_is_off(studio):
    assert "val_before_train=False" in studio.get("/configure/file/script?model=m").text
    assert "val_before_train" not in studio.get("/configure/file/script").text


def test_a_problem_stands_at_its_field_and_there_is_no_file(studio):
    page = studio.get("/configure?gpus=12").text
    assert (
        "It would not run: 1 problem." in page and 'href="#f-gpus">GPUs</a>: 12 are not whole nodes' in page
    )
    assert 'name="gpus" aria-describedby="h-gpus" value="12"' in page and 'aria-invalid="true"' in page
    assert "Download" not in page
    answer = studio.get("/configure/file/yaml?gpus=12")
    assert answer.status_code == 400 and "12 are not whole nodes of 8" in answer.text


def post(studio, path, **given):
    return studio.post(path, data={"csrf": studio.app.state.studio.listener.csrf, **given})


def checked(studio):
    page = post(studio, "/configure/check", text="mode: both\n").text
    for _ in range(600):
        if 'data-busy="1"' not in page:
            return html.unescape(page)
        time.sleep(0.1)
        page = studio.get(re.search('data-part="([^"]*)"', page)[1]).text
    raise AssertionError(page)


@pytest.mark.parametrize(
    ("dry_run", "state", "said"),
    [
        (PLANNED, "good", "takes it: nothing is missing."),
        (NO_DATA, "warn", "a run on this machine lacks 1 thing."),
        (PLANNED.replace("a note", "profile cpu: slow"), "warn", "takes it, with 1 point to look at."),
        (
            "import sys; print('error: bad\\n  hint: mend', file=sys.stderr); sys.exit(2)",
            "bad",
            "refuses it.",
        ),
    ],
)
def test_green_is_a_dry_run_that_ends_with_0(studio, monkeypatch, dry_run, state, said):
    commands = Commands(monkeypatch)
    commands.dry_run = dry_run
    page = checked(studio)
    assert f'class="state {state}"' in page and said in page
    assert ("bad <span" in page and "→ mend" in page) == (state == "bad")
    (record,) = commands.asked
    assert record["options"]["dry_run"] and record["yaml"].endswith("/trinity.yaml")
    assert not Path(record["yaml"]).exists()  # nor anything else of the check


def test_a_later_text_ends_the_dry_run_before_it(studio, monkeypatch):
    commands = Commands(monkeypatch)
    commands.dry_run = "import time; time.sleep(600)"
    address = re.search('data-part="([^"]*)"', post(studio, "/configure/check", text="a: 1").text)[1]
    assert 'data-busy="1"' in studio.get(address).text
    commands.dry_run = PLANNED
    checked(studio)
    assert 'data-busy=""' in studio.get(address).text
    assert studio.get("/configure/check/none").status_code == 404


def test_a_form_has_the_figures_of_advise(studio):
    texts = {"sharing": "split", "rollout_gpus": "4", "sync_offset": "1"}
    page = html.unescape(post(studio, "/configure/figures", text=made_from(texts).yaml).text)
    assert "explorer 4 (4 engines), trainer 4" in page and "at most 1" in page and "trainer waits" in page
    page = html.unescape(post(studio, "/configure/figures", text=made_from({"algorithm": "sft"}).yaml).text)
    assert "No prediction: this launch generates no answers" in page


def test_a_script_is_started_with_the_settings_that_it_lacks(studio):
    given = {"configured": "script", "sharing": "split", "sync_offset": "1"}
    page = html.unescape(studio.get("/start", params=given).text)
    assert "explorer.rollout_model.engine_num=4\nsynchronizer.sync_offset=1</textarea>" in page
    page = html.unescape(studio.get("/configure", params=given).text)
    assert "trinity-compat translate run.sh --rollout-gpus 4 --sync-offset 1" in page


def test_a_part_is_the_checks_and_the_files_alone(studio):
    part = studio.get("/configure?part=1&epochs=3").text
    assert 'id="form"' not in part and "<html" not in part and "trainer.total_epochs=3" in part


def test_another_file_is_not_found(studio):
    assert studio.get("/configure/file/passwd").status_code == 404


@pytest.mark.parametrize("address", ["/configure", "/configure/file/yaml"])
def test_a_stranger_gets_nothing(folder, address):
    assert stranger_of(folder).get(address).status_code == 401


def test_a_hostile_text_stays_text(studio):
    evil = "</textarea><script>window.stolen=1</script>\"'{{7*7}}"
    page = studio.get("/configure", params={"model": evil, "settings": evil, "gpus": evil}).text
    assert "<script>window" not in page and html.escape(evil[:12]) in page and ">49<" not in page
