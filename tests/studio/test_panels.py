"""Panels of a folder: saved with the form's secret, never by a read-only studio; hostile files ignored."""

import json
import re
import stat

import pytest
from studio_jobs import EVIL, client_of, make_job

from trinity_compat.common.errors import UserError
from trinity_compat.studio.panels import FILE, Panel, Panels

RUNS = "/overlay?run=ours"


@pytest.fixture
def root(tmp_path):
    make_job(tmp_path / "ours", evil=False, steps=1)
    return tmp_path


def post(studio, **form):
    return studio.post("/panels", data={"csrf": studio.app.state.studio.listener.csrf, "run": "ours"} | form)


def test_a_saved_panel_is_a_link_for_any_runs_of_the_folder(root):
    answer = post(client_of(root), name=" lengths ", metric=["a/b", "c&d"], view="x=time")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/compare?run=ours&metric=a%2Fb&metric=c%26d&x=time"
    page = client_of(root).get(RUNS).text
    assert 'href="/compare?run=ours&amp;metric=a/b&amp;metric=c%26d&amp;x=time">lengths</a>' in page.replace(
        "%2F", "/"
    )
    path = root / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Panels(root).read() == ([Panel("lengths", ("a/b", "c&d"), "x=time")], "")
    assert [one.name for one in root.iterdir() if one.name.endswith(".part")] == []


def test_a_panel_of_the_same_name_is_replaced_and_a_removed_one_is_gone(root):
    studio = client_of(root)
    for name, metric in (("x", "a"), ("y", "b"), ("x", "c")):
        post(studio, name=name, metric=metric)
    assert Panels(root).read()[0] == [Panel("y", ("b",)), Panel("x", ("c",))]
    assert post(studio, remove="y").status_code == 303
    assert Panels(root).read()[0] == [Panel("x", ("c",))]


def test_without_the_form_s_secret_nothing_is_saved(root):
    studio = client_of(root)
    for csrf in ("", "wrong"):
        assert studio.post("/panels", data={"csrf": csrf, "name": "x", "metric": "y"}).status_code == 403
    secret = {"csrf": studio.app.state.studio.listener.csrf, "name": "x", "metric": "y"}
    assert studio.post("/panels", data=secret, headers={"origin": "http://evil.example"}).status_code == 403
    assert studio.get("/panels").status_code == 405 and not (root / FILE).exists()


def test_a_studio_that_is_read_only_changes_nothing_and_offers_no_form(root):
    Panels(root).save("kept", ["a"])
    studio = client_of(root, read_only=True)
    for path in ("/panels", "/stop/ours", "/resume/ours"):
        csrf = studio.app.state.studio.listener.csrf
        answer = studio.post(path, data={"csrf": csrf, "name": "x", "metric": "y", "remove": "kept"})
        assert answer.status_code == 403 and "--read-only" in answer.text
    for path in ("/translate", "/configure/expert"):  # a text is sent, nothing is written
        assert "--read-only" not in studio.post(path, data={"csrf": csrf, "text": "x"}).text
    page = studio.get(RUNS).text
    assert ">kept</a>" in page and "<form method" not in page and "Save layout" not in page


@pytest.mark.parametrize(
    ("name", "metrics"), [("", ["a"]), (" ", ["a"]), ("x" * 61, ["a"]), ("x", []), ("x", ["a"] * 49)]
)
def test_a_panel_without_a_name_or_with_too_many_metrics_is_refused(root, name, metrics):
    answer = post(client_of(root), name=name, metric=metrics)
    assert answer.status_code == 400 and "The panel is not saved" in answer.text
    assert not (root / FILE).exists()


def test_a_folder_has_at_most_fifty(root):
    for number in range(50):
        Panels(root).save(str(number), ["a"])
    Panels(root).save("7", ["b"])
    with pytest.raises(UserError, match="has 50"):
        Panels(root).save("one more", ["a"])


def panel(**changes):
    return json.dumps({"version": 1, "panels": [{"name": "x", "metrics": ["a"]} | changes]})


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            "{",
            "[]",
            "null",
            '{"version": 2, "panels": []}',
            '{"version": 1, "panels": {}}',
            "[" * 100_000,
        ),
        *(panel(name=1), panel(name=""), panel(name="x" * 61), panel(metrics="abc"), panel(metrics=[])),
        *(
            *(panel(view=1), panel(view="run=x"), panel(view="x=" + "y" * 300)),
            panel(metrics=[1]),
            panel(metrics=["x" * 201]),
            panel(metrics=["a"] * 49),
            panel(x=["y" * 300_000]),
        ),
        json.dumps({"version": 1, "panels": [{"name": "x", "metrics": ["a"]}] * 51}),
        json.dumps({"version": 1, "panels": [7]}),
    ],
)
def test_a_hostile_file_is_ignored_with_a_message_and_kept(root, content):
    (root / FILE).write_text(content)
    studio = client_of(root)
    page = studio.get(RUNS)
    assert page.status_code == 200 and re.search(rf"{FILE} is ignored: [^<]+\.", page.text)
    assert post(studio, name="x", metric="y").status_code == 400
    assert (root / FILE).read_text() == content


def test_links_and_pipes_are_neither_read_nor_written(root, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "file"
    other.write_text(panel())
    (root / FILE).symlink_to(other)
    studio = client_of(root)
    assert "is a link" in studio.get(RUNS).text
    assert post(studio, name="y", metric="y").status_code == 400 and other.read_text() == panel()


def test_a_folder_that_others_write_is_not_written(root):
    root.chmod(0o777)
    answer = post(client_of(root), name="x", metric="y")
    assert answer.status_code == 400 and "can be written by other users" in answer.text
    assert not (root / FILE).exists()


def test_names_of_a_file_stay_text(root):
    (root / FILE).write_text(panel(name=EVIL[:60], metrics=[EVIL]))
    page = client_of(root).get(RUNS).text
    assert "window.stolen=1&lt;" in page and "<script>window" not in page and "<img src=x" not in page
