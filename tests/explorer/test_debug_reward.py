"""`debug --module reward`: the reward function as it is now, on answers that a job stored."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from explorer_job import job
from jsonschema import Draft202012Validator
from transformers import AutoTokenizer

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.cli import main
from trinity_compat.cli.schema import load

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    print("asked about", ground_truth)
    return {"score": %s, "truth": ground_truth}
"""
WHOLE = """
def compute_score(data_sources, solution_strs, ground_truths, extra_infos):
    print("asked for", len(solution_strs))
    return [1.0] * len(solution_strs)
"""
TASK = {"data_source": "d", "reward_model": {"ground_truth": "4"}, "extra_info": {"index": 7}, "index": 7}


def answer(tokenizer, run, text, reward):
    ids = np.array(tokenizer.encode(text), np.int32)
    return Experience(
        run=run,
        prompt_ids=np.array([1, 2], np.int32),
        response_ids=ids,
        response_mask=np.ones(len(ids), np.uint8),
        logprobs=np.zeros(len(ids), np.float32),
        reward=reward,
        min_model_version=0,
        max_model_version=0,
        prompt_text="sort",
        response_text=text,
    )


def store(folder, toy, file, *words):
    """Make a job that has stored three answers to task 5, and one to it in the validation data."""
    spec, _ = job(folder, toy, f"reward.custom_reward_function.path={file}", *words)
    tokenizer = AutoTokenizer.from_pretrained(f"{toy}/model")
    buffer = open_buffer(spec.database_url)
    parts = [answer(tokenizer, run, str(run + 1), 1.0) for run in range(3)]
    buffer.put_groups([Group("h0/train/5", 5, TASK, 1, tuple(parts))])
    evaluated = answer(tokenizer, 0, "2", 0.0)
    buffer.put_groups([Group("h0/eval/5", 5, TASK, 1, (evaluated,), kind="eval:1")])
    buffer.close()


@pytest.fixture
def stored(tmp_path, toy):
    file = tmp_path / "mine.py"
    file.write_text(REWARD % "1.0")
    store(tmp_path / "job", toy, file)
    return tmp_path / "job", file


@pytest.fixture
def debug(capfd):
    """The command: its exit code, and what it printed."""

    def run(*words, module="reward"):
        code = 0
        try:
            main(["debug", "--module", module, *map(str, words)])
        except SystemExit as ended:
            code = ended.code or 0
        told = capfd.readouterr()
        return SimpleNamespace(exit_code=code, output=told.out + told.err)

    return run


def test_the_scores_are_those_that_the_job_stored(debug, stored):
    told = debug(stored[0], "--task", 5)
    assert told.exit_code == 0, told.output
    assert "truth     '4'" in told.output and "task      index 7 of data_source 'd'" in told.output
    assert told.output.count("stored 1, now 1 in ") == 3
    assert told.output.count("printed: asked about 4") == 3
    assert told.output.endswith("0 of 3 scores differ from the stored ones\n")


def test_an_edited_function_is_seen_beside_the_stored_scores(debug, stored, tmp_path):
    stored[1].write_text(REWARD % "float(solution_str == '2')")
    told = debug(stored[0], "--task", 5, "--output-file", tmp_path / "out.json")
    assert told.output.count("← differs") == 2
    Draft202012Validator(load("debug-reward")).validate(json.loads((tmp_path / "out.json").read_text()))
    assert told.output.endswith("2 of 3 scores differ from the stored ones\n")
    answers = json.loads((tmp_path / "out.json").read_text())["answers"]
    assert [(each["stored"], each["reward"]) for each in answers] == [(1, 0), (1, 1), (1, 0)]
    assert answers[0]["info"]["truth"] == "4" and answers[0]["printed"] == "asked about 4\n"


def test_one_answer_and_one_of_the_validation_data(debug, stored):
    assert debug(stored[0], "--task", 5, "--answer", 2).output.count("answer ") == 1
    told = debug(stored[0], "--task", 5, "--data", "val")
    assert "stored 0, now 1" in told.output and told.output.count("answer ") == 1


def test_a_function_that_takes_all_answers_at_once_is_called_once(debug, tmp_path, toy):
    file = tmp_path / "whole.py"
    file.write_text(WHOLE)
    store(tmp_path / "job", toy, file, "reward.reward_manager.name=batch")
    told = debug(tmp_path / "job", "--task", 5, "--answer", 1)
    assert told.output.count("printed: asked for 3") == 1
    assert "stored 1, now 1 in " in told.output and told.output.count("answer ") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "6"), "--task 6: the job has stored no answers to it"),
        (("--task", "5", "--answer", "3"), "--answer 3: task 5 has answers 0 to 2"),
        (("--port", "1"), "--port has no effect with --module reward"),
    ],
)
def test_what_is_not_there_is_named(debug, stored, words, message):
    told = debug(stored[0], *words)
    assert told.exit_code == 2 and message in told.output


def test_what_the_function_raises_is_shown_with_its_traceback(debug, stored):
    stored[1].write_text(REWARD % "{}['x']")
    told = debug(stored[0], "--task", 5)
    assert told.exit_code == 1 and "KeyError: 'x'" in told.output
    assert f'File "{stored[1]}", line 4, in compute_score' in told.output


def test_a_script_is_not_a_job(debug, stored):
    told = debug(stored[1])
    assert told.exit_code == 2 and "is not a job directory" in told.output


def test_settings_of_a_job_are_those_of_its_run(debug, stored):
    told = debug(stored[0], "--set", "trainer.total_epochs=2", module="workflow")
    assert told.exit_code == 2 and "its settings are those of its run" in told.output
