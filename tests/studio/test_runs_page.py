"""The list of runs: filtered, sorted, grouped, by pages; and several runs in the same charts."""

import json
import os
import re
import shutil

import pytest
from studio_jobs import SECRET, client_of, make_job, train_step

from trinity_compat.buffer import open_buffer
from trinity_compat.studio import run_state, runs_page
from trinity_compat.studio.jobs import Jobs

LR = "actor.optim.lr"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs")
    for number, (name, lr, reward) in enumerate(
        [("ppo/a", 1e-6, 0.5), ("ppo/b", 3e-6, 0.9), ("grpo/c", 1e-6, 0.1), ("grpo/d", None, float("nan"))]
    ):
        job = make_job(root / name, evil=False, steps=1, state="failed" if name.endswith("c") else "done")
        buffer = open_buffer(f"sqlite:///{job}/buffer/experiences.db")
        buffer.log_metrics("trainer", 1, {"critic/score/mean": reward, "timing_s/step": 10.0 - number})
        buffer.close()
        path = job / "config" / "run.json"
        spec = json.loads(path.read_text())
        spec["verl"]["actor"]["optim"] = {} if lr is None else {"lr": lr}
        spec["verl"]["reward"] = {"api_key": f"{SECRET}-{number}"}
        path.write_text(json.dumps(spec))
        for file in (*(job / "buffer").iterdir(), path):
            os.utime(file, (1000 + number, 1000 + number))
    return root


@pytest.fixture(scope="module")
def studio(folder):
    return client_of(folder)


def names(answer):
    assert answer.status_code == 200
    return re.findall(r'name="run" value="([^"]+)"', answer.text)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["grpo/d", "grpo/c", "ppo/b", "ppo/a"]),  # changed last
        ("words=PPO", ["ppo/b", "ppo/a"]),
        ("words=ppo/ b", ["ppo/b"]),
        ("words=nothing", []),
        ("state=failed", ["grpo/c"]),
        ("sort=name", ["grpo/c", "grpo/d", "ppo/a", "ppo/b"]),
        ("sort=name&up=0", ["ppo/b", "ppo/a", "grpo/d", "grpo/c"]),
        ("sort=reward", ["ppo/b", "ppo/a", "grpo/c", "grpo/d"]),  # NaN last
        ("sort=reward&up=1", ["grpo/c", "ppo/a", "ppo/b", "grpo/d"]),
        ("sort=step_s&up=1", ["grpo/d", "grpo/c", "ppo/b", "ppo/a"]),
        (f"sort={LR}&up=1", ["grpo/c", "ppo/a", "ppo/b", "grpo/d"]),  # equal ones by name; none last
        ("group=folder&sort=name", ["grpo/c", "grpo/d", "ppo/a", "ppo/b"]),
        ("group=folder&sort=reward", ["grpo/c", "grpo/d", "ppo/b", "ppo/a"]),
    ],
)
def test_the_runs_of_a_query_in_its_order(studio, query, expected):
    assert names(studio.get(f"/?{query}")) == expected


def test_groups_have_headings(studio):
    page = studio.get(f"/?group={LR}&sort=name").text
    assert re.findall(r'rowgroup"[^>]*>([^<]+)<', page) == [f"{LR} = 1e-06", f"{LR} = 3e-06", f"{LR} = –"]
    assert re.findall(r'rowgroup"[^>]*>([^<]+)<', studio.get("/?group=folder").text) == ["grpo", "ppo"]


def test_columns_show_configuration_keys_and_hide_secrets(studio):
    page = studio.get(f"/?column={LR}&column=reward.api_key&sort=name").text
    assert re.findall(rf'data-label="{LR}"><code>([^<]+)', page) == ["1e-06", "–", "1e-06", "3e-06"]
    assert page.count('data-label="reward.api_key"><code>***') == 4 and SECRET not in page
    offered = re.findall(r'<option value="([^"]+)"', page)
    assert LR in offered and "trainer.total_training_steps" not in offered  # equal in all runs


def test_pages_follow_each_other(studio, monkeypatch):
    monkeypatch.setattr(runs_page, "PAGE", 3)
    first = studio.get("/?sort=name")
    assert names(first) == ["grpo/c", "grpo/d", "ppo/a"] and "1–3 of 4 runs" in first.text
    link = re.search(r'href="([^"]+)">next page', first.text)[1].replace("&amp;", "&")
    second = studio.get(f"/{link}")
    assert names(second) == ["ppo/b"] and "4–4 of 4 runs" in second.text and "next page" not in second.text


def next_page(answer):
    return "/" + re.search(r'href="([^"]+)">next page', answer.text)[1].replace("&amp;", "&")


@pytest.mark.parametrize(
    "query", ["sort=name", "sort=name&up=0", "sort=reward", "sort=reward&up=1", f"sort={LR}", ""]
)
@pytest.mark.parametrize("group", ["", "&group=folder", f"&group={LR}"])
def test_the_pages_of_an_order_have_every_run_once(studio, monkeypatch, query, group):
    whole = names(studio.get(f"/?{query}{group}"))
    monkeypatch.setattr(runs_page, "PAGE", 1)
    answer, found = studio.get(f"/?{query}{group}"), []
    found += names(answer)
    while "next page" in answer.text:
        answer = studio.get(next_page(answer))
        found += names(answer)
    assert found == whole and len(found) == 4


def test_a_page_goes_on_behind_a_run_that_is_gone_or_has_moved(tmp_path, monkeypatch):
    for number, name in enumerate("abcd"):
        make_job(tmp_path / name, steps=1)
        touch(tmp_path / name, 1000 + number)
    studio = client_of(tmp_path)
    monkeypatch.setattr(runs_page, "PAGE", 2)
    first = studio.get("/")
    assert names(first) == ["d", "c"]
    touch(tmp_path / "c", 2000)
    shutil.rmtree(tmp_path / "d")
    assert names(studio.get(next_page(first))) == ["b", "a"]


def touch(job, at):
    for file in (*(job / "buffer").iterdir(), job / "config" / "run.json"):
        os.utime(file, (at, at))


@pytest.mark.parametrize(
    "place", ["ppo/a", "[]", '["", {}, "a"]', '["", NaN, "a"]', f'["", {"1" * 400}, "a"]', "[" * 9999]
)
def test_a_place_that_is_none_is_refused(studio, place):
    assert studio.get("/", params={"after": place}).status_code == 400


def look(studio, page, query=""):
    """Ask for the changed rows, as an open page does every few seconds."""
    has = ",".join(re.findall(r'data-mark="(\w+)"', page))
    return studio.get(f"/?{query}&table=1&has={has}")


def test_a_look_has_the_rows_that_have_changed(tmp_path):
    for name in ("one", "two"):
        make_job(tmp_path / name, steps=1, state="running")
    studio = client_of(tmp_path)
    page = studio.get("/?sort=name").text
    assert look(studio, page, "sort=name").status_code == 204
    assert look(studio, page, "sort=name&run=one").status_code == 204  # a box that is checked changes no row
    buffer = open_buffer(f"sqlite:///{tmp_path}/two/buffer/experiences.db")
    train_step(buffer, 2)
    buffer.close()
    found = look(studio, page, "sort=name&run=two").json()
    (row,) = found["rows"].values()
    assert 'value="two"' in row and "checked" in row and ">2<" in row
    before = re.findall(r'tr data-mark="(\w+)"', page)
    assert found["parts"] == [["", [before[0], *found["rows"]]]]


def test_a_look_has_the_whole_table_where_the_page_has_none(tmp_path):
    studio = client_of(tmp_path)
    page = studio.get("/").text
    make_job(tmp_path / "new", steps=1)
    studio.app.state.studio.jobs.scan.make_due()
    assert 'value="new"' in look(studio, page).json()["table"]


def test_a_hostile_name_is_text_in_a_look(tmp_path):
    make_job(tmp_path / "<img src=x onerror=alert(1)>", steps=1)
    make_job(tmp_path / "other", steps=1)
    studio = client_of(tmp_path)
    found = studio.get("/?table=1&has=none,none&group=actor.optim.lr").json()
    assert len(found["rows"]) == 2 and "<img" not in json.dumps(found)


def test_only_the_runs_of_a_page_are_read(folder, monkeypatch):
    monkeypatch.setattr(runs_page, "PAGE", 2)
    read, summary = [], run_state.summary_of
    monkeypatch.setattr(run_state, "summary_of", lambda job: read.append(job.name) or summary(job))
    assert names(client_of(folder).get("/")) == ["grpo/d", "grpo/c"]
    assert sorted(read) == ["grpo/c", "grpo/d"]


def test_a_head_sorts_and_turns_round(studio):
    links = [link.replace("&amp;", "&") for link in re.findall(r'<a href="(\?[^"]+)">', studio.get("/").text)]
    (by_reward,) = [link for link in links if "sort=reward" in link]
    assert names(studio.get(f"/{by_reward}"))[0] == "ppo/b"
    assert 'aria-sort="descending"' in studio.get(f"/{by_reward}").text
    assert "sort=reward&amp;up=1" in studio.get(f"/{by_reward}").text


def test_chosen_runs_stay_chosen_in_the_address(studio):
    page = studio.get("/?run=ppo/a").text
    assert re.findall(r'value="([^"]+)" aria-label="[^"]+" checked', page) == ["ppo/a"]


def test_a_state_that_no_run_has_is_refused(studio):
    assert studio.get("/?state=nope").status_code == 400


def test_an_unreadable_run_has_a_row_in_any_order(tmp_path):
    (tmp_path / "broken" / "config").mkdir(parents=True)
    (tmp_path / "broken" / "config" / "run.json").write_text("{")
    make_job(tmp_path / "job", steps=1)
    studio = client_of(tmp_path)
    for query in ("", "sort=reward", f"sort={LR}", f"group={LR}", f"column={LR}"):
        assert set(names(studio.get(f"/?{query}"))) == {"broken", "job"}


def test_an_overlay_names_its_runs_and_their_metrics(studio):
    page = studio.get("/overlay?run=ppo/a&run=ppo/b&run=ppo/a").text
    assert page.count(" checked") == 2
    assert '<option value="critic/score/mean" data-group="reward" label="Mean reward"' in page
    assert "No run is chosen" in studio.get("/overlay").text
    assert studio.get("/overlay?run=../etc").status_code == 404


def test_an_overlay_of_more_runs_than_a_chart_can_show_is_refused(tmp_path, monkeypatch):
    from trinity_compat.studio import workspace_page

    monkeypatch.setattr(workspace_page, "MOST", 1)
    for name in "ab":
        make_job(tmp_path / name, steps=1)
    assert client_of(tmp_path).get("/overlay?run=a&run=b").status_code == 400


def test_an_overlay_s_looks_have_metrics_alone(studio):
    events = studio.get("/look/ppo/a?rows=1&history=1").json()["events"]
    assert [name for name, _ in events] == ["rows"]


def test_a_job_is_known_by_its_own_time(folder):
    assert Jobs(folder).get("ppo/b").changed_at() == 1001
