"""veRL's rows and rewards mean the same in the real trinity-rft, with our plugin loaded by it; a light test
asks the same of our stand-in."""

import importlib
import json
import runpy
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import datasets
import pytest

import trinity_compat.plugins
from trinity_compat.trinity.config import TARGETS

PLUGINS = Path(trinity_compat.plugins.__file__).parent / "upstream"
RIGHT, WRONG = "6 * 7 is\n#### 42", "no idea"


def row(question="What is 6 * 7?", source="openai/gsm8k", truth="42"):
    return {
        "data_source": source,
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 0, "split": "train"},
    }


RELEASES = [pytest.param(release, marks=pytest.mark.upstream) for release in TARGETS]
STAND_IN = {
    "trinity.common.workflows": "trinity_compat.trinity.workflows.trinity_stubs.workflows",
    "trinity.common.rewards": "trinity_compat.trinity.workflows.trinity_stubs.rewards",
    "trinity.common.experience": "trinity_compat.trinity.workflows.trinity_stubs.experience",
    "trinity.common.config": "upstream.standin_reader",
    "trinity.buffer.reader.file_reader": "upstream.standin_reader",
}


@pytest.fixture(params=[pytest.param("stand-in", marks=pytest.mark.verl), *RELEASES], scope="module")
def run(request, tmp_path_factory):
    """Return a function: rows per file, answers, taskset fields → what plugin_case.py reports."""
    if request.param == "stand-in":
        asking = in_this_process()
    else:
        log = tmp_path_factory.mktemp("plugin") / "log"
        asking = in_trinity_rft(request.getfixturevalue("upstream")(request.param), log)
    with asking as answer:
        yield lambda files, answers=(RIGHT, WRONG), **taskset: answer(
            {"rows": files, "answers": list(answers), "taskset": taskset}
        )


@contextmanager
def in_trinity_rft(python, log):
    command = [python, Path(__file__).parent / "plugin_run.py", PLUGINS]
    with log.open("w") as errors, _speaking(command, errors) as process:

        def answer(case):
            print(json.dumps(case), file=process.stdin, flush=True)
            reply = process.stdout.readline()
            assert reply, log.read_text()[-3000:]
            return json.loads(reply)

        yield answer


@contextmanager
def in_this_process():
    """The plugin's file, run over our stand-in and the least of a reader of files."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "trinity"]:
            patch.delitem(sys.modules, name)
        for name in ("trinity", "trinity.common", "trinity.buffer", "trinity.buffer.reader"):
            patch.setitem(sys.modules, name, ModuleType(name))
        for name, ours in STAND_IN.items():
            patch.setitem(sys.modules, name, importlib.import_module(ours))
        reader = sys.modules["trinity.buffer.reader.file_reader"]
        sys.modules["trinity.buffer.reader"].file_reader = reader
        patch.setattr(reader, "TaskFileReader", reader.TaskFileReader)  # the plugin puts its own there
        for registry in (reader.WORKFLOWS, reader.REWARD_FUNCTIONS):
            patch.setattr(registry, "modules", dict(registry.modules))
        runpy.run_path(str(PLUGINS / "verl_compat.py"), run_name="verl_compat")
        yield importlib.import_module("upstream.plugin_case").answer


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


class Sandbox(BaseHTTPRequestHandler):
    """Says of any program that it printed 42, and keeps what it was asked."""

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        ran = {"status": "Finished", "stdout": "42", "return_code": 0}
        said = json.dumps({"status": "Success", "run_result": ran}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("limits", "memory"), [({}, 1024), ({"memory_limit_mb": 64, "max_concurrent": 1}, 64)]
)
def test_code_runs_in_the_sandbox_with_the_memory_that_it_may_have(run, limits, memory):
    tests = json.dumps({"inputs": [""], "outputs": ["42"]})
    with ThreadingHTTPServer(("127.0.0.1", 0), Sandbox) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        arguments = {"sandbox_fusion": {"url": f"http://127.0.0.1:{server.server_port}", **limits}}
        answers = ["```python\nprint(42)\n```", "no code"]
        result = run([[row(source="codecontests", truth=tests)]], answers, reward_fn_args=arguments)
        server.shutdown()
    assert rewards(result) == [[1.0, 0.0]]
    assert {each["memory_limit_MB"] for each in server.asked} == {memory}


@pytest.mark.parametrize(
    "rows, taskset, said",
    [
        ([row(source="unheard of")], {}, "NotImplementedError: Reward function is not implemented"),
        ([{"prompt": row()["prompt"], "data_source": "x"}], {}, "needs the column 'reward_model'"),
        ([{**row(), "prompt": "plain text"}], {}, "veRL's rows hold a list of chat messages"),
        ([row()], {"format": {"prompt_key": "question"}}, "the row has no column 'question'"),
        ([row()], {"reward_fn_args": {"reward_manger": "dapo"}}, "verl_reward has no argument reward_manger"),
        ([row()], {"reward_fn_args": {"custom_reward_function": {"path": "/no.py"}}}, "/no.py"),
        (
            [row()],
            {"reward_fn_args": {"custom_reward_function": {"path": "/no.txt"}}},
            "is not a Python file",
        ),
    ],
)
def test_what_cannot_be_scored_is_said(run, rows, taskset, said):
    assert said in run([rows], **taskset)["error"]


def test_a_folder_of_files_is_read_as_upstream_reads_it(run, tmp_path):
    datasets.Dataset.from_list([row("in a folder")]).to_parquet(tmp_path / "train.parquet")
    result = run([[row()]], path=str(tmp_path))
    assert [task["prompt"][1]["content"] for task in result["tasks"]] == ["in a folder"]
