"""Rows as veRL's fields: prompts through the chat template as upstream renders them, long ones left out."""

import json
import logging
from dataclasses import asdict

import pytest
from omegaconf import OmegaConf
from verl import DataProto
from verl.utils.dataset.rl_dataset import collate_fn

from trinity_compat.common.errors import UserError
from trinity_compat.explorer.data.taskset_order import order_of
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.rollout.worker import PromptTooLong, RolloutWorker
from trinity_compat.run.toy import make_tokenizer
from trinity_compat.trinity.workflows.dataset import TasksetRows
from trinity_compat.trinity.workflows.registry import make_reward
from trinity_compat.trinity.workflows.tasksets import Taskset

ROWS = [{"prompt": "sort 31", "response": "13"}, {"prompt": "sort 4321 " * 9, "response": "1234"}]


def dataset(tmp_path, rows=ROWS, limit=64, path=None, **fields):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"workflow": "simple_workflow", "reward": "format_reward", **fields}
    taskset = asdict(Taskset("buffer.explorer_input.tasksets.0", "toy", path or str(file), **fields))
    config = {"workflows": {"train/0": taskset}, "max_prompt_length": limit}
    return TasksetRows(["train/0"], make_tokenizer(), OmegaConf.create(config))


def test_a_row_has_verls_fields(tmp_path):
    row = dataset(tmp_path)[0]
    assert row["raw_prompt"] == [{"role": "user", "content": "sort 31"}]
    assert row["prompt_text"] == "<|im_start|>user\nsort 31<|im_end|>\n<|im_start|>assistant\n"
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("toy", "13")
    assert row["extra_info"]["reward_fn"] == {"name": "format_reward", "args": {}, "about": {}}


def test_verls_validation_finds_a_tensor_in_its_batches(tmp_path):
    rows = dataset(tmp_path)
    assert len(DataProto.from_single_dict(collate_fn([rows[0]])).batch) == 1


def test_a_prompt_that_is_too_long_is_left_out_and_counted(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert len(dataset(tmp_path)) == 1
    assert "toy: 1 prompts of more than 64 tokens are left out" in caplog.text
    assert len(dataset(tmp_path, drop_overlong=False)) == 2


def test_a_prompt_that_just_fits_stays(tmp_path):
    messages = [{"role": "user", "content": ROWS[0]["prompt"]}]
    told = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    length = len(make_tokenizer().apply_chat_template(messages, **told))
    assert len(dataset(tmp_path, ROWS[:1], limit=length)) == 1
    assert len(dataset(tmp_path, ROWS[:1], limit=length - 1)) == 0


def test_arguments_that_a_reward_does_not_take_are_named():
    with pytest.raises(UserError, match=r"reward_fn_args of math_dapo_reward: .*nonsense"):
        make_reward("math_dapo_reward", {"nonsense": 1})


def test_the_first_rows_alone_are_drawn_where_more_are_not_wanted(tmp_path):
    files = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for file in files:
        texts = (json.dumps({"prompt": f"{file.stem}{row}", "response": "1"}) + "\n" for row in range(5))
        file.write_text("".join(texts))
    names, fields = [file.stem for file in files], {"workflow": "simple_workflow", "reward": "format_reward"}
    config = OmegaConf.create(
        {
            "workflows": {file.stem: asdict(Taskset("x", file.stem, str(file), **fields)) for file in files},
            "tasksets": {name: {"selector": {"type": "random", "seed": 1}, "place": "x"} for name in names},
            "max_prompt_length": 64,
            "train_files": names,
            "train_batch_size": 1,
        }
    )
    rows = TasksetRows(names, make_tokenizer(), config, max_samples=7)
    order = order_of(rows, config)
    drawn = [rows[order.row(number)]["raw_prompt"][0]["content"] for number in range(14)]
    assert (rows.sizes, len(rows)) == ([5, 2, 0], 7)
    assert {text[0] for text in drawn[:7]} == {text[0] for text in drawn[7:]} == {"a", "b"}


def test_an_answer_that_is_begun_goes_on(tmp_path):
    row = dataset(tmp_path, format={"reply_prefix": "It is"})[0]
    assert row["prompt_text"].endswith("<|im_start|>assistant\nIt is")


def test_a_base_model_is_asked_without_a_chat_template(tmp_path):
    row = dataset(
        tmp_path,
        workflow="math_boxed_workflow",
        reward="math_boxed_reward",
        format={"system_prompt": "Box."},
        workflow_args={"use_base": True},
    )[0]
    assert row["prompt_text"] == "System:Box.\nUser:\nsort 31\nAssistant:\n"


def test_the_yaml_s_chat_template_comes_before_the_model_s(tmp_path):
    row = dataset(tmp_path, chat_template="{{ messages[0]['content'] }}?")[0]
    assert row["prompt_text"] == "sort 31?"


def test_whether_to_think_is_the_template_s_to_read(tmp_path):
    template = "{% if enable_thinking is false %}no{% endif %}{{ messages[0]['content'] }}"
    assert dataset(tmp_path, chat_template=template)[0]["prompt_text"] == "sort 31"
    assert dataset(tmp_path, chat_template=template, enable_thinking=False)[0]["prompt_text"] == "nosort 31"


def test_a_row_may_name_its_own_reward(tmp_path):
    rows = [{**ROWS[0], "kind": "countdown_reward"}, {**ROWS[0], "kind": None}]
    made = dataset(tmp_path, rows, format={"reward_fn_key": "kind"})
    names = [made[i]["extra_info"]["reward_fn"]["name"] for i in range(2)]
    assert names == ["countdown_reward", "format_reward"]


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        (
            ROWS,
            {"format": {"prompt_key": "ask"}},
            r"column 'ask' \(format.prompt_key\) is not in .*rows.jsonl",
        ),
        (
            [{"prompt": [{"role": "user", "content": "1"}], "response": "1"}],
            {},
            "column 'prompt' .* holds a list, not a text",
        ),
        ([{"prompt": "1 + 1", "response": 2}], {"reward": "countdown_reward"}, "'response' .* holds a int"),
        (ROWS, {"reward": None}, "names no reward: simple_workflow needs one"),
        (ROWS, {"path": "/nowhere/rows.jsonl"}, "tasksets.0.path=/nowhere/rows.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_asked_is_named(tmp_path, rows, fields, message):
    with pytest.raises(UserError, match=message):
        dataset(tmp_path, rows, **fields)


def worker(limit):
    """As much of a rollout worker as reads a prompt."""
    made = object.__new__(RolloutWorker)
    made._tokenizer = make_tokenizer()
    rollout = {"prompt_length": limit, "agent": {"default_agent_loop": "tool_agent"}}
    made._config = OmegaConf.create(
        {"data": {"truncation": "error"}, "actor_rollout_ref": {"rollout": rollout}}
    )
    return made


def test_the_engine_gets_the_tokens_of_the_prompt_as_text(tmp_path):
    row = dataset(tmp_path, format={"reply_prefix": "It is"})[0]
    assert worker(64)._prompt(row) == make_tokenizer()(row["prompt_text"]).input_ids
    assert worker(64)._is_single_turn(RolloutTask(0, row, 1, {}))
    with pytest.raises(PromptTooLong):
        worker(8)._prompt(row)


def test_a_plugin_s_workflow_gets_the_row_as_it_is(tmp_path):
    row = dataset(tmp_path, workflow="mine", plugin=True)[1]
    assert (row["raw_task"], row["taskset"]) == (ROWS[1], "train/0")
    assert not worker(64)._is_single_turn(RolloutTask(0, row, 1, {}))
