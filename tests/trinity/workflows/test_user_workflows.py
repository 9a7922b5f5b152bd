"""Workflows of a user's plugin on a recorded model: what they make, and what is refused of them."""

import asyncio
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from plugin_outcomes import CASES, outcomes, taskset_of
from recorded_model import ANSWERS, Recorded, make_tokenizer

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.agents import time_limit
from trinity_compat.trinity.workflows import plugins
from trinity_compat.trinity.workflows.model import WorkflowModel
from trinity_compat.trinity.workflows.run_rows import TRUNCATED_ROWS, Limits, by_step, rows_of
from trinity_compat.trinity.workflows.runner import Workflows
from trinity_compat.trinity.workflows.tasksets import Taskset

FOLDER = Path(__file__).parent / "plugins"
ROW = {"prompt": "sort 21", "response": "12"}
SAMPLINGS = [{"temperature": 1.0, "seed": 7 + i} for i in range(3)]


@pytest.fixture(scope="module")
def made():
    """Workflow → its three runs, and what the model was asked for them."""
    return dict(zip([case[0] for case in CASES], asyncio.run(outcomes()), strict=True))


def run(workflow, limits=None, writer=None, evaluates=False, **fields):
    async def all_of_it():
        running = Workflows(
            writer or Recorded(), make_tokenizer(), "toy", limits or Limits(512, 64), str(FOLDER)
        )
        taskset = Taskset("t", "t", "", workflow, **fields)
        return await running.run(taskset, ROW, SAMPLINGS, evaluates=evaluates)

    return asyncio.run(all_of_it())


def text(ids):
    return make_tokenizer().decode(ids)


def test_a_repeatable_workflow_asks_once_for_all_answers(made):
    runs, (asked,) = made["shouting_workflow"]["runs"], made["shouting_workflow"]["asked"]
    assert "SORT 21" in asked["prompt"]
    assert asked["sampling"]["n"] == 3
    assert [text(each["response_ids"]) for each in runs] == [f"{answer}<|im_end|>" for answer in ANSWERS]
    assert [each["reward"] for each in runs] == [2.0, 0.0, 0.0]


def test_others_run_once_an_answer_each_with_its_seed(made):
    asked = made["async_once_workflow"]["asked"]
    assert [each["sampling"]["seed"] for each in asked] == [7, 8, 9]
    assert [each["reward"] for each in made["async_once_workflow"]["runs"]] == [1.0, 0.0, 0.0]


def test_a_conversation_is_one_experience_whose_mask_is_the_assistants(made):
    for each in made["second_thoughts_workflow"]["runs"]:
        own = [token for token, mine in zip(each["response_ids"], each["mask"], strict=True) if mine]
        first, second = text(own).split("<|im_end|>\n")[:2]
        assert {first, second} <= set(ANSWERS)
        assert [bool(value) for value in each["logprobs"]] == [bool(mine) for mine in each["mask"]]
        assert each["reward"] == 0.5


def test_the_turns_of_an_openai_agent_are_joined(made):
    for each in made["agent_workflow"]["runs"]:
        whole = text([*each["prompt_ids"], *each["response_ids"]])
        assert whole.count("<|im_start|>assistant\n") == 2
        own = [token for token, mine in zip(each["response_ids"], each["mask"], strict=True) if mine]
        assert text(own).count("<|im_end|>") == 2
        assert (each["reward"], each["turns"]) == (2.0, 4)
    assert {
        (a["sampling"]["temperature"], a["sampling"]["max_tokens"]) for a in made["agent_workflow"]["asked"]
    } == {(0.7, 6)}


def test_two_calls_of_a_run_have_different_seeds(made):
    seeds = [each["sampling"]["seed"] for each in made["agent_workflow"]["asked"]]
    assert len(set(seeds)) == len(seeds) == 6


@pytest.mark.parametrize("workflow", ["graded_workflow", "async_graded_workflow"])
def test_steps_with_rewards_of_their_own_are_one_sequence_that_says_so(made, workflow):
    for each in made[workflow]["runs"]:
        whole = text([*each["prompt_ids"], *each["response_ids"]])
        assert whole.count("<|im_start|>assistant\n") == 2
        assert each["reward"] == 1.0  # of the last: the recorded answers are 21, then 1
        assert each["told"] == {
            "steps": [{"step": 0, "reward": 21.0}, {"step": 1, "reward": 1.0}],
            "env_state_hash": ["after 0", "after 1"],
            "step_reward": [0.0, 0.1],
        }


@pytest.mark.parametrize("fields", [{"parting": "each"}, {"parting": "chains", "by_step": True}])
def test_steps_that_are_no_conversation_are_rows_of_their_run(fields):
    rows = run("window_workflow", **fields)
    assert [(row.run, row.place) for row in rows] == [(r, step) for r in range(3) for step in range(3)]
    assert [text(row.response_ids) for row in rows] == [f"{answer}<|im_end|>" for answer in ANSWERS] * 3
    asked = ["sort 21", "12", "21"]
    assert all(
        f"user\n{seen}<|im_end|>" in text(row.prompt_ids) for row, seen in zip(rows, asked * 3, strict=True)
    )
    assert [row.reward for row in rows] == [12.0, 21.0, 1.0] * 3
    assert [by_step(row)["env_state_hash"] for row in rows[:3]] == [["12"], ["21"], ["1"]]
    assert [by_step(row)["steps"] for row in rows[:2]] == [
        [{"step": s, "reward": r}] for s, r in ((0, 12.0), (1, 21.0))
    ]


@pytest.mark.parametrize(("parting", "rows"), [("chains", 1), ("each", 2)])
def test_steps_of_one_conversation_are_apart_only_where_each_is_to_count(parting, rows):
    made = run(
        "stepwise_workflow", workflow_args={"apart": False}, parting=parting, by_step=parting == "chains"
    )
    assert len(made) == 3 * rows
    assert made[rows - 1].reward == 1.0
    whole = [*made[0].prompt_ids, *made[0].response_ids]
    if parting == "each":
        assert made[1].prompt_ids[: len(whole)] == whole


def test_a_class_that_makes_all_runs_says_whose_each_is():
    rows = run("all_windows_workflow", parting="each")
    assert [(row.run, row.place, row.reward) for row in rows] == [
        (r, step, float(step)) for r in range(3) for step in range(2)
    ]


def test_what_a_class_gives_another_task_is_a_row_that_says_so():
    rows = run("all_windows_workflow", parting="each", workflow_args={"judges": True})
    assert [(row.run, row.place, row.task) for row in rows] == [
        (r, step, ("", "0-judge")[step]) for r in range(3) for step in range(2)
    ]
    judged = run("all_windows_workflow", parting="each", workflow_args={"judges": True}, evaluates=True)
    assert [row.reward for row in judged] == [0.0] * 3


@pytest.mark.parametrize("parting", ["joined", "chains", "each"])
def test_a_run_s_evaluation_is_its_last_step_s(parting):
    runs = run("stepwise_workflow", workflow_args={"apart": False}, evaluates=True, parting=parting)
    assert [each.reward for each in runs] == [1.0] * 3
    windows = run("window_workflow", evaluates=True, parting=parting)
    assert [(text(each.response_ids), each.reward) for each in windows] == [("1<|im_end|>", 1.0)] * 3
    assert [each.metrics for each in windows] == [{"steps": 3.0}] * 3


def test_a_step_s_prompt_is_held_to_the_limit_by_itself():
    rows = run("window_workflow", parting="each")
    lengths = sorted({len(row.prompt_ids) for row in rows})
    assert len(run("window_workflow", Limits(lengths[-1], 8), parting="each")) == 9
    with pytest.raises(
        ValueError, match=f"a prompt of {lengths[-1]} tokens exceeds max_prompt_tokens={lengths[0]}"
    ):
        run("window_workflow", Limits(lengths[0], 8), parting="each")


def test_an_evaluation_without_a_reward_counts_the_accuracy():
    runs = run("measuring_workflow", evaluates=True)
    assert [each.reward for each in runs] == [each.metrics["accuracy"] for each in runs] == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="has no reward"):
        run("measuring_workflow")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward": math.inf}, "the reward inf: a finite number is needed"),
        ({"reward": math.nan}, "the reward nan: a finite number is needed"),
        ({"reward": 10**400}, "an experience's reward is not a number that a float holds"),
        ({"reward": 1.0, "metrics": {"speed": 10**400}}, "an experience's metric speed is not a number"),
    ],
)
def test_a_reward_or_metric_out_of_range_is_named(fields, message):
    given = {
        "metrics": {},
        "tokens": [1, 2],
        "prompt_length": 1,
        "action_mask": None,
        "logprobs": None,
        "info": {},
    }
    eid = SimpleNamespace(task="0", step=0)
    with pytest.raises(ValueError, match=message):
        rows_of([SimpleNamespace(eid=eid, **(given | fields))], Limits(8, 8))


def test_of_a_run_that_is_cut_only_the_turns_that_are_left_are_told():
    (whole, *_) = run("graded_workflow", by_step=True)
    limit = len(whole.prompt_ids) + 5
    (first, *_) = run("graded_workflow", Limits(512, 64, limit), by_step=True)
    assert len(first.response_ids) == 5
    assert first.truncated and first.metrics[TRUNCATED_ROWS] == 1.0
    told = by_step(first)
    assert (told["env_state_hash"], len(told["steps"])) == (["after 0"], 2)


@pytest.mark.parametrize(
    ("workflow", "fields", "error", "message"),
    [
        ("failing_workflow", {}, ZeroDivisionError, "the user's own fault"),
        ("unrewarded_workflow", {}, ValueError, "has no reward"),
        (
            "stepwise_workflow",
            {"workflow_args": {"apart": True}},
            ValueError,
            "not one conversation.*trinity_compat.steps_as_rows: true",
        ),
        ("all_windows_workflow", {}, ValueError, "returned 6 experiences, 3 were asked for"),
        (
            "stepwise_workflow",
            {"workflow_args": {"apart": False}},
            ValueError,
            r"different rewards \(0, 1\).*write algorithm_type: multi_step_grpo",
        ),
        ("nowhere_workflow", {}, ValueError, "no 'nowhere_workflow' is registered in workflows"),
    ],
)
def test_what_cannot_be_trained_on_says_why(workflow, fields, error, message):
    with pytest.raises(error, match=message):
        run(workflow, **fields)


def test_a_prompt_over_the_limit_is_refused():
    with pytest.raises(ValueError, match="exceeds max_prompt_tokens=8"):
        run("async_once_workflow", Limits(8, 512))


def test_a_class_by_its_path_is_imported_where_it_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "by_its_path.py").write_text(
        "from trinity.common.workflows import SimpleWorkflow\n"
        "class Mine(SimpleWorkflow): ...\n"
        "from trinity.common.rewards import RewardFn\n"
        "class One(RewardFn):\n"
        "    def __init__(self, **arguments): ...\n"
        "    def __call__(self, response, **others): return {'one': 1.0}\n"
    )
    made = run("by_its_path.Mine", reward="by_its_path.One")
    assert [each.reward for each in made] == [1.0] * len(SAMPLINGS)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        run("nowhere.at_all.Mine", reward="by_its_path.One")


def test_a_message_that_holds_an_image_is_not_asked_without_it():
    chat = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image"}]}]
    around = SimpleNamespace(tokenizer=make_tokenizer(), chat_template=None, enable_thinking=None)
    model = WorkflowModel(around, {})
    with pytest.raises(ValueError, match="a message holds image"):
        asyncio.run(model.chat_async(chat))
    with pytest.raises(ValueError, match="a message holds image"):
        asyncio.run(
            model.convert_messages_to_experience_async([*chat, {"role": "assistant", "content": "a"}])
        )
    with pytest.raises(ValueError, match="a message holds image"):
        model.prompt_of(chat)


def test_max_response_tokens_limits_an_answer_and_not_a_run_of_several():
    """trinity-rft 0.6.0: an experience's limit is max_model_len (common/models/model.py)."""
    whole = run("second_thoughts_workflow")
    longest = max(len(each.response_ids) for each in whole)
    runs = run("second_thoughts_workflow", Limits(64, 9, 512))
    assert max(len(each.response_ids) for each in runs) == longest > 9
    assert not any(each.truncated or TRUNCATED_ROWS in each.metrics for each in runs)


def test_a_row_ends_with_max_model_len_and_is_counted():
    cut = run("second_thoughts_workflow", Limits(32, 9, 50))
    assert {len(each.prompt_ids) + len(each.response_ids) for each in cut} == {49}  # as upstream: one less
    assert all(each.truncated and each.metrics[TRUNCATED_ROWS] == 1.0 for each in cut)


def test_an_installed_trinity_comes_before_the_stand_in(tmp_path):
    package = tmp_path / "trinity"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True\n")
    stubs = "trinity_compat.trinity.workflows.trinity_stubs"
    code = f"from {stubs} import install; install(); import trinity; print(trinity.REAL)"
    done = os.popen(f"PYTHONPATH={tmp_path}:{os.environ.get('PYTHONPATH', '')} {sys.executable} -c '{code}'")
    assert done.read() == "True\n"


def test_what_the_stand_in_lacks_says_what_to_install(tmp_path):
    (tmp_path / "deep.py").write_text("from trinity.buffer.pipelines import TaskPipeline\n")
    with pytest.raises(
        RunError, match=r"deep.py failed: .*trinity.buffer.pipelines is trinity-rft's, which is not installed"
    ):
        Workflows(Recorded(), make_tokenizer(), "toy", Limits(8, 8), str(tmp_path))


def test_names_are_read_without_running_a_plugin(tmp_path):
    (tmp_path / "mine.py").write_text(
        "raise SystemExit\n@WORKFLOWS.register_module('a')\nclass A: ...\n"
        "WORKFLOWS.register_module(module_name='b', module_cls=A)\n"
    )
    assert plugins.registered_in([tmp_path]) == {"a", "b"}
    (tmp_path / "worse.py").write_text("def (\n")
    with pytest.raises(UserError, match=r"worse\.py:1: this plugin is not Python"):
        plugins.registered_in([tmp_path])
    with pytest.raises(UserError, match="no such folder"):
        plugins.registered_in([tmp_path / "nowhere"])


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_the_time_that_a_workflow_waits_for_the_model_can_be_left_out(case):
    """Those that run in a thread too: explorer/agents/time_limit.py finds its clock in the context."""
    clocks = []

    class Noting(Recorded):
        async def write(self, prompt_ids, sampling):
            clocks.append(time_limit._current.get())
            return await super().write(prompt_ids, sampling)

    async def all_of_it():
        running = Workflows(Noting(), make_tokenizer(), "toy", Limits(512, 64), str(FOLDER))
        await time_limit.limited(running.run(taskset_of(*case), ROW, SAMPLINGS), 60.0)

    asyncio.run(all_of_it())
    assert clocks and None not in clocks
