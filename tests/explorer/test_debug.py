"""`debug`: a served model in one place, a task in another; and what is said when something is not there."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time

import aiohttp
import pytest
import yaml
from explorer_job import ROOT, job
from jsonschema import Draft202012Validator

from trinity_compat.cli.schema import load
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.engine.vllm import Completion, GenerationRequest
from trinity_compat.explorer.modes.debug import DebugTask, TaskOutcome
from trinity_compat.explorer.modes.debug_server import EngineServer, HttpEngine
from trinity_compat.explorer.rewards.scoring import Score
from trinity_compat.run import debug
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.synchronizer.transports.files import WeightFile

SCRIPT = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"


class Scripted:
    """Answers a prompt with itself, once per n."""

    async def start(self):
        """Nothing to build."""

    async def submit(self, requests):
        futures = []
        for request in requests:
            future = asyncio.get_running_loop().create_future()
            ids = list(request.prompt_ids)
            if ids == [13]:
                future.set_exception(ValueError("no thirteen"))
            else:
                parts = [Completion(ids, [-0.1] * len(ids), "stop")] * request.sampling["n"]
                future.set_result(parts)
            futures.append(future)
        return futures

    async def close(self):
        """Nothing to give back."""


def with_server(work, model="m"):
    """``work(port)`` while a scripted engine is served."""
    port = free_port()

    async def both():
        serving = asyncio.ensure_future(EngineServer(Scripted(), {"model": model}).serve(port))
        await asyncio.sleep(0.1)
        try:
            return await work(port)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    return asyncio.run(both())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "attacker.example"}, 421),
        ({"Host": "attacker.example:8600"}, 421),
        ({"Origin": "http://attacker.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({}, 200),
        ({"Host": "localhost:8600", "Origin": "http://localhost:8600"}, 200),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_site_gets_no_answer(headers, code, method):
    async def work(port):
        data = {} if method == "GET" else {"json": {"requests": []}}
        place = "" if method == "GET" else "submit"
        url = f"http://127.0.0.1:{port}/{place}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers, **data) as reply,
        ):
            return reply.status

    assert with_server(work) == code


def test_requests_go_to_the_served_engine_and_their_answers_come_back_in_order():
    async def work(port):
        engine = HttpEngine(port, "m")
        await engine.start()
        requests = [GenerationRequest("a", [1, 2], {"n": 2}), GenerationRequest("b", [3], {"n": 1})]
        return [await future for future in await engine.submit(requests)]

    two, one = with_server(work)
    assert [part.token_ids for part in two + one] == [[1, 2], [1, 2], [3]]
    assert two[0].logprobs == pytest.approx([-0.1, -0.1])


def test_what_fails_in_the_served_engine_is_told_in_its_words():
    async def work(port):
        (future,) = await HttpEngine(port, "m").submit([GenerationRequest("a", [13], {"n": 1})])
        await future

    with pytest.raises(Exception, match="ValueError: no thirteen"):
        with_server(work)


def test_a_task_without_a_served_model_is_an_error():
    with pytest.raises(UserError, match="no model is served at") as told:
        asyncio.run(HttpEngine(free_port(), "m").start())
    assert "--module inference_model" in told.value.hint


def test_a_served_model_of_another_name_is_an_error():
    async def work(port):
        await HttpEngine(port, "mine").start()

    with pytest.raises(UserError, match="serves other, not mine"):
        with_server(work, model="other")


def test_a_taken_port_is_told_before_anything_is_loaded(tmp_path, toy):
    spec, _ = job(tmp_path / "job", toy)
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is taken by .*pid {os.getpid()}"):
            debug.serve(spec, port, None)


@pytest.mark.parametrize("step", [None, 3])
def test_the_served_model_is_the_launch_s_or_that_of_a_checkpoint(tmp_path, toy, monkeypatch, step):
    from trinity_compat.explorer.modes import debug as explorer_debug

    spec, _ = job(tmp_path / "job", toy)
    model, served = spec.verl["actor_rollout_ref"]["model"]["path"], []

    async def serve(server, port, weights=None):
        served.append((server.engine, server.about, port, weights and weights.path.startswith("/")))

    def write(folder, version, tensors):
        served.append((version, tensors))
        return WeightFile(f"{folder}/v0", "digest", 1)

    monkeypatch.setattr(EngineServer, "serve", serve)
    monkeypatch.setattr(explorer_debug, "make_engine", lambda config, model, device, index: (device, index))
    monkeypatch.setattr(explorer_debug, "worker_env", lambda device, env: {"OF_THE_WORKER_": device})
    monkeypatch.setattr(explorer_debug, "engine_environment", lambda verl, device: {"OF_THE_ENGINE_": device})
    monkeypatch.setattr(explorer_debug, "write_file", write)
    monkeypatch.setattr("trinity_compat.explorer.modes.bench.published_actor", lambda verl, at: f"of {at}")
    for name in ("OF_THE_WORKER_", "OF_THE_ENGINE_"):
        monkeypatch.setenv(name, "before")
    port = free_port()
    if step:
        with pytest.raises(UserError, match="global_step_3/actor does not exist") as told:
            debug.serve(spec, port, step)
        assert told.value.hint == "there are: none"
        (tmp_path / "job" / "global_step_2").mkdir()
        with pytest.raises(UserError) as told:
            debug.serve(spec, port, step)
        assert told.value.hint == "there are: global_step_2"
        (tmp_path / "job" / "global_step_3" / "actor").mkdir(parents=True)
    debug.serve(spec, port, step)
    about = {"model": model, "pid": os.getpid()}
    written = [(0, f"of {tmp_path}/job/global_step_3/actor")] if step else []
    assert served == [*written, (("cpu", 0), about, port, True if step else None)]
    assert os.environ["OF_THE_WORKER_"] == os.environ["OF_THE_ENGINE_"] == "cpu"


def test_ctrl_c_ends_a_served_model_without_a_word(tmp_path, toy, monkeypatch):
    from trinity_compat.explorer.modes import debug as explorer_debug

    async def serve(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(explorer_debug, "serve", serve)
    assert debug.serve(job(tmp_path / "job", toy)[0], free_port(), None) is None


def test_the_spec_of_a_job_is_the_one_that_it_keeps(tmp_path, toy):
    spec, _ = job(tmp_path / "job", toy)
    assert debug.spec_of(spec.job_dir, [], RunOptions()).verl == spec.verl


def test_plugins_are_loaded_in_order_and_may_import_each_other(tmp_path, monkeypatch):
    from trinity_compat.explorer.modes.debug import load_plugins

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plugin_of_debug_b.py").write_text("from plugin_of_debug_a import NAME\nMINE = NAME + '!'\n")
    (tmp_path / "plugin_of_debug_a.py").write_text("NAME = 'a'\n")
    (tmp_path / "notes.txt").write_text("no plugin")
    assert load_plugins(tmp_path) == ["plugin_of_debug_a", "plugin_of_debug_b"]
    assert sys.modules["plugin_of_debug_b"].MINE == "a!"


def test_a_task_that_is_not_there(tmp_path, toy):
    from trinity_compat.explorer.modes.debug import DebugTask

    spec, _ = job(tmp_path / "job", toy)
    model = spec.verl["actor_rollout_ref"]["model"]["path"]

    async def work(port):
        from trinity_compat.explorer.modes.debug import run_task

        await run_task(spec, port, DebugTask(task=99, data="val"))

    with pytest.raises(UserError, match=r"--task 99: data\.val_files hold 6 tasks") as told:
        with_server(work, model=model)
    assert told.value.hint == "0 to 5 can be taken"


def run_task(tmp_path, toy, reward, **ask):
    """`debug --module workflow` on the scripted engine, in a thread of its own as in another terminal."""
    from trinity_compat.explorer.modes.debug import DebugTask

    (tmp_path / "mine.py").write_text(reward)
    spec, _ = job(tmp_path / "job", toy, f"reward.custom_reward_function.path={tmp_path}/mine.py")

    async def work(port):
        return await asyncio.to_thread(debug.run_task, spec, port, DebugTask(**ask), plugins=None)

    return with_server(work, model=spec.verl["actor_rollout_ref"]["model"]["path"])


REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    "


def test_a_task_shows_prompt_answers_and_rewards(tmp_path, toy):
    shown = run_task(tmp_path, toy, REWARD + "return {'score': 0.5, 'why': 'half'}", task=1, n=3)
    lines = "\n".join(shown.lines())
    assert lines.count("reward 0.5") == 3 and "'why': 'half'" in lines
    assert "sort" in lines
    answers = shown.record()["answers"]
    Draft202012Validator(load("debug-workflow")).validate(json.loads(json.dumps(shown.record())))
    assert [(answer["reward"], answer["info"]["why"]) for answer in answers] == [(0.5, "half")] * 3


def test_what_a_reward_function_raises_is_shown_with_its_traceback(tmp_path, toy, capfd):
    with pytest.raises(RunError, match="KeyError: 'x'"):
        run_task(tmp_path, toy, REWARD + "return {}['x']")
    told = capfd.readouterr().err
    assert f'File "{tmp_path}/mine.py", line 2, in compute_score' in told


def test_a_task_of_an_agent_s_program(tmp_path, toy):
    """Its process asks over HTTP what is served elsewhere."""
    subprocess.run([sys.executable, ROOT / "examples" / "workflows" / "questions.py", toy], check=True)
    config = yaml.safe_load((ROOT / "examples" / "workflows" / "agent.yaml").read_text())
    config["model"]["model_path"] = f"{toy}/model"
    config["checkpoint_root_dir"] = str(tmp_path)
    for kind, name in (("tasksets", "train"), ("eval_tasksets", "val")):
        config["buffer"]["explorer_input"][kind][0]["path"] = f"{toy}/data/{name}.jsonl"
    operators = [{"name": "reward_shaping_mapper"}, {"name": "reward_filter", "args": {"threshold": 1}}]
    config["data_processor"] = {"experience_pipeline": {"operators": operators}}
    spec = make_plan(config, RunOptions(), cwd=ROOT, device="cpu").spec

    async def work(port):
        return await asyncio.to_thread(debug.run_task, spec, port, DebugTask(task=1, n=2), plugins=None)

    shown = with_server(work, model=f"{toy}/model")
    assert [part.reward for part in shown.trajectories] == [0.0, 0.0]  # the served engine echoes
    # Two turns, longer together than max_response_tokens=20, which limits each of them.
    assert "\n".join(shown.lines()).count("reward 0, 28 tokens, 28 by the policy") == 2
    assert shown.fates == ["dropped by reward_filter"] * 2


@pytest.mark.runtime
def test_a_model_in_one_terminal_and_a_task_in_another(tmp_path, toy):
    port = str(free_port())
    command = [sys.executable, "-m", "trinity_compat", "debug", str(SCRIPT), "--port", port, "--module"]
    env = {**os.environ, "TOY_DIR": str(toy)}
    with (tmp_path / "serve.log").open("w") as log:
        serving = subprocess.Popen(
            [*command, "inference_model"], env=env, cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 600
        while "serving" not in (tmp_path / "serve.log").read_text():
            assert serving.poll() is None and time.monotonic() < until, (tmp_path / "serve.log").read_text()
            time.sleep(0.2)
        words = [*command, "workflow", "--task", "3", "--output-file", "out.json"]
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("reward ") == 9  # eight answers, and the seconds
        record = json.loads((tmp_path / "out.json").read_text())
        assert record["task"]["data_source"] == "toy/sort"
        assert len(record["answers"]) == 8
        assert all(len(a["response_ids"]) == len(a["logprobs"]) for a in record["answers"])
    finally:
        serving.send_signal(2)
        assert serving.wait(120) == 0


def test_all_tokens_of_a_long_answer_are_counted():
    part = Trajectory([1], [2] * 300, [1] * 300, [0.0] * 300).packed((0, 0))
    shown = TaskOutcome({}, [part], [Score(1.0, {})], "prompt", ["answer"], 0.0, 0.0)
    assert "300 tokens, 300 by the policy" in "\n".join(shown.lines())
