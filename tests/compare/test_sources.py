"""Each source is read as its own writer wrote it."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.compare.sources import read_runs, read_side
from trinity_compat.compare.verdict import CompareOptions, compare

VALUES = [0.25, 0.5, -1.5e-7, 3e8]


def points(run, name):
    return list(run.series[name].sorted().points())


@pytest.fixture(scope="module")
def writer_class():
    return pytest.importorskip("torch.utils.tensorboard", reason="needs torch (make install)").SummaryWriter


@pytest.mark.parametrize("new_style", [False, True])
def test_tensorboard_scalars_equal_what_was_written(tmp_path, writer_class, new_style):
    writer = writer_class(str(tmp_path))
    for step, value in enumerate(VALUES):
        writer.add_scalar("critic/score/mean", value, step, new_style=new_style)
        writer.add_scalar("x" * 200, value, step + 1000, new_style=new_style)
    writer.add_text("note", "not a scalar", 1)
    writer.close()
    (run,) = read_runs(tmp_path)
    assert points(run, "critic/score/mean") == [(i, pytest.approx(v, rel=1e-6)) for i, v in enumerate(VALUES)]
    assert [step for step, _ in points(run, "x" * 200)] == [1000, 1001, 1002, 1003]
    assert "note/text_summary" not in run.series


def test_tensorboard_agrees_with_tensorboards_own_reader(tmp_path, writer_class):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = writer_class(str(tmp_path))
    for step in range(0, 400_000, 4001):
        writer.add_scalar("a", step / 7, step)
    writer.close()
    theirs = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    theirs.Reload()
    (run,) = read_runs(tmp_path)
    assert points(run, "a") == [(e.step, e.value) for e in theirs.Scalars("a")]


def test_tensorboard_truncated_tail_is_named_and_the_rest_is_read(tmp_path, writer_class):
    writer = writer_class(str(tmp_path))
    for step in range(20):
        writer.add_scalar("a", step, step)
    writer.close()
    (file,) = tmp_path.glob("events*")
    file.write_bytes(file.read_bytes()[:-9])
    (run,) = read_runs(tmp_path)
    assert points(run, "a") == [(i, float(i)) for i in range(19)]
    assert any("unfinished" in note for note in run.notes)


def test_tensorboard_damaged_record_keeps_what_stands_before(tmp_path, writer_class):
    writer = writer_class(str(tmp_path))
    for step in range(20):
        writer.add_scalar("a", step, step)
    writer.close()
    (file,) = tmp_path.glob("events*")
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = b"\xff" * 40
    file.write_bytes(bytes(data))
    (run,) = read_runs(tmp_path)
    assert 0 < len(run.series["a"]) < 20
    assert run.notes


def test_a_resumed_run_keeps_the_last_value_of_a_step(tmp_path, writer_class):
    for round_, suffix in enumerate((".a", ".b")):
        writer = writer_class(str(tmp_path), filename_suffix=suffix)
        for step in range(3 - round_, 5):
            writer.add_scalar("a", 10 * round_ + step, step)
        writer.close()
        first = next(p for p in tmp_path.glob(f"events*{suffix}"))
        first.rename(tmp_path / f"events.out.tfevents.{round_}")
    (run,) = read_runs(tmp_path)
    assert points(run, "a") == [(2, 12.0), (3, 13.0), (4, 14.0)]


def test_wandb_offline_run(tmp_path):
    pytest.importorskip("wandb", reason="needs wandb (make install)")
    code = (
        "import wandb\n"
        "config = {'actor_rollout_ref': {'rollout': {'n': 8}}, 'data': {'train_batch_size': 4}}\n"
        "run = wandb.init(project='p', mode='offline', name='mine', config=config)\n"
        "for i in range(3000):\n"
        "    run.log({'critic/score/mean': i / 10, 'nested': {'x': i}, 'word': 'none'}, step=i)\n"
        "run.finish()"
    )
    env = {**os.environ, "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true", "WANDB_MODE": "offline"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, cwd=tmp_path, timeout=120)
    runs = read_runs(tmp_path)
    assert len(runs) == 1
    assert points(runs[0], "critic/score/mean") == [(i, i / 10) for i in range(3000)]
    assert "word" not in runs[0].series
    assert runs[0].meta["verl"]["actor_rollout_ref"] == {"rollout": {"n": 8}}
    assert runs[0].meta["verl"]["data"] == {"train_batch_size": 4}


def test_mlflow_file_store(tmp_path):
    run = tmp_path / "mlruns" / "0" / "abc"
    (run / "metrics" / "critic" / "score").mkdir(parents=True)
    (run / "tags").mkdir()
    (run / "meta.yaml").write_text("run_id: abc\n")
    (run / "tags" / "mlflow.runName").write_text("toy_trainer")
    (run / "metrics" / "critic" / "score" / "mean").write_text("1700000000000 0.5 1\n1700000001000 0.75 2\n")
    (read,) = read_runs(tmp_path)
    assert (read.name, points(read, "critic/score/mean")) == ("toy_trainer", [(1, 0.5), (2, 0.75)])


def test_mlflow_database(tmp_path):
    db = sqlite3.connect(tmp_path / "mlflow.db")
    db.executescript(
        "CREATE TABLE runs (run_uuid TEXT, name TEXT, start_time INT);"
        "CREATE TABLE metrics (run_uuid TEXT, key TEXT, value REAL, timestamp INT, step INT, is_nan INT);"
        "INSERT INTO runs VALUES ('u1', 'one', 1), ('u2', 'two', 2);"
        "INSERT INTO metrics VALUES ('u1','m',0.5,1000,1,0),('u1','m',0,2000,2,1),"
        "('u1','m',-1.7976931348623157e308,3000,3,0),('u2','m',0.7,1000,1,0);"
    )
    db.commit()
    db.close()
    one, two = read_runs(tmp_path)
    assert (one.name, points(one, "m"), points(two, "m")) == ("one", [(1, 0.5)], [(1, 0.7)])
    assert str(list(one.series["m"].points())) == "[(1, 0.5), (2, nan), (3, -inf)]", "both as flags there"


@pytest.mark.parametrize(
    "line",
    [
        "step:7 - critic/score/mean:0.5 - timing_s/step:np.float64(1.25) - note:text",
        "\x1b[36m(TaskRunner pid=123)\x1b[0m step:7 - critic/score/mean:0.5 - timing_s/step:1.25",
        "(TaskRunner pid=9, ip=10.0.0.1) step:7 - critic/score/mean:5e-1 - timing_s/step:1.25",
    ],
)
def test_verl_console_log(tmp_path, line):
    log = tmp_path / "train.log"
    log.write_text(f"INFO something\n{line}\nmore noise step: 3\n")
    (run,) = read_runs(log)
    assert {n: points(run, n) for n in run.series} == {
        "critic/score/mean": [(7, 0.5)],
        "timing_s/step": [(7, 1.25)],
    }


def test_verl_file_logger_with_an_unfinished_last_line(tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text('{"step":1,"data":{"a/b":0.5}}\n{"step":2,"data":{"a/b":0.6}}\n{"step":3,"da')
    (run,) = read_runs(log)
    assert points(run, "a/b") == [(1, 0.5), (2, 0.6)]


def test_wandb_csv_export(tmp_path):
    table = tmp_path / "export.csv"
    table.write_text('"Step","toy - critic/score/mean"\n"1","0.5"\n"2",""\n"3","0.75"\n')
    (run,) = read_runs(table)
    assert points(run, "critic/score/mean") == [(1, 0.5), (3, 0.75)]


@pytest.mark.parametrize(
    "data", [[{"_step": 1, "a": 2.0}, {"_step": 2, "a": 3.0}], {"step": [1, 2], "a": [2.0, 3.0]}]
)
def test_a_json_export_is_read_by_rows_or_columns(tmp_path, data):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    (run,) = read_runs(path)
    assert points(run, "a") == [(1, 2.0), (2, 3.0)]


def test_nan_points_are_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"step":1,"data":{"a":0.5}}\n{"step":2,"data":{"a":"nan"}}\n')
    (run,) = read_runs(path)
    assert points(run, "a") == [(1, 0.5)]
    assert not math.isnan(run.series["a"].sorted().values[-1])


def test_infinite_points_are_left_out_of_the_comparison_and_named(tmp_path):
    for name, value in (("a", "0.5"), ("b", '"inf"')):
        (tmp_path / f"{name}.jsonl").write_text(
            f'{{"step":1,"data":{{"x":0.5}}}}\n{{"step":2,"data":{{"x":{value}}}}}\n'
        )
    sides = [read_side([tmp_path / f"{name}.jsonl"], name) for name in "ab"]
    found = compare(*sides, CompareOptions())
    assert found.metric("x").xs == [1.0]
    assert any("x has 1 points that are NaN or infinite" in note for note in found.notes)


@pytest.mark.parametrize("content", ["1", "null", '{"step": 1e99, "a": 1}', "[1, 2]"])
def test_json_that_is_no_table_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UserError, match="no numeric metric"):
        read_runs(path)


@pytest.mark.parametrize("content", ["", "hello\nworld\n", "\x00\x01\x02"])
def test_a_file_without_metrics_is_named(tmp_path, content):
    path = tmp_path / "odd.log"
    path.write_text(content)
    with pytest.raises(UserError, match=r"odd\.log: no metric found"):
        read_runs(path)


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_runs(tmp_path / "nowhere")


def test_a_job_directory_merges_trainer_and_explorer(tmp_path, writer_class):
    for role, value in (("trainer", 1.0), ("explorer", 2.0)):
        writer = writer_class(str(tmp_path / "job" / "monitor" / "tensorboard" / role))
        writer.add_scalar("timing_s/step", value, 1)
        writer.add_scalar(f"only/{role}", value, 1)
        writer.close()
    (tmp_path / "job" / "config").mkdir()
    (tmp_path / "job" / "config" / "run.json").write_text('{"updates_per_step": 4, "verl": {"data": {}}}')
    (run,) = read_runs(Path(tmp_path / "job"))
    assert points(run, "timing_s/step") == [(1, 1.0)]
    assert points(run, "explorer/timing_s/step") == [(1, 2.0)]
    assert set(run.series) >= {"only/trainer", "only/explorer"}
    assert run.updates_per_step == 4


def test_a_log_that_never_ends_its_configuration_is_tried_up_to_a_bound(tmp_path, monkeypatch):
    from trinity_compat.launch.job_files import printed_configuration

    tried, literal = [], printed_configuration._literal
    monkeypatch.setattr(
        printed_configuration, "_literal", lambda text, lines: tried.append(text) or literal(text, lines)
    )
    lines = ["{'actor_rollout_ref':", *(" " * 5000 + "}" for _ in range(100)), "step:1 - critic/score/mean:1"]
    (tmp_path / "x.log").write_text("\n".join(lines))
    (run,) = read_runs(tmp_path / "x.log")
    most = printed_configuration._MOST_TRIED + printed_configuration.LONGEST
    assert run.meta == {} and len(tried) > 1 and sum(map(len, tried)) <= most < 5000 * 100 * 50
