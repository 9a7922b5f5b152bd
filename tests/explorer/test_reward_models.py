"""Reward models, the serving of them apart: addresses, arguments, heads, veRL's router."""

import asyncio
import json
import types
from types import SimpleNamespace

import pytest
import torch
from explorer_job import job, verl_config
from omegaconf import OmegaConf
from safetensors.torch import load_file

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.rewards.reward_model import address, serving
from trinity_compat.explorer.rewards.reward_model.models import (
    needs_head,
    reward_arguments,
    scoring_config,
    served_model,
)
from trinity_compat.explorer.rewards.scoring import describe
from trinity_compat.explorer.served import serving as servers
from trinity_compat.explorer.served.server import ServerState, free_port

RM = "reward.reward_model"
ON = (f"{RM}.enable=True", f"{RM}.rollout.name=vllm", "reward.custom_reward_function.path=null")


def config(toy, *words):
    return verl_config(toy, *ON, f"{RM}.model_path={toy}/model", *words)


def test_an_explorer_reads_the_address_of_its_own_start_only(tmp_path, toy, monkeypatch):
    _, buffer = job(tmp_path / "job", toy)
    monkeypatch.setenv(address.TOKEN, "an earlier start")
    address.address_cell().set(buffer, "127.0.0.1:1")
    monkeypatch.setenv(address.TOKEN, "this start")
    assert address.address_cell().get(buffer) is None

    async def both():
        waiting = asyncio.ensure_future(address.wait_for_address(buffer, lambda: None, timeout_s=300))
        await asyncio.sleep(0.2)
        address.address_cell().set(buffer, "127.0.0.1:2")
        return await waiting

    assert asyncio.run(both()) == "127.0.0.1:2"
    buffer.close()


def test_a_server_that_never_comes_is_not_waited_for_without_end(tmp_path, toy, monkeypatch):
    _, buffer = job(tmp_path / "job", toy)
    with pytest.raises(UserError, match="served by `trinity-compat run`"):
        asyncio.run(address.wait_for_address(buffer, lambda: None, timeout_s=300))
    monkeypatch.setenv(address.TOKEN, "this start")
    with pytest.raises(RunError, match=r"not served after 0\.1 s"):
        asyncio.run(address.wait_for_address(buffer, lambda: None, timeout_s=0.1))
    buffer.close()


def test_the_reward_server_gets_its_section_and_the_launch_s_name(toy):
    words = (
        f"{RM}.rollout.gpu_memory_utilization=0.8",
        f"{RM}.rollout.tensor_model_parallel_size=2",
        f"+{RM}.rollout.engine_kwargs.vllm.swap_space=3",
    )
    given = reward_arguments(config(toy, *words), model_path="/rm", device="cuda", index=1, positions=4096)
    assert given["model"] == "/rm" and given["served_model_name"] == f"{toy}/model"
    assert (given["gpu_memory_utilization"], given["tensor_parallel_size"]) == (0.8, 2)
    assert given["max_model_len"] == 4096  # the model's own: its template is longer than the policy's prompt
    assert given["seed"] == 43
    long = reward_arguments(
        config(toy, f"{RM}.rollout.max_model_len=512"), model_path="/rm", device="cpu", positions=4096
    )
    assert (long["max_model_len"], long["tensor_parallel_size"]) == (512, 1)


def test_a_model_without_a_head_is_served_with_one_of_its_seed(toy, tmp_path):
    verl = config(toy)
    assert needs_head(verl, ["Qwen2ForCausalLM"]) and not needs_head(verl, ["Qwen2ForSequenceClassification"])
    path, positions = served_model(verl, tmp_path / "served")
    assert (path, positions) == (str(tmp_path / "served"), 512)
    told = json.loads((tmp_path / "served" / "config.json").read_text())
    assert told["architectures"] == ["Qwen2ForSequenceClassification"]
    assert json.loads((toy / "model" / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    head = load_file(tmp_path / "served" / "score.safetensors")["score.weight"]
    assert head.shape == (1, 128) and 0.01 < head.std() < 0.04
    assert (tmp_path / "served" / "part-model.safetensors").resolve() == toy / "model" / "model.safetensors"
    again, _ = served_model(verl, tmp_path / "again")
    assert torch.equal(load_file(f"{again}/score.safetensors")["score.weight"], head)
    asked = config(toy, "reward.custom_reward_function.path=judge.py")
    assert served_model(asked, tmp_path / "asked")[0] == f"{toy}/model"  # a function asks it in words


def test_transformers_reads_the_same_head(toy, tmp_path):
    from transformers import AutoModelForSequenceClassification

    path, _ = served_model(config(toy), tmp_path / "served")
    model = AutoModelForSequenceClassification.from_pretrained(path)
    assert model.config.num_labels == 1
    assert torch.equal(model.score.weight, load_file(f"{path}/score.safetensors")["score.weight"])


def test_a_model_that_is_not_there_is_named(toy, tmp_path):
    verl = config(toy, f"{RM}.model_path={tmp_path}/none")
    with pytest.raises(RunError, match=f"model_path={tmp_path}/none"):
        served_model(verl, tmp_path / "served")


def test_a_config_of_another_kind_is_left_alone():
    assert scoring_config({"architectures": ["LlamaForSequenceClassification"]})["architectures"] == [
        "LlamaForSequenceClassification"
    ]


def test_the_source_of_scores_is_named_by_its_path(toy):
    assert describe(OmegaConf.create(config(toy))) == f"reward model {toy}/model"


async def echoing(name):
    """A server of the kind that stands behind the router; returns its address and how to end it."""
    from aiohttp import web

    async def answer(call):
        return web.json_response({"from": name, "asked": await call.json()})

    app = web.Application()
    app.router.add_post("/classify", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port("127.0.0.1")
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return f"127.0.0.1:{port}", runner.cleanup


async def post(where, payload):
    import aiohttp

    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{where}/classify", json=payload) as reply,
    ):
        return await reply.json()


def test_several_servers_stand_behind_one_address_that_a_restart_keeps():
    async def go():
        (one, end_one), (two, end_two) = await echoing("one"), await echoing("two")
        async with serving._one_address([one, two], None) as router:
            answers = await asyncio.gather(*(post(router, {"input": str(n)}) for n in range(8)))
        async with serving._one_address([one, two], router) as again:
            assert again == router
        async with serving._one_address([one], None) as alone:
            assert alone == one
        await end_one()
        await end_two()
        return answers

    answers = asyncio.run(go())
    assert sorted(answer["asked"]["input"] for answer in answers) == [str(n) for n in range(8)]
    assert {answer["from"] for answer in answers} == {"one", "two"}


@pytest.mark.parametrize(
    ("engines", "beside", "node"), [(2, [], "c"), (1, [], "b"), (2, [(1, 2)], "d"), (1, [(1, 1)], "c")]
)
def test_a_server_stands_where_trainer_and_engines_leave_room(monkeypatch, engines, beside, node):
    """The trainer takes a, which alone has four GPUs; all others go where the least room is enough."""
    room = {"a": 4, "b": 2, "c": 2, "d": 2}
    monkeypatch.setattr(servers.placement, "gpus_by_node", lambda: (dict(room), False))
    rollout = {"nnodes": 1, "n_gpus_per_node": engines, "tensor_model_parallel_size": 1}
    spec = SimpleNamespace(
        mode="both",
        device="cuda",
        explorers=1,
        verl={"trainer": {"nnodes": 1, "n_gpus_per_node": 4}, "actor_rollout_ref": {"rollout": rollout}},
    )
    width = 2 if node != "b" else 1
    assert servers._nodes(spec, 1, width, beside) == [node]


def test_a_server_that_ends_is_told_with_its_last_words():
    async def seen():
        return ServerState(ready=False, code=-9, why="out of memory")

    served = serving.RewardServers(None, 1)
    served._actors = [types.SimpleNamespace(state=types.SimpleNamespace(remote=seen))]
    with pytest.raises(RunError, match="server ended with exit code -9: out of memory"):
        asyncio.run(served.states())
