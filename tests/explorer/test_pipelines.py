"""Groups through a pipeline: what is trained, what stays in the buffer as dropped, what is refused."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from explorer_job import BATCH, FakeMaker, job, publish
from test_loop import Run, ready

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import DROPPED, DROPPED_KIND, TRUNCATED
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.data.operators import pipeline_of
from trinity_compat.explorer.scheduling.filtering import GroupFilter
from trinity_compat.trainer.batch import BatchShape, to_dataproto
from trinity_compat.trainer.pad_groups import without_dropped_rows
from trinity_compat.trinity.pipelines import runner
from trinity_compat.trinity.pipelines.runner import OperatorPipeline
from trinity_compat.trinity.workflows import plugins, trinity_stubs

trinity_stubs.install()
PLUGIN = """
import asyncio
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator, ExperienceOperatorV1
from trinity.common.experience import Experience, group_by

@EXPERIENCE_OPERATORS.register_module("doubling", force=True)
class Doubling(ExperienceOperatorV1):
    async def prepare(self):
        self.by = 2

    async def process(self, exps):
        await asyncio.sleep(0)
        for exp in exps:
            exp.reward *= self.by
            exp.info["was"] = exp.reward / 2
            exp.info |= {"object": self, "far": float("inf"), "list": [1]}
        return exps, {"groups": len(group_by(exps, "task")), "unseen": "text"}

@EXPERIENCE_OPERATORS.register_module("naughty", force=True)
class Naughty(ExperienceOperator):
    def __init__(self, how):
        self.how = how

    def process(self, exps):
        if self.how == "raises":
            raise KeyError("no such thing")
        if self.how == "returns":
            return exps
        if self.how == "doubles":
            return [*exps, exps[0]], {}
        if self.how == "invents":
            return [*exps, Experience(tokens=[1, 2])], {}
        if self.how == "rewrites":
            exps[0].tokens = exps[0].tokens + 1
        if self.how == "rewards":
            exps[0].reward = None
        return exps, {}
"""


def operators(*named):
    return [{"name": name, "args": args} for name, args in named]


class Rewarding(FakeMaker):
    """Answers' rewards by the task's place in the stream; each third answer was cut."""

    def __init__(self, reward=lambda number, run: float(run), **more):
        super().__init__(**more)
        self.reward = reward

    async def groups(self, work, version, history):
        async for group in super().groups(work, version, history):
            parts = tuple(
                replace(part, reward=self.reward(group.task_no, part.run)) for part in group.experiences
            )
            yield replace(group, experiences=parts)


@pytest.fixture
def make(tmp_path, toy):
    def start(*named, maker=None, steps=2, overrides=()):
        spec, buffer = job(tmp_path / "job", toy, *overrides, steps=steps)
        spec.verl["data"]["experience_pipeline"] = {"operators": operators(*named)}
        publish(spec, buffer, toy, 0, 1)
        run = Run(spec, open_buffer(spec.database_url), maker or Rewarding(), 0)
        run.explorer._pipeline = pipeline_of(spec.verl, run.train)
        return run

    return start


def finish(run, steps=2):
    return run.until(ready(run.buffer, steps * BATCH))


def metrics_of(run):
    return [values for _, values in run.buffer.read_metrics("explorer")]


def even(number, run):
    """Only tasks with an even place differ in reward."""
    return float(run) if number % 2 == 0 else 1.0


def test_a_step_is_drawn_until_enough_groups_have_passed_and_the_others_are_kept(make):
    run = finish(make(("reward_std_filter", {}), maker=Rewarding(even)))
    trained, dropped = run.groups(), run.buffer.groups(DROPPED_KIND)
    row = run.train.task
    assert [group.task["index"] for group in trained] == [row(n)["index"] for n in range(0, 16, 2)]
    assert [group.task["index"] for group in dropped] == [row(n)["index"] for n in range(1, 16, 2)]
    assert {part.info["dropped_by"] for group in dropped for part in group.experiences} == {
        "reward_std_filter"
    }
    first, second = metrics_of(run)
    assert (first["train/num_gen_batches"], second["train/num_gen_batches"]) == (2.0, 2.0)
    assert first["experience_pipeline/dropped"] == 8 and first["experience_pipeline/dropped_groups"] == 4
    assert first["experience_pipeline/operator_filtered_count"] == 8
    assert first["experience_pipeline/experience_count"] == 8


def test_what_a_draw_made_too_much_is_kept_as_dropped(make):
    run = finish(make(("reward_std_filter", {}), maker=Rewarding(even), overrides=["data.gen_batch_size=6"]))
    found = [
        part.info["dropped_by"] for group in run.buffer.groups(DROPPED_KIND) for part in group.experiences
    ]
    # two draws of six tasks a step, three groups of each pass: two more than a batch
    assert found.count("surplus") == 2 * 2 * 2 and found.count("reward_std_filter") == 2 * 6 * 2


def test_an_answer_that_is_dropped_from_a_group_stays_in_it_marked(make):
    run = finish(make(("reward_filter", {"threshold": 0.5})))
    for group in run.groups():
        left = [bool(part.metrics.get(DROPPED)) for part in group.experiences]
        assert left == [part.reward < 0.5 for part in group.experiences] == [True, False]
        assert all(part.response_mask.all() for part in group.experiences)
    assert metrics_of(run)[0]["experience_pipeline/dropped"] == BATCH
    assert not run.buffer.groups(DROPPED_KIND)


def test_operators_work_one_after_the_other(make):
    run = finish(make(("reward_shaping_mapper", {}), ("reward_filter", {}), ("pass_rate_calculator", {})))
    told = metrics_of(run)[0]
    assert told["experience_pipeline/selection/valid_ratio"] == 1.0
    assert [name for name in told if "/time/operator/" in name] == [
        f"experience_pipeline/time/operator/{name}"
        for name in ("0_reward_shaping_mapper", "1_reward_filter", "2_pass_rate_calculator")
    ]


def test_filter_groups_comes_after_the_operators(make):
    """And looks at what they left: the first of two answers went, so that none differs from another."""
    run = make(("reward_filter", {"threshold": 0.5}))
    group = asyncio.run(some(run))[0]
    left = replace(group.experiences[0], metrics={DROPPED: 1.0})
    other = replace(group, experiences=(left, group.experiences[1], group.experiences[1]))
    assert GroupFilter("reward", 4, 4).differs(replace(other, experiences=group.experiences))
    assert not GroupFilter("reward", 4, 4).differs(other)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / f"mine_{tmp_path.name.replace('-', '_')}.py").write_text(PLUGIN)
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(folder))


def test_a_user_s_own_operator_changes_rewards_and_info(make, plugin):
    run = make(("doubling", {}))
    asyncio.run(run.explorer._pipeline.prepare())
    finish(run)
    for group in run.groups():
        assert [part.reward for part in group.experiences] == [0.0, 2.0]
        assert [part.info["was"] for part in group.experiences] == [0.0, 1.0]
        assert [part.info["list"] for part in group.experiences] == [[1], [1]]
        # Not stored: fields that the run itself adds, and values that JSON cannot hold.
        assert not any({"task_index", "object", "far"} & part.info.keys() for part in group.experiences)
    assert metrics_of(run)[0]["experience_pipeline/groups"] == BATCH


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "the operator naughty failed: KeyError: 'no such thing'"),
        ("returns", "the operator naughty returned list, not experiences and metrics"),
        ("doubles", "returned 1 experiences more than once"),
        ("invents", "experiences that it made itself"),
        ("rewrites", "changed the tokens of an experience"),
        ("rewards", "gave an experience the reward None"),
    ],
)
def test_an_operator_at_fault_ends_the_run_by_name(make, plugin, how, message):
    with pytest.raises(RunError, match=message):
        finish(make(("naughty", {"how": how})))


def test_an_operator_that_hangs_has_a_limit(make, plugin, monkeypatch):
    monkeypatch.setattr(runner, "LIMIT_S", 0.01)
    with pytest.raises(RunError, match=r"reward_filter took more than 0\.01 s"):
        asyncio.run(runner._done("reward_filter", lambda: __import__("time").sleep(0.2)))


def test_a_cut_answer_trains_no_token(make):
    run = make(("mask_response_truncated", {}))
    group = asyncio.run(some(run))[0]
    cut = replace(group.experiences[0], metrics={TRUNCATED: 1.0})
    group = replace(group, experiences=(cut, *group.experiences[1:]))
    outcome = asyncio.run(OperatorPipeline([("mask_response_truncated", {})]).process([group], 1))
    masks = [part.response_mask.any() for part in outcome.kept[0].experiences]
    assert masks == [False, True]
    assert outcome.kept[0].experiences[0].metrics == {TRUNCATED: 1.0}


async def some(run):
    work = run.scheduler.draw_work(run.scheduler.start_draw(run.scheduler.next_work(1)))
    return [group async for group in Rewarding().groups(work, 0, 1)]


def test_the_trainer_leaves_a_dropped_answer_out_of_loss_and_baseline(make):
    group = asyncio.run(some(make(("reward_filter", {}))))[0]
    left = replace(group.experiences[0], metrics={DROPPED: 1.0})
    rows = to_dataproto([left, group.experiences[1]], BatchShape(4, 4, 0))
    assert rows.batch["response_mask"].sum(-1).tolist() == [0, 3]
    rows.non_tensor_batch["uid"] = np.array(["u", "u"], dtype=object)

    def counted(data):
        data.batch["advantages"] = data.batch["returns"] = torch.full((len(data), 4), float(len(data)))
        return data

    computed = without_dropped_rows(counted)(rows)
    assert computed.batch["advantages"][:, 0].tolist() == [0.0, 1.0]
    whole = to_dataproto(list(group.experiences), BatchShape(4, 4, 0))
    assert DROPPED not in whole.non_tensor_batch


STEPS = """
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator

@EXPERIENCE_OPERATORS.register_module("last_steps_only", force=True)
class LastStepsOnly(ExperienceOperator):
    def process(self, exps):
        last = {exp.eid.rid: exp.eid.step for exp in exps}
        return [exp for exp in exps if exp.eid.step == last[exp.eid.rid]], {"runs": len(last)}
"""


def test_operators_see_the_steps_of_a_run_as_its_experiences(make, tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    plugins.load([tmp_path])
    group = asyncio.run(some(make(("reward_filter", {}))))[0]
    told = [(0, 0), (0, 1), (1, 0)]
    parts = tuple(
        replace(group.experiences[0], run=place, info={"of_run": {"run": run, "row": row}})
        for place, (run, row) in enumerate(told)
    )
    outcome = asyncio.run(
        OperatorPipeline([("last_steps_only", {})]).process([replace(group, experiences=parts)], 1)
    )
    (kept,) = outcome.kept
    assert [bool(part.metrics.get(DROPPED)) for part in kept.experiences] == [True, False, False]
    assert [part.info["of_run"] for part in kept.experiences] == [part.info["of_run"] for part in parts]
    assert outcome.metrics["experience_pipeline/runs"] == 2
