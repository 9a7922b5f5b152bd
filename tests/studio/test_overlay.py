"""Several runs and baselines in the same charts, and which of them differ only in their seed."""

import html
import itertools
import json
import re
from types import SimpleNamespace

import pytest
from studio_jobs import client_of, make_job, write_events

from trinity_compat.studio.workspace_page import configuration_but_seeds

SCORE = "critic/score/mean"


def configured(root, **verl):
    path = make_job(root, evil=False, steps=1) / "config" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"verl": verl}))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs")
    for name, seed, lr in (("one", 1, 1e-6), ("two", 2, 1e-6), ("other", 1, 3e-6)):
        trainer = {"experiment_name": name, "default_local_dir": f"/x/{name}", "total_epochs": 3}
        configured(root / name, data={"seed": seed}, trainer=trainer, actor={"optim": {"lr": lr}})
    for seed in (1, 2):
        write_events(root / "theirs" / f"s{seed}", {step: {SCORE: step * seed / 10} for step in (1, 2, 3)})
    return root


@pytest.fixture(scope="module")
def studio(root):
    return client_of(root, baselines={"both": root / "theirs"})


def lines(answer):
    assert answer.status_code == 200
    return json.loads(html.unescape(re.search(r'data-runs="([^"]+)"', answer.text)[1]))


def test_runs_that_differ_only_in_their_seed_and_their_names_are_one_set(studio):
    found = lines(studio.get("/overlay?run=one&run=two&run=other"))
    assert [(line["name"], line["set"]) for line in found] == [("one", 0), ("two", 0), ("other", 1)]


def test_validation_scores_are_among_the_first_curves(tmp_path):
    make_job(tmp_path / "job", steps=3)
    page = client_of(tmp_path).get("/compare?run=job").text
    curves = json.loads(html.unescape(re.search(r'data-curves="([^"]+)"', page)[1]))
    assert curves[0] == SCORE and curves[-1] == "val-core/toy/acc/mean@1"


def test_the_runs_of_a_baseline_are_the_seeds_of_a_set(studio):
    found = lines(studio.get("/overlay?run=one&run=baseline:both"))
    assert [(line["label"], line["seed"], line["set"]) for line in found] == [
        ("one", None, 0),
        ("baseline:both s1", 0, 1),
        ("baseline:both s2", 1, 1),
    ]
    told = studio.get(f"/baseline?of=baseline:both&seed=1&name={SCORE}&name=nope").json()
    assert told["series"] == {SCORE: [[1, 2, 3], pytest.approx([0.2, 0.4, 0.6])]}


def test_a_page_gets_a_baseline_s_points_again_when_its_files_have_changed(tmp_path):
    log = tmp_path / "verl.log"
    log.write_text("step:1 - critic/score/mean:0.1\n")
    studio = client_of(tmp_path)
    address = f"/baseline?of=baseline:verl.log&seed=0&name={SCORE}"
    first = studio.get(address).json()
    assert first["series"] == {SCORE: [[1], [0.1]]} and first["wait_s"] >= 5
    state = f"&state={first['state']}"
    assert "series" not in studio.get(address + state).json()
    with log.open("a") as more:
        more.write("step:2 - critic/score/mean:0.2\n")
    told = studio.get(address + state).json()
    assert told["series"] == {SCORE: [[1, 2], [0.1, 0.2]]} and told["state"] != first["state"]
    log.unlink()
    assert studio.get(address + state).status_code in (404, 503)


def test_a_baseline_that_takes_long_to_read_is_asked_for_less_often(tmp_path, monkeypatch):
    (tmp_path / "verl.log").write_text("step:1 - critic/score/mean:0.1\n")
    studio, clock = client_of(tmp_path), itertools.count(0, 3)
    monkeypatch.setattr(
        "trinity_compat.studio.workspace_page.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    assert studio.get(f"/baseline?of=baseline:verl.log&seed=0&name={SCORE}").json()["wait_s"] == 60


def test_trinity_s_updates_are_put_on_verl_s_steps(tmp_path):
    folder = tmp_path / "upstream"
    rows = {step: {"rollout/score/mean": step, "time/step": 1.0, "kept": step} for step in (2, 4)}
    write_events(folder / "monitor" / "tensorboard" / "trainer", rows)
    (folder / "config").mkdir()
    (folder / "config" / "run.json").write_text(json.dumps({"updates_per_step": 2}))
    studio = client_of(tmp_path / "none", baselines={"upstream": folder})
    assert studio.get("/baseline?of=baseline:upstream&seed=0&name=kept").json()["series"]["kept"][0] == [1, 2]


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/baseline?of=baseline:both&seed=2", 404),
        ("/baseline?of=baseline:both&seed=-1", 400),
        ("/baseline?of=baseline:nowhere&seed=0", 404),
        ("/baseline?of=one&seed=0", 400),
        ("/overlay?run=baseline:../x", 404),
    ],
)
def test_what_is_not_there_is_said(studio, address, status):
    assert studio.get(address).status_code == status


def test_a_baseline_that_cannot_be_read_leaves_the_others(tmp_path):
    make_job(tmp_path / "ours", evil=False, steps=1)
    (tmp_path / "bad.log").write_text("nothing")
    page = client_of(tmp_path).get("/overlay?run=ours&run=baseline:bad.log")
    assert [line["name"] for line in lines(page)] == ["ours"] and "no metric found" in page.text


@pytest.mark.parametrize(
    ("key", "value"), [("reward.reward_manager.name", "dapo"), ("actor_rollout_ref.rollout.name", "sglang")]
)
def test_another_reward_or_engine_is_not_another_seed(key, value):
    settings = {"data.seed": 1, "trainer.experiment_name": "one", key: "other"}
    again = settings | {"data.seed": 2, "trainer.experiment_name": "two"}
    assert configuration_but_seeds(settings) == configuration_but_seeds(again)
    assert configuration_but_seeds(settings) != configuration_but_seeds(again | {key: value})
