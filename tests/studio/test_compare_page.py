"""Two runs against each other, in the browser as on the command line."""

import html
import json
import re
import shutil

import pytest
from studio_jobs import SECRET, client_of, make_job, train_step, write_events

from trinity_compat.buffer import open_buffer
from trinity_compat.studio import workspace_page
from trinity_compat.studio.compare_page import AXES

BOTH = "a=toy/grpo&b=plain"


def test_without_sides_the_runs_are_offered(studio):
    page = studio.get("/compare").text
    assert len(re.findall(r'name="(?:run|a|b)" value=', page)) == 6 and "Verdict" not in page
    assert "No run is chosen" in page


def offered(page):
    return re.findall(r'name="a" value="([^"]+)" aria', page)


def test_runs_are_offered_a_page_at_a_time_by_the_filter_of_the_list(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace_page, "PAGE", 2)
    for name in ("old/a", "old/b", "new/a", "new/b", "new/c"):
        make_job(tmp_path / name, evil=False, steps=1, state="failed" if name == "new/c" else "done")
    studio, found = client_of(tmp_path), []
    page = studio.get("/compare?sort=name").text
    assert "1–2 of 5 runs" in page
    while True:
        found += offered(page)
        after = re.search(r'name="after" value="([^"]+)"', page)
        if not after:
            break
        page = studio.get("/compare", params={"sort": "name", "after": html.unescape(after[1])}).text
    assert found == ["new/a", "new/b", "new/c", "old/a", "old/b"] and "First page" in page
    assert offered(studio.get("/compare?words=OLD&sort=name").text) == ["old/a", "old/b"]
    assert offered(studio.get("/compare?state=failed").text) == ["new/c"]
    assert "No run matches." in studio.get("/compare?words=nothing").text
    assert studio.get("/compare?state=nothing").status_code == 400


def test_a_chosen_run_or_baseline_stays_chosen_on_each_page(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace_page, "PAGE", 2)
    for name in "abcd":
        make_job(tmp_path / name, evil=False, steps=1)
        (tmp_path / f"{name}.log").write_text("step:1 - critic/score/mean:0.5\n")
    studio = client_of(tmp_path)
    page = studio.get("/compare?sort=name&words=b&a=d&a=baseline:c.log").text
    assert offered(page) == ["d", "b", "baseline:c.log", "baseline:b.log"]
    assert re.findall(r'name="a" value="([^"]+)"[^>]*checked', page) == ["d", "baseline:c.log"]
    page = studio.get("/compare?sort=name&a=a").text
    assert offered(page)[:2] == ["a", "b"] and "2 more match" in page


def test_the_verdict_stands_first_and_is_the_command_line_s(studio, folder):
    from pathlib import Path

    from trinity_compat.compare.conclusion import headline
    from trinity_compat.compare.margins import CompareOptions
    from trinity_compat.compare.sources import read_side
    from trinity_compat.compare.verdict import compare

    sides = [read_side([Path(folder) / name], name) for name in ("toy/grpo", "plain")]
    first = headline(compare(*sides, CompareOptions()))[0]
    page = studio.get(f"/compare?{BOTH}").text
    assert f'<p class="first">{first}</p>' in page
    order = ("Verdict", "Settings that differ", "Last values", ">Curves<", ">Statistics<", "q</th>")
    assert [*map(page.index, order)] == sorted(map(page.index, order))


def test_a_table_follows_with_the_command_line_s_row_of_each_metric(studio, folder):
    from trinity_compat.compare.margins import CompareOptions
    from trinity_compat.compare.report import COLUMNS, row_of
    from trinity_compat.compare.sources import read_side
    from trinity_compat.compare.verdict import compare

    sides = [read_side([folder / name], name) for name in ("toy/grpo", "plain")]
    result = compare(*sides, CompareOptions())
    page = studio.get(f"/compare?{BOTH}").text.replace("<wbr>", "")
    heads = re.findall(r'<th scope="col"[^>]*>([^<]+)', page[page.index('aria-label="key metrics"') :])
    assert tuple(heads[: len(COLUMNS)]) == COLUMNS
    rows = [re.findall(r">([^<>]+)</", row) for row in re.findall(r"<tr><th scope=.row.>.*?</tr>", page)]
    for metric in result.metrics:
        assert row_of(metric) in rows
    assert ["critic/score/mean", "0.4", "0.4", "0", "identical"] in rows


def state_of(page):
    return re.search(r'data-state="([^"]+)"', page)[1]


def test_an_open_page_gets_what_has_changed_and_nothing_else(tmp_path):
    for name in "ab":
        make_job(tmp_path / name, evil=False, state="running")
    studio = client_of(tmp_path)
    page = studio.get("/compare?a=a&b=b").text
    state = state_of(page)
    studio.app.state.studio.comparisons.took_s = 0.0
    assert studio.get(f"/verdict?a=a&b=b&state={state}").json() == {"state": state, "wait_s": 5.0}
    more = {step: {"critic/score/mean": float("inf")} for step in (7, 8)}
    for name in "ab":
        rows = more if name == "b" else {step: {"critic/score/mean": 0.5} for step in more}
        write_events(tmp_path / name / "monitor" / "tensorboard" / "trainer", rows)
    told = studio.get(f"/verdict?a=a&b=b&state={state}").json()
    assert told["first"] == "Different: critic/score/mean is infinite from step 7 on in B, finite in A."
    assert f'<p class="first">{told["first"]}</p>' in told["html"]["verdict"]
    assert "critic/score/mean" in told["html"]["statistics"]
    assert told["state"] == state_of(studio.get("/compare?a=a&b=b").text) != state


def test_sides_that_have_ended_are_looked_at_less_often(studio):
    page = studio.get(f"/compare?{BOTH}").text
    studio.app.state.studio.comparisons.took_s = 0.0
    assert studio.get(f"/verdict?{BOTH}&state={state_of(page)}").json()["wait_s"] == 30
    studio.app.state.studio.comparisons.took_s = 4.0
    assert studio.get(f"/verdict?{BOTH}&state={state_of(page)}").json()["wait_s"] == 40


def test_a_side_without_metrics_yet_is_a_problem_until_it_has_some(tmp_path):
    make_job(tmp_path / "a")
    make_job(tmp_path / "b", steps=0, state="running")
    studio = client_of(tmp_path)
    told = studio.get("/verdict?a=a&b=b").json()
    assert "nothing to compare here" in told["problem"] and told["wait_s"] >= 5 and "html" not in told
    write_events(tmp_path / "b" / "monitor" / "tensorboard" / "trainer", {1: {"critic/score/mean": 0.1}})
    assert studio.get("/verdict?a=a&b=b").json()["first"].startswith("Not enough data to say")


@pytest.mark.parametrize("axis", AXES)
def test_any_axis_gives_a_page(studio, axis):
    for name in ("x", "axis"):
        answer = studio.get(f"/compare?{BOTH}&{name}={axis}")
        assert answer.status_code == 200
        assert re.findall(r'<option value="(\w+)" title="[^"]+" selected>', answer.text) == [axis]


def test_the_curves_are_on_a_common_x(studio):
    found = studio.get(f"/curves?{BOTH}&name=critic/score/mean&name=nope").json()
    assert list(found) == ["critic/score/mean"]
    assert found["critic/score/mean"]["x"] == [1, 2, 3, 4]
    (seed,) = found["critic/score/mean"]["a_seeds"]
    assert seed == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_answers_to_the_same_task_stand_side_by_side(studio):
    page = studio.get(f"/compare?{BOTH}").text
    assert "task=toy/sort%201" in page
    both = studio.get(f"/answers?{BOTH}&task=toy/sort 1").text
    assert both.count('<li class="card answer">') == 6 and "answer5x1x0" in both and "answer3x1x0" in both
    assert "has no answers to this task" in studio.get(f"/answers?{BOTH}&task=nope").text


def test_the_report_is_a_download(studio):
    answer = studio.get(f"/report?{BOTH}")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "<!doctype html>" in answer.text and "toy/grpo" in answer.text


def test_a_refusal_stays_on_the_page_that_has_it(tmp_path):
    make_job(tmp_path / "a")
    make_job(tmp_path / "b", steps=0)
    studio = client_of(tmp_path)
    page = studio.get("/compare?a=a&b=b")
    assert page.status_code == 200 and "nothing to compare here" in page.text
    told = studio.get(f"/verdict?a=a&b=b&state={state_of(page.text)}").json()
    assert "nothing to compare here" in told["problem"]
    assert studio.get("/report?a=a&b=b").status_code == 503


def test_a_job_without_event_files_is_compared_from_its_database(tmp_path):
    for name in "ab":
        make_job(tmp_path / name, evil=False, wobble=0.1 * (name == "b"))
    studio = client_of(tmp_path)
    rows = studio.get("/curves?a=a&b=b&name=critic/score/mean").json()
    shutil.rmtree(tmp_path / "b" / "monitor")
    page = studio.get("/compare?a=a&b=b").text
    assert "nothing to compare here" not in page
    told = studio.get("/curves?a=a&b=b&name=critic/score/mean").json()
    assert told["critic/score/mean"]["b_seeds"][0] == pytest.approx(rows["critic/score/mean"]["b_seeds"][0])
    assert "read from its database" in studio.get("/report?a=a&b=b").text
    buffer = open_buffer(f"sqlite:///{tmp_path}/b/buffer/experiences.db")
    train_step(buffer, 7)
    buffer.close()
    assert state_of(studio.get("/compare?a=a&b=b").text) != state_of(page)


@pytest.mark.parametrize(
    "path", ["/curves", "/report", "/verdict", "/answers?a=plain", "/answers?a=plain&b=plain"]
)
def test_an_address_without_sides_or_task_is_wrong(studio, path):
    assert studio.get(path).status_code == 400


def test_a_job_that_is_not_there_is_not_found(studio):
    assert studio.get("/compare?a=plain&b=../../etc").status_code == 404


def test_secrets_in_the_configuration_are_masked(tmp_path, monkeypatch):
    monkeypatch.setenv("TRINITY_COMPAT_SECRET_X", SECRET)
    for name in ("a", "b"):
        path = make_job(tmp_path / name) / "config" / "run.json"
        spec = json.loads(path.read_text())
        spec["verl"]["reward"] = {"api_key": f"{SECRET}-{name}"}
        path.write_text(json.dumps(spec))
    studio = client_of(tmp_path)
    page = studio.get("/compare?a=a&b=b").text.replace("<wbr>", "")
    assert "reward.api_key" in page and SECRET not in page
    assert SECRET not in studio.get("/report?a=a&b=b").text
