"""Which checkpoints a bench takes, and how it shows what came of them."""

from pathlib import Path

import pytest
from toy_plan import source

from trinity_compat.common.errors import UserError
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.supervise import bench


@pytest.fixture
def made(tmp_path):
    """A job with checkpoints of steps 2 and 4, one of step 6 still being written, one whose actor is gone."""
    for step in (2, 4, 6):
        actor = tmp_path / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        (actor / "model_world_size_1_rank_0.pt").touch()
    (tmp_path / "global_step_1").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")
    options = RunOptions(mode="bench", job=str(tmp_path))
    return make_plan(source()[0].config, options, cwd=Path("/work"), device="cpu")


@pytest.mark.parametrize(
    ("explorer", "wanted", "steps"),
    [
        ({}, None, (0, 2, 4)),
        ({"eval_on_startup": False}, None, (2, 4)),
        ({"bench_on_latest_checkpoint": True}, None, (4,)),
        ({"bench_on_latest_checkpoint": True}, "all", (2, 4)),
        ({}, "latest", (4,)),
        ({}, "4,0", (0, 4)),
    ],
)
def test_the_command_line_s_checkpoints_else_the_yaml_s(made, explorer, wanted, steps):
    assert bench.with_checkpoints(made, {"explorer": explorer}, wanted).spec.checkpoints == steps


@pytest.mark.parametrize(
    ("wanted", "said", "hint"),
    [("6", "no checkpoint of step 6", "it has: 2, 4"), ("two", "write all, latest, or steps", None)],
)
def test_checkpoints_that_are_not_there(made, wanted, said, hint):
    with pytest.raises(UserError, match=said) as told:
        bench.with_checkpoints(made, {}, wanted)
    assert told.value.hint == hint


def test_a_job_without_checkpoints(made, tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("0")
    with pytest.raises(UserError, match="has no checkpoint"):
        bench.with_checkpoints(made, {}, None)
    assert bench.with_checkpoints(made, {}, "0").spec.checkpoints == (0,)


def test_the_weights_of_a_bench_lie_apart_from_the_run_s(made):
    planned = bench.with_checkpoints(made, {}, None)
    assert planned.spec.sync.directory != made.spec.sync.directory


def test_the_table_has_a_column_for_each_checkpoint():
    results = {4: {"val-core/a/acc/mean@1": 0.5, "val-aux/b": 1.0}, 0: {"val-core/a/acc/mean@1": 0.25}}
    assert bench.table(results) == [
        "                           step 0      step 4",
        "val-core/a/acc/mean@1      0.2500      0.5000",
    ]
