"""veRL's rows and rewards mean the same in the real trinity-rft, with our plugin loaded by it."""

import json
import subprocess
from pathlib import Path

import pytest

import trinity_compat.plugins
from trinity_compat.trinity_config import TARGETS

pytestmark = pytest.mark.upstream

PLUGINS = Path(trinity_compat.plugins.__file__).parent / "upstream"
RIGHT, WRONG = "6 * 7 is\n#### 42", "no idea"


def row(question="What is 6 * 7?", source="openai/gsm8k", truth="42"):
    return {
        "data_source": source,
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 0, "split": "train"},
    }


@pytest.fixture(params=TARGETS, scope="module")
def run(request, upstream, tmp_path_factory):
    """Return a function: rows per file, answers, taskset fields → what plugin_run.py reports."""
    log = tmp_path_factory.mktemp("plugin") / "log"
    command = [upstream(request.param), Path(__file__).parent / "plugin_run.py", PLUGINS]
    with log.open("w") as errors, _speaking(command, errors) as process:

        def inside(files, answers=(RIGHT, WRONG), **taskset):
            case = {"rows": files, "answers": list(answers), "taskset": taskset}
            print(json.dumps(case), file=process.stdin, flush=True)
            reply = process.stdout.readline()
            assert reply, log.read_text()[-3000:]
            return json.loads(reply)

        yield inside


def _speaking(command, errors):
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)


def rewards(result):
    assert "error" not in result, result["error"]
    return [[one["reward"] for one in group] for group in result["groups"]]


def test_the_chat_goes_to_the_model_as_it_stands_and_the_truth_is_verls(run):
    result = run([[row()]], default_reward_fn_type="verl_reward", rollout_args={"temperature": 0.5})
    assert rewards(result) == [[1.0, 0.0]]
    asked = result["asked"][0]
    assert asked["messages"] == row()["prompt"]
    assert asked["arguments"]["temperature"] == 0.5
    assert asked["arguments"]["n"] == 2
    assert [one["run"] for one in result["groups"][0]] == [10, 11]


def test_the_very_files_are_read_and_long_prompts_left_out_beforehand(run):
    files = [[row("short"), row("long " * 100)], [row("second file")]]
    result = run(files, workflow_args={"filter_overlong_prompts": True, "max_prompt_length": 60})
    assert [task["prompt"][1]["content"] for task in result["tasks"]] == ["short", "second file"]
    kept = run(files)
    assert len(kept["tasks"]) == 3
    first = run(files, workflow_args={"max_samples": 1})
    assert len(first["tasks"]) == 1


def test_a_custom_reward_function_with_its_arguments(run, tmp_path):
    code = "def judge(data_source, solution_str, ground_truth, extra_info=None, bonus=0):\n"
    code += "    return {'score': bonus + (ground_truth in solution_str), 'acc': 1.0, 'seen': data_source}\n"
    (tmp_path / "judge.py").write_text(code)
    custom = {"path": str(tmp_path / "judge.py"), "name": "judge", "reward_kwargs": {"bonus": 0.5}}
    result = run([[row(source="mine")]], reward_fn_args={"custom_reward_function": custom})
    assert rewards(result) == [[1.5, 0.5]]
    metrics = result["groups"][0][0]["metrics"]
    assert metrics["acc"] == 1.0
    assert "seen" not in metrics  # upstream's metrics are numbers


def test_another_data_source_column(run):
    other = {**row(), "origin": "openai/gsm8k", "data_source": "no such"}
    assert rewards(run([[other]], reward_fn_args={"reward_fn_key": "origin"})) == [[1.0, 0.0]]


def test_dapo_takes_the_overlong_penalty(run):
    answers = ["Answer: 42", "x" * 30]
    overlong = {"enable": True, "len": 20, "penalty_factor": 1.0, "log": False}
    arguments = {"reward_manager": "dapo", "max_resp_len": 30, "overlong_buffer_cfg": overlong}
    result = run([[row(source="math_dapo")]], answers, reward_fn_args=arguments)
    assert rewards(result) == [[1.0, -2.0]]  # 30 tokens: −1 for the answer, −(30 − 10)/20 for the length


@pytest.mark.parametrize("manager", ["naive", "prime"])
def test_every_manager_scores_like_naive_here(run, manager):
    assert rewards(run([[row()]], reward_fn_args={"reward_manager": manager})) == [[1.0, 0.0]]


def test_the_batch_manager_gets_the_whole_group(run, tmp_path):
    code = "def score(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):\n"
    code += "    return [float(len(solution_strs) + i) for i in range(len(solution_strs))]\n"
    (tmp_path / "score.py").write_text(code)
    custom = {"path": str(tmp_path / "score.py"), "name": "score"}
    arguments = {"reward_manager": "batch", "custom_reward_function": custom}
    assert rewards(run([[row()]], reward_fn_args=arguments)) == [[2.0, 3.0]]


@pytest.mark.parametrize(
    "rows, taskset, said",
    [
        ([row(source="unheard of")], {}, "NotImplementedError: Reward function is not implemented"),
        ([{"prompt": row()["prompt"], "data_source": "x"}], {}, "needs the column 'reward_model'"),
        ([{**row(), "prompt": "plain text"}], {}, "veRL's rows hold a list of chat messages"),
        ([row()], {"format": {"prompt_key": "question"}}, "the row has no column 'question'"),
        ([row()], {"reward_fn_args": {"reward_manger": "dapo"}}, "verl_reward has no argument reward_manger"),
        ([row()], {"reward_fn_args": {"custom_reward_function": {"path": "/no.py"}}}, "/no.py"),
    ],
)
def test_what_cannot_be_scored_is_said(run, rows, taskset, said):
    assert said in run([rows], **taskset)["error"]
