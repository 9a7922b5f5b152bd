"""Baselines: others' runs as sides of a comparison, read as on the command line; hostile ones refused."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from studio_jobs import EVIL, client_of, make_job, write_events

from trinity_compat.cli import cli, main
from trinity_compat.studio import baselines, run_reader

SCORES = [0.1, 0.2, 0.3, 0.4]
SCORE = "critic/score/mean"


def as_csv(path):
    path.write_text(f"step,{SCORE}\n" + "".join(f"{k},{v}\n" for k, v in enumerate(SCORES, 1)))


def as_json_lines(path):
    rows = ({"step": step, "data": {SCORE: score}} for step, score in enumerate(SCORES, 1))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def as_log(path):
    path.write_text("".join(f"step:{k} - {SCORE}:{v} - x:1\n" for k, v in enumerate(SCORES, 1)))


def as_events(path):
    write_events(path, {step: {SCORE: score} for step, score in enumerate(SCORES, 1)})


def as_mlflow(path):
    (path / "metrics" / "critic" / "score").mkdir(parents=True, exist_ok=True)
    (path / "meta.yaml").write_text("run_name: x")
    lines = [f"{step}000 {score} {step}\n" for step, score in enumerate(SCORES, 1)]
    (path / "metrics" / SCORE).write_text("".join(lines))


MADE = {
    "theirs.csv": as_csv,
    "theirs.jsonl": as_json_lines,
    "theirs.log": as_log,
    "verl/tb": as_events,
    "mlruns/0/abc": as_mlflow,
}


@pytest.fixture
def root(tmp_path):
    make_job(tmp_path / "jobs" / "ours", evil=False)
    (tmp_path / "jobs" / "verl").mkdir()
    return tmp_path / "jobs"


def offered(page):
    return re.findall(r'name="b" value="baseline:([^"]+)"', page)


def verdict(studio, name):
    return studio.get("/verdict", params={"a": "ours", "b": f"baseline:{name}"})


@pytest.mark.parametrize("name", MADE)
def test_each_format_below_the_folder_is_offered_and_compared_as_on_the_command_line(root, name):
    MADE[name](root / name)
    studio = client_of(root)
    assert offered(studio.get("/compare").text) == [name]
    told = verdict(studio, name).json()
    said = CliRunner().invoke(cli, ["compare", str(root / "ours"), str(root / name), "--format", "json"])
    assert told["first"] == json.loads(said.stdout)["conclusion"][0]
    page = studio.get(f"/compare?a=ours&b=baseline:{name}").text
    assert f"B = baseline:{name}" in page and f'<p class="first">{told["first"]}</p>' in page
    found = studio.get(f"/curves?a=ours&b=baseline:{name}&name={SCORE}").json()
    assert found[SCORE]["b_seeds"] == [pytest.approx(SCORES)]


@pytest.mark.parametrize("name", MADE)
def test_each_format_is_read_again_for_an_overlay_when_its_files_change(root, name, monkeypatch):
    MADE[name](root / name)
    studio = client_of(root)
    asked = {"of": f"baseline:{name}", "seed": 0, "name": SCORE}
    first = studio.get("/baseline", params=asked).json()
    assert first["series"][SCORE] == [[1, 2, 3, 4], pytest.approx(SCORES)]
    assert "series" not in studio.get("/baseline", params=asked | {"state": first["state"]}).json()
    monkeypatch.setattr(sys.modules[__name__], "SCORES", [*SCORES, 0.5])
    MADE[name](root / name)
    told = studio.get("/baseline", params=asked | {"state": first["state"]}).json()
    assert told["series"][SCORE] == [[1, 2, 3, 4, 5], pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])]


def test_a_baseline_that_is_made_after_the_last_scan_is_there_at_once(root):
    studio = client_of(root)
    assert offered(studio.get("/compare").text) == []
    as_log(root / "late.log")
    assert studio.get(f"/baseline?of=baseline:late.log&seed=0&name={SCORE}").status_code == 200


def test_a_baseline_given_at_the_start_may_lie_elsewhere_and_hold_several_seeds(root, tmp_path):
    for seed in ("seed1", "seed2"):
        as_events(tmp_path / "elsewhere" / seed)
    studio = client_of(root, baselines={"verl 0.9": tmp_path / "elsewhere"})
    assert offered(studio.get("/compare").text) == ["verl 0.9"]
    found = studio.get(f"/curves?a=ours&b=baseline:verl 0.9&name={SCORE}").json()
    assert len(found[SCORE]["b_seeds"]) == 2


def test_a_baseline_that_grows_changes_an_open_page(root):
    as_log(root / "theirs.log")
    studio = client_of(root)
    state = verdict(studio, "theirs.log").json()["state"]
    again = studio.get("/verdict", params={"a": "ours", "b": "baseline:theirs.log", "state": state})
    assert "html" not in again.json()
    with (root / "theirs.log").open("a") as log:
        log.write(f"step:5 - {SCORE}:nan\nstep:6 - {SCORE}:nan\n")
    assert verdict(studio, "theirs.log").json()["first"].startswith(f"Different: {SCORE} is NaN from step 5")


def test_files_of_jobs_and_hidden_ones_are_not_baselines(root):
    as_csv(root / "ours" / "table.csv")
    (root / ".hidden").mkdir()
    as_csv(root / ".hidden" / "table.csv")
    as_csv(root / ".table.csv")
    assert offered(client_of(root).get("/compare").text) == []


@pytest.mark.parametrize(
    "name",
    ["../elsewhere.csv", "/etc/passwd", "", "ours", "theirs.csv/", "./theirs.csv", "verl/../theirs.csv"],
)
def test_a_path_in_the_address_opens_nothing(root, tmp_path, name):
    as_csv(root / "theirs.csv")
    as_csv(tmp_path / "elsewhere.csv")
    assert verdict(client_of(root), name).status_code == 404


def test_links_are_not_followed_out_of_the_folder(root, tmp_path):
    as_csv(tmp_path / "elsewhere.csv")
    as_events(tmp_path / "elsewhere")
    (root / "link.csv").symlink_to(tmp_path / "elsewhere.csv")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "verl" / "events.out.tfevents.1").symlink_to(next((tmp_path / "elsewhere").iterdir()))
    studio = client_of(root)
    assert offered(studio.get("/compare").text) == ["verl"]
    assert "is a link" in verdict(studio, "verl").json()["problem"]


def test_a_pipe_is_refused_at_once(root):
    os.mkfifo(root / "theirs.csv")
    os.mkfifo(root / "verl" / "events.out.tfevents.1")
    studio = client_of(root)
    for name in ("theirs.csv", "verl"):
        assert "is not a regular file" in verdict(studio, name).json()["problem"]


def test_a_wandb_run_s_own_links_are_left_out(root):
    (root / "verl" / "debug.log").symlink_to("/nowhere")
    as_csv(root / "verl" / "theirs.csv")
    studio = client_of(root, baselines={"folder": root / "verl"})
    assert "first" in verdict(studio, "folder").json()


@pytest.mark.parametrize("name", ["mlflow.db", "runs.sqlite"])
def test_a_database_is_not_opened(root, tmp_path, name):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).write_text("x")
    for path in (tmp_path / "store", tmp_path / "store" / name):
        told = verdict(client_of(root, baselines={"store": path}), "store").json()
        assert "is a database" in told["problem"] and "a veRL log" in told["problem"]


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("_MOST_BYTES", 10, "is larger than 0 MiB"),
        ("_MOST_TABLE_BYTES", 10, "is larger than 0 MiB"),
        ("_MOST_ENTRIES", 0, "more than 0 files"),
        ("_MOST_RUNS", 0, "has 1 runs; the studio compares at most 0"),
        ("_MOST_METRICS", 0, "has 1 metrics; the studio compares at most 0"),
        ("_MOST_POINTS", 3, "has 4 points of a metric; the studio compares at most 3"),
    ],
)
def test_the_work_is_bounded(root, monkeypatch, limit, value, said):
    as_csv(root / "verl" / "theirs.csv")
    monkeypatch.setattr(baselines, limit, value)
    studio = client_of(root, baselines={"folder": root / "verl"})
    assert said in verdict(studio, "folder").json()["problem"]


def test_only_as_many_are_offered_as_a_page_has_room_for(root, monkeypatch):
    monkeypatch.setattr(baselines, "_MOST_FOUND", 2)
    for number in range(3):
        as_csv(root / f"{number}.csv")
    page = client_of(root).get("/compare").text
    assert len(offered(page)) == 2 and "more than these" in page


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b"\x00\xff" * 50),
        ("x.csv", b'step,a\n1,"' + b"x" * 200_000),
        ("x.jsonl", b"[" * 100_000),
        ("x.jsonl", b'{"step": 1e400, "a": 1}\n{"step": NaN, "a": 1}'),
        ("x.jsonl", b'{"step": 1, "data": {"critic/score/mean": 1' + b"0" * 5000 + b"}}"),
        ("x.log", b"step:99999999999999999999 - critic/score/mean:1\n"),
        ("x.log", b"nothing"),
        ("x/events.out.tfevents.1", b"\xff" * 400),
        ("x/run.wandb", b":W&B" + b"\xff" * 400),
        ("x/metrics/critic", b"a b c\n"),
    ],
)
def test_a_damaged_or_hostile_file_is_a_problem_with_its_path(root, name, content):
    path = root / "verl" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if "metrics" in name:
        (path.parents[1] / "meta.yaml").write_text("")
    studio = client_of(root, baselines={"hostile": root / "verl" / name.split("/")[0]})
    answer = verdict(studio, "hostile")
    assert answer.status_code == 200 and str(root / "verl") in answer.json()["problem"]
    assert studio.get("/compare?a=ours&b=baseline:hostile").status_code == 200


BOMBS = {
    "x.json": b"[" + b"[]," * 8_000_000 + b"[]]",
    "x.log": b"".join(b"step:1 - a%d:1\n" % n for n in range(150_000)),
    "x.csv": b"step," + b",".join(b"c%d" % n for n in range(3000)) + b"\n1" + b",1" * 3000 + b"\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_would_take_much_is_a_problem_and_takes_the_studio_nothing(root, name, monkeypatch):
    (root / name).write_bytes(BOMBS[name])
    monkeypatch.setattr(run_reader, "_LIMITS", replace(run_reader._LIMITS, memory=300 << 20))
    studio = client_of(root, baselines={"bomb": root / name})
    studio.get("/")
    before = peak()
    problem = verdict(studio, "bomb").json()["problem"]
    assert str(root / name) in problem
    assert peak() - before < 60 << 20


def test_a_reader_that_takes_too_much_time_is_ended(root, monkeypatch):
    (root / "theirs.log").write_bytes(b"step:1 - a:1 - b:1 - c:1\n" * 1_000_000)
    monkeypatch.setattr(run_reader, "_LIMITS", replace(run_reader._LIMITS, cpu_s=1))
    assert "more than 1 s of processor time" in verdict(client_of(root), "theirs.log").json()["problem"]


def test_the_reader_has_no_secret_in_its_environment(root, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted")
    got = []
    run = run_reader.bounded_process.run
    monkeypatch.setattr(
        run_reader.bounded_process,
        "run",
        lambda command, folder, env, limits: [got.append(env), run(command, folder, env, limits)][1],
    )
    as_csv(root / "theirs.csv")
    assert "first" in verdict(client_of(root), "theirs.csv").json()
    assert got and all("WANDB_API_KEY" not in env for env in got)


def peak():
    """The most memory that this process has held, in bytes."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10


def test_text_of_a_baseline_stays_text(root):
    name = f"{EVIL.replace('/', '')}.csv"
    rows = "".join(f"{k},{k},1\n" for k in range(4))
    (root / name).write_text(f"step,{SCORE},{EVIL.split(',')[0]}\n{rows}")
    studio = client_of(root)
    page = studio.get("/compare", params={"a": f"baseline:{name}", "b": f"baseline:{name}"}).text
    told = studio.get("/verdict", params={"a": f"baseline:{name}", "b": f"baseline:{name}"}).json()
    assert "The same" in told["first"]
    for text in (page, told["html"]):
        assert "<script>window" not in text and "<img src=x" not in text


def test_a_baseline_has_no_answers(root):
    as_csv(root / "theirs.csv")
    studio = client_of(root)
    assert studio.get("/answers?a=ours&b=baseline:theirs.csv&task=x").status_code == 400


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("x", "not of the form NAME=VALUE"),
        ("x=/nowhere", "no such file or directory"),
        ("=x", "not of the form"),
    ],
)
def test_a_wrong_baseline_ends_the_start(tmp_path, capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        main(["studio", str(tmp_path), "--port", "0", "--baseline", given])
    assert ended.value.code == 2 and said in capsys.readouterr().err
