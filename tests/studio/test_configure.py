"""The page that makes a launch from nothing."""

import html

import pytest
from published_forms import FORMS
from studio_jobs import stranger_of

from trinity_compat.translate.form import FIELDS, made_from


@pytest.mark.usefixtures("data")
def test_the_page_is_linked_and_shows_a_form_that_runs(studio):
    assert 'href="/configure"' in studio.get("/").text
    page = html.unescape(studio.get("/configure").text)
    assert "A run: nothing is missing." in page
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
        "It would not run here: 1 problem." in page
        and 'href="#f-gpus">GPUs</a>: 12 are not whole nodes' in page
    )
    assert 'name="gpus" aria-describedby="h-gpus" value="12"' in page and 'aria-invalid="true"' in page
    assert "Download" not in page
    answer = studio.get("/configure/file/yaml?gpus=12")
    assert answer.status_code == 400 and "12 are not whole nodes of 8" in answer.text


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("field", "text"),
    [("model", "/nope/model"), ("train_files", "/nope.parquet"), ("val_files", "~/no.parquet")],
)
def test_a_path_that_does_not_exist_here_is_red_and_the_files_are_there(studio, field, text):
    page = studio.get("/configure", params={"test_first": "on", field: text}).text
    assert "It would not run here: 1 problem." in page and "trains it" not in page and "Download" in page
    assert f'data-wrong="{field}"' in page and f"{text} does not exist on this machine" in page


@pytest.mark.usefixtures("data")
def test_names_of_a_hub_urls_and_open_variables_are_not_looked_for(studio):
    given = {"model": "org/model", "train_files": "hdfs://a/b.parquet\n$NO_SUCH_NAME/t.parquet"}
    assert "does not exist" not in studio.get("/configure", params=given).text


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
