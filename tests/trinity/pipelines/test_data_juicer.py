"""Data-Juicer's service as a run uses it; the package itself is a stand-in (juicer_standin), or the real one
(nightly)."""

import asyncio
import json
import os
import subprocess
import urllib.error
import urllib.request
import venv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from trinity_compat.buffer.model import DROPPED, Experience, Group
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import put, value_at
from trinity_compat.run.checks import preflight
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.supervise import task_pipeline
from trinity_compat.trinity.pipelines.juicer.client import Client
from trinity_compat.trinity.pipelines.juicer.experiences import DataJuicer
from trinity_compat.trinity.pipelines.juicer.work import ranked
from trinity_compat.trinity.pipelines.runner import OperatorPipeline
from trinity_compat.trinity.workflows import trinity_stubs as upstream

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
YAML = ROOT / "examples" / "workflows" / "simple.yaml"
STARTED = {"port": 0}
LONG = [{"length_filter": {"text_key": "response_text", "min_len": 3}}]
QUESTIONS = ["sort 21!", "no", "sort 312"]


@pytest.fixture
def standin(monkeypatch):
    """Processes of this test find the stand-in for Data-Juicer."""
    paths = [str(HERE / "juicer_standin"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def inputs(tmp_path):
    """A file of tasks; the tests' folder is the current one."""
    lines = [json.dumps({"prompt": text, "response": str(n)}) for n, text in enumerate(QUESTIONS)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    return tmp_path / "in.jsonl"


def answers(*texts):
    return [
        SimpleNamespace(
            eid=SimpleNamespace(batch=1, task="t", run=run, step=0),
            tokens=[1, 2],
            logprobs=[-0.5],
            action_mask=[1],
            prompt_text="q",
            response_text=text,
            reward=float(run),
            prompt_length=1,
            truncate_status=None,
            metrics={},
            info={"own": run, "mixed": run if run == 1 else "text"} if run else {},
        )
        for run, text in enumerate(texts)
    ]


def planned(cwd, **changes):
    config = yaml.safe_load(YAML.read_text())
    config["buffer"]["explorer_input"]["tasksets"][0]["path"] = "tasks"
    for path, value in changes.items():
        put(config, path.replace("__", "."), value)
    return make_plan(config, RunOptions(), cwd=cwd, device="cpu")


def with_tasks(cwd, service, **pipeline):
    operators = [{"name": "length_filter", "args": {"text_key": "prompt", "min_len": 3}}]
    return planned(
        cwd,
        service__data_juicer=service,
        data_processor__task_pipeline={"operators": operators, "inputs": ["in.jsonl"], **pipeline},
    )


def test_answers_that_it_drops_are_counted_and_the_others_say_what_it_measured(standin):
    operator = DataJuicer(STARTED, LONG, np=1)
    try:
        kept, metrics = operator.process(answers("no", "a long one", "12!!", ""))
    finally:
        operator.close()
    assert [each.eid.run for each in kept] == [1, 2]
    assert [each.reward for each in kept] == [1.0, 2.0]
    assert kept[0].info == {"own": 1, "mixed": 1, "alnum_ratio": 0.8}
    assert kept[1].info == {"own": 2, "mixed": "text", "alnum_ratio": 0.5}
    assert metrics == {"filtered_count": 2}


def test_what_it_drops_stays_in_its_group_marked_and_what_others_said_stays_too(standin):
    groups = [group("mixed", "no", "long"), group("gone", "no", "a")]
    arguments = {"service_config": STARTED, "operators": LONG, "np": 1}

    upstream.install()

    async def processed():
        pipeline = OperatorPipeline([("data_juicer", arguments)])
        await pipeline.prepare()
        try:
            return await pipeline.process(groups, 1)
        finally:
            await pipeline.close()

    outcome = asyncio.run(processed())
    (kept,), (dropped,) = outcome.kept, outcome.dropped
    assert [each.metrics.get(DROPPED, 0.0) for each in kept.experiences] == [1.0, 0.0]
    assert kept.experiences[1].info == {"said": "long", "alnum_ratio": 1.0}
    assert [each.info["dropped_by"] for each in dropped.experiences] == ["data_juicer"] * 2
    assert outcome.metrics[DROPPED] == 3.0


def group(key, *texts):
    ids, one = np.array([1], np.int32), np.array([1], np.uint8)
    about = {
        "prompt_ids": ids,
        "response_ids": ids,
        "response_mask": one,
        "logprobs": np.zeros(1, np.float32),
    }
    versions = {"min_model_version": 0, "max_model_version": 0}
    parts = tuple(
        Experience(run=run, reward=1.0, response_text=text, info={"said": text}, **about, **versions)
        for run, text in enumerate(texts)
    )
    return Group(key=f"h1/train/{key}", task_no=0, task={}, explorer_step=1, experiences=parts)


def test_an_operator_that_there_is_not_is_told_when_the_run_begins(standin):
    with pytest.raises(RunError, match=r"Failed to parse config: KeyError: 'lenth_filter'"):
        DataJuicer(STARTED, [{"lenth_filter": {}}], np=1)


def test_the_service_installs_nothing_into_the_run_s_environment(standin):
    operator = DataJuicer(STARTED, [{"needs_a_package": {}}], np=1)
    try:
        with pytest.raises(RunError, match=r"installs nothing: .* install --no-index some-package"):
            operator.process(answers("a"))
    finally:
        operator.close()


def test_a_started_service_serves_its_own_run_and_ends_with_it(standin):
    client = Client(STARTED, {"operators": LONG})
    process, url = client._process, client._url
    with pytest.raises(RunError, match="does not answer: 401"):
        Client({"server_url": url}, {"operators": LONG}, connect_s=0.0)
    with urllib.request.urlopen(asking(f"{url}/health", client)) as answer:
        assert answer.status == 200
    for header in ({"Origin": "http://a.page"}, {"Host": "a.page:80"}):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(asking(f"{url}/health", client, **header))
    process.stdin.close()  # as when the run's process is killed
    assert process.wait(60) < 0
    client.close()


def asking(url, client, **headers):
    return urllib.request.Request(url, headers={**client._http.headers, **headers})


def test_tasks_are_processed_once_and_what_is_dropped_lies_beside_them(standin, inputs):
    made = with_tasks(inputs.parent, {"auto_start": True}, top_k=1).spec.verl
    (_, told) = task_pipeline.run(made)
    assert (
        told == f"1 tasks in {inputs.parent}/tasks, of 3; 2 dropped, in {inputs.parent}/tasks.dropped.jsonl"
    )
    (task,) = map(json.loads, (inputs.parent / "tasks" / "output.jsonl").read_text().splitlines())
    assert (task["prompt"], task["priority"]) == ("sort 312", 0.875)  # the other has a sign more
    dropped = map(json.loads, (inputs.parent / "tasks.dropped.jsonl").read_text().splitlines())
    assert [(each["response"], each["dropped_by"]) for each in dropped] == [
        ("0", "top_k"),
        ("1", "operators"),
    ]
    assert list(task_pipeline.run(made)) == [told]  # again: as it lies there
    other = with_tasks(inputs.parent, {"auto_start": True}).spec.verl
    with pytest.raises(UserError, match="exists and was not made by this pipeline"):
        list(task_pipeline.run(other))


def test_tasks_go_into_folders_that_are_made_for_them(standin, inputs):
    made = with_tasks(inputs.parent, {"auto_start": True}, output={"path": "of/my/own"}).spec.verl
    assert list(task_pipeline.run(made))[1].startswith(f"2 tasks in {inputs.parent}/of/my/own, of 3;")


def test_a_task_pipeline_is_part_of_the_plan(inputs):
    made = with_tasks(inputs.parent, {"server_url": "http://127.0.0.1:5005"}, top_k=2)
    found = value_at(made.spec.verl, "data.task_pipeline")
    assert found["service"] == {"server_url": "http://127.0.0.1:5005"}
    assert found["asked"]["operators"] == [{"length_filter": {"text_key": "prompt", "min_len": 3}}]
    assert (found["asked"]["inputs"], found["asked"]["top_k"]) == ([str(inputs)], 2)
    assert any(note.startswith("task pipeline: 1 file(s)") for note in made.notes)
    assert not [path for path in made.unread if path.startswith(("data_processor", "service"))]
    assert not preflight.starts_juicer(made.spec.verl)
    assert preflight.starts_juicer(with_tasks(inputs.parent, {"auto_start": True}).spec.verl)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ({"inputs": []}, "task_pipeline.inputs names no file"),
        ({"operators": []}, r"operators is \[\]: write a list of sections"),
        ({"num_process": 0}, "num_process is 0: write a number"),
        ({"output": {"path": "tasks.jsonl"}}, "writes a folder, and the taskset's path is tasks.jsonl"),
    ],
)
def test_a_task_pipeline_that_cannot_run_is_refused(pipeline, message, inputs):
    with pytest.raises(UserError, match=message):
        with_tasks(inputs.parent, {"auto_start": True}, **pipeline)


def test_files_that_are_not_there_are_told_before_anything_starts(tmp_path):
    made = with_tasks(tmp_path, {"auto_start": True})
    with pytest.raises(UserError, match=r"Data-Juicer's inputs names .*/in\.jsonl, which does not exist"):
        preflight.check_juicer(made.spec.verl)


def test_priorities_weigh_quality_against_difficulty():
    rows = [
        {"n": 0, "__dj__stats__": {"alnum_ratio": 0.5, "perplexity": 10.0}},
        {"n": 1, "__dj__stats__": {"alnum_ratio": 0.5, "perplexity": 30.0}},
        {"n": 2, "__dj__stats__": {"alnum_ratio": 1.0, "perplexity": 30.0}},
    ]
    made = ranked(rows)  # 1.0 · quality − 0.7 · difficulty
    assert [row["n"] for row in made] == [0, 2, 1]
    assert [row["priority"] for row in made] == pytest.approx([0.5, 0.3, -0.2])
    assert [row["n"] for row in ranked(rows, {"difficulty": 1.0}, top_k=2)] == [1, 2]
    assert ranked([{"n": 0}, {"n": 1}], top_k=1) == [{"n": 0}]


def test_operators_see_which_tokens_are_the_policy_s():
    def answer(mask):
        eid = SimpleNamespace(batch=1, task="t", run=0, step=0)
        more = {"logprobs": None, "reward": 1.0, "metrics": None, "info": None}
        return SimpleNamespace(eid=eid, tokens=[5, 6, 7], action_mask=mask, **more)

    seen = []
    operators = object.__new__(DataJuicer)  # without its service
    operators._client = SimpleNamespace(experiences=lambda table: seen.append(table.to_pylist()) or table)
    kept, metrics = operators.process([answer([1, 0]), answer(None)])
    assert [row["action_mask"] for row in seen[0]] == [[True, False], []]
    assert len(kept) == 2 and metrics == {"filtered_count": 0}


def test_a_score_is_the_mean_of_what_was_measured():
    measured = {"alnum_ratio": 0.5, "stopwords_ratio": 1.0, "char_rep_ratio": 1.0, "perplexity": 10.0}
    (row,) = ranked([{"__dj__stats__": measured}])
    assert (row["quality_score"], row["difficulty_score"]) == (pytest.approx(0.5), 1.0)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_filters_of_the_real_data_juicer_drop_what_they_name(tmp_path):
    """py-data-juicer in a venv of its own; every filter that it is asked for drops what it says."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    wanted = ["py-data-juicer>=1.6,<1.7", "aiohttp", "ray==2.60.0", "torch==2.13.0", "requests"]
    subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True, timeout=1200)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    told = subprocess.run(
        [python, HERE / "juicer_real.py"], env=env, capture_output=True, text=True, timeout=600
    )
    assert told.returncode == 0, told.stderr[-3000:]
    assert json.loads(told.stdout.splitlines()[-1]) == {
        "runs": [1, 3],
        "measured": ["text_len"],
        "refused": True,
        "tasks": ["sort 312", "sort 21"],
        "counts": {"sample_num": 2, "input_num": 4, "dropped_num": 2},
    }
