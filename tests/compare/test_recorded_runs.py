"""Recordings of our own runs: three steps of the GRPO toy, stock veRL's console log and our job directory.

``recorded/`` holds them as they were written (paths replaced); the same runs' metrics, as veRL's file logger
would have written them, are in ``tests/parity/recorded``.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli.compare import command
from trinity_compat.compare import breakdown
from trinity_compat.compare.configs import of_runs
from trinity_compat.compare.model import Side
from trinity_compat.compare.sources import read_runs

HERE = Path(__file__).parent / "recorded"
STOCK, OURS = HERE / "stock.log", HERE / "ours"


def call(*args):
    result = CliRunner().invoke(command, [str(a) for a in args], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.output


def stock():
    [run] = read_runs(STOCK)
    return run


def ours():
    [run] = read_runs(OURS)
    return run


def curves(run):
    return {name: list(series.sorted().points()) for name, series in run.series.items()}


def test_a_console_log_says_what_the_file_logger_said():
    [table] = read_runs(HERE.parents[1] / "parity" / "recorded" / "grpo-stock.jsonl")
    found, expected = curves(stock()), curves(table)
    assert set(found) == set(expected)
    for name, points in expected.items():
        assert found[name] == [(step, pytest.approx(value, rel=1e-5, abs=1e-12)) for step, value in points]


def test_the_configuration_is_read_off_both():
    rows = of_runs(stock().meta, ours().meta)
    assert stock().meta["verl"]["actor_rollout_ref"]["actor"]["optim"]["lr"] == 3e-4
    # where Ray runs, where checkpoints go, and which trainer is asked for: nothing else
    changed = {row["key"] for row in rows if row["a"] != row["b"]}
    assert {key.split(".")[0] for key in changed} <= {"ray_kwargs", "trainer", "transfer_queue"}
    assert "trainer.default_local_dir" in changed


def test_keys_whose_effect_the_audit_calls_changed_stand_first():
    rows = of_runs(stock().meta, ours().meta)
    said = [row for row in rows if row["why"]]
    assert said == rows[: len(said)]
    assert {row["why"].split(":")[0] for row in said} == {"approximated", "no_effect"}


@pytest.mark.parametrize(
    ("axis", "last"),
    [("step", 3), ("update", 6), ("samples", 768), ("tokens", pytest.approx(25_340, rel=0.01))],
)
def test_every_axis_is_known_from_the_recorded_configuration(axis, last):
    output = call(STOCK, OURS, "--axis", axis, "--format", "html")
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', output)[1])
    [score] = [m for m in data["metrics"] if m["name"] == "critic/score/mean"]
    assert score["x"][-1] == last


def test_the_parts_of_a_step_add_up_to_its_time():
    for run in (stock(), ours()):
        found = breakdown.timing(Side("x", [run]))
        parts = {name: seconds for name, seconds in found["mean"].items() if name != "testing"}
        assert sum(parts.values()) == pytest.approx(found["total"], rel=1e-3)
        assert [(row["from"], row["to"]) for row in found["steps"]] == [(1, 1), (2, 2), (3, 3)]
    assert "rollout" in breakdown.timing(Side("ours", [ours()]))["explorer"]
    assert breakdown.timing(Side("stock", [stock()]))["explorer"] == {}


def test_the_split_of_devices_is_stated_and_throughput_is_divided_by_all_of_them():
    shared, apart = (breakdown.resources(Side("x", [run])) for run in (stock(), ours()))
    assert shared["gpus"] == "1 CPU process, shared with the rollout"
    assert apart["gpus"] == "1 CPU process for the trainer, 1 for the rollout"
    assert shared["throughput_all"] == shared["throughput"]
    assert apart["throughput_all"] == pytest.approx(apart["throughput"] / 2)


def test_the_report_begins_with_the_conclusion():
    lines = call(STOCK, OURS).splitlines()
    assert lines[:2] == ["A = stock.log: 1 run(s)", "B = ours: 1 run(s)"]
    why = "with one run on a side at least 16 points in common are needed, and there are 3"
    assert lines[3] == f"Not enough data to say: {why}."
    assert any(line.endswith(f"metrics not tested: {why}.") for line in lines)
    assert any("seed noise is unknown" in line for line in lines)


def test_a_job_whose_event_file_ends_anywhere_is_read_up_to_there(tmp_path):
    job = tmp_path / "job"
    shutil.copytree(OURS, job)
    [file] = (job / "monitor" / "tensorboard" / "trainer").iterdir()
    whole, complete = file.read_bytes(), curves(ours())
    for size in range(0, len(whole), 997):
        file.write_bytes(whole[:size])
        [run] = read_runs(job)
        for name, points in curves(run).items():
            assert points == complete.get(name, points)[: len(points)] or name.startswith("explorer/")
        assert size == 0 or run.notes, f"{size} bytes: the cut is not named"


def test_two_runs_of_one_name_stay_apart(tmp_path):
    for name in ("x", "y"):
        shutil.copytree(OURS, tmp_path / name / "job")
    data = json.loads(call(tmp_path / "x" / "job", tmp_path / "y" / "job", "--format", "json"))
    assert [Path(data[side]["runs"][0]["source"]).parent.name for side in ("a", "b")] == ["x", "y"]
    assert data["a"]["label"] != data["b"]["label"]


def test_markdown_has_a_verdict_by_group():
    lines = call(STOCK, OURS, "--format", "md").splitlines()
    assert lines[0].startswith("**Not enough data to say: ")
    assert "| group | differs | unclear | same | identical | which differ |" in lines
    assert "| reward | 0 | 2 | 0 | 4 |  |" in lines


@pytest.mark.parametrize("damage", [{}, {"trainer": {}}, {"trainer": {"nnodes": 1, "n_gpus_per_node": None}}])
def test_devices_that_the_configuration_does_not_tell_are_unknown(damage):
    run = ours()
    run.meta["verl"] = damage
    assert breakdown.resources(Side("x", [run]))["gpus"] == "unknown: not recorded by the source"
