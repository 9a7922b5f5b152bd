"""vLLM's real AsyncLLM, with its own processes, on a CPU: what a GPU run uses of it."""

import asyncio
import threading
from dataclasses import asdict

import psutil
import pytest
import torch
from explorer_job import verl_config
from omegaconf import OmegaConf
from safetensors.torch import load_file
from test_engine import (
    ask,
    changed,
    check_change_in_mid_answer,
    check_stale_cache,
    distance,
    prompts_of,
    reference,
)

from trinity_compat.explorer.engine.vllm import AsyncEngine, EngineConfig, EngineDied, GenerationRequest
from trinity_compat.synchronizer.transports.files import WeightFile, WeightsDamaged, write_file
from trinity_compat.synchronizer.transports.nccl import Rendezvous, WeightGroup
from trinity_compat.trainer.nccl_sender import store_at

pytestmark = pytest.mark.runtime
KNOWN = 259  # bytes and ChatML's marks


@pytest.fixture(scope="module")
def engine(toy, loop):
    from verl.utils.config import omega_conf_to_dataclass

    from trinity_compat.explorer.rollout import worker

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("TORCH_COMPILE_DISABLE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1")):
            patch.setenv(name, value)
        config = OmegaConf.create(verl_config(toy, "data.max_response_length=160"))
        made = []
        patch.setattr(worker, "InProcessEngine", lambda settings: made.append(settings))
        worker.make_engine(config, omega_conf_to_dataclass(config.actor_rollout_ref.model), "cpu", 0)
        engine = AsyncEngine(EngineConfig(made[0].arguments, made[0].vocabulary))
        steps_overlap(patch)
        loop.run(engine.start())
        yield engine
        loop.run(engine.close())


def steps_overlap(patch):
    """Leave vLLM's asynchronous scheduling on, as on GPUs; its CPU platform turns it off as needless."""
    from vllm.platforms import current_platform

    settle = current_platform.check_and_update_config

    def settled(config):
        settle(config)
        config.scheduler_config.async_scheduling = True

    patch.setattr(type(current_platform), "check_and_update_config", staticmethod(settled))


def test_the_model_s_own_weights_answer_as_transformers(toy, loop, engine, tokenizer):
    prompts, answers = ask(loop, engine, tokenizer, tag="own")
    assert distance(load_file(toy / "model" / "model.safetensors"), toy, prompts, answers) < 1e-4


def test_loaded_weights_do_and_a_damaged_file_changes_nothing(toy, loop, engine, tokenizer, tmp_path):
    new = changed(toy, 0.05)
    file = write_file(tmp_path, 1, new.items())
    loop.run(engine.load(file))
    with pytest.raises(WeightsDamaged):
        loop.run(engine.load(WeightFile(file.path, "0" * 32, file.nbytes)))
    prompts, answers = ask(loop, engine, tokenizer, tag="loaded")
    assert distance(new, toy, prompts, answers) < 1e-4


def test_broadcast_weights_do_also_for_answers_that_come_meanwhile(toy, loop, engine, tokenizer):
    new, store = changed(toy, 0.02), store_at("127.0.0.1")
    meeting = Rendezvous("h", "g", "127.0.0.1", store.port, 2, 1, timeout_s=300.0, secret="s")
    sent = []

    def send():
        sent.append(WeightGroup(meeting, 0, torch.device("cpu")).send(meeting, new.items(), 1 << 16))

    async def both():
        early = [
            GenerationRequest(f"early{i}", p, {"max_tokens": 8})
            for i, p in enumerate(prompts_of(tokenizer, 8))
        ]
        answers = await engine.submit(early)
        taken = await engine.receive(asdict(meeting), 1)
        return taken, [await answer for answer in answers]

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    taken, early = loop.run(both())
    sender.join(300)
    assert [answer["digest"] for answer in taken] == [sent[0].digest]
    assert all(len(parts[0].token_ids) >= 1 for parts in early)
    prompts, answers = ask(loop, engine, tokenizer, tag="broadcast")
    assert distance(new, toy, prompts, answers) < 1e-4


@pytest.mark.parametrize("seeded", [True, False])
def test_weights_loaded_in_mid_answer_go_on_from_the_tokens_there_are(
    toy, loop, engine, tokenizer, tmp_path, seeded
):
    """Its core is paused, drained and resumed for a load: no token is lost or drawn twice."""
    assert engine._engine.vllm_config.scheduler_config.async_scheduling
    old, new = changed(toy, 0.04), changed(toy, 0.06)
    loop.run(engine.load(write_file(tmp_path, 1, old.items())))
    file = write_file(tmp_path, 2, new.items())
    prompts = prompts_of(tokenizer, 16)
    check_change_in_mid_answer(toy, loop, engine, prompts, lambda: engine.load(file), (old, new), seeded)


def test_an_answer_keeps_its_cache_over_a_load_and_a_later_one_reads_none_of_it(
    toy, loop, engine, tokenizer, tmp_path, monkeypatch
):
    check_stale_cache(toy, loop, engine, tokenizer, tmp_path, monkeypatch)


def test_what_it_thinks_of_a_text_is_what_transformers_does(toy, loop, engine, tokenizer, tmp_path):
    weights = changed(toy, 0.03)
    loop.run(engine.load(write_file(tmp_path, 2, weights.items())))
    ids = prompts_of(tokenizer, 1)[0] + [20, 21, 22]

    async def score():
        asked = GenerationRequest("score", ids, {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 0.0})
        return (await (await engine.submit([asked]))[0])[0].prompt_logprobs

    with torch.no_grad():
        logits = reference(toy, weights)(torch.tensor([ids])).logits[0, :-1, :KNOWN].log_softmax(-1)
    own = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert (own - torch.tensor(loop.run(score()))).abs().max() < 1e-4


def test_a_cancelled_answer_is_aborted_and_the_others_go_on(loop, engine, tokenizer):
    async def go():
        values = {"max_tokens": 8, "ignore_eos": True}
        requests = [GenerationRequest(f"cut{i}", p, values) for i, p in enumerate(prompts_of(tokenizer, 3))]
        answers = await engine.submit(requests)
        await asyncio.sleep(0)  # its request has gone out
        answers[1].cancel()
        kept = [await answers[0], await answers[2]]
        assert [len(parts[0].token_ids) for parts in kept] == [8, 8]
        return engine._engine.output_processor.get_num_unfinished_requests()

    assert loop.run(go()) == 0


@pytest.mark.parametrize("seeded", [True, False])
def test_answers_in_flight_outlast_a_sleep_and_go_on_with_the_weights_loaded_after_it(
    toy, loop, engine, tokenizer, tmp_path, seeded
):
    """On a CPU vLLM frees nothing, but its core is paused, and has to be resumed in the same order."""
    old, new = changed(toy, 0.04), changed(toy, 0.06)
    loop.run(engine.load(write_file(tmp_path, 1, old.items())))
    file = write_file(tmp_path, 2, new.items())

    async def a_turn_of_the_trainer_s():
        await engine.sleep()
        begun = engine.steps
        late = await engine.submit(
            [GenerationRequest("late", prompts_of(tokenizer, 1)[0], {"max_tokens": 8})]
        )
        await asyncio.sleep(0.5)
        await engine.wake()
        await asyncio.sleep(0.5)
        assert engine.steps == begun and not late[0].done()
        await engine.load(file)
        assert (await late[0])[0].token_ids

    prompts = prompts_of(tokenizer, 16)
    check_change_in_mid_answer(toy, loop, engine, prompts, a_turn_of_the_trainer_s, (old, new), seeded)


def test_a_dead_worker_is_told_to_whoever_waits(loop, engine, tokenizer):
    """The last one: nothing is left of the engine."""
    workers = [p for p in psutil.Process().children(recursive=True) if "EngineCore" in p.name()]
    assert workers

    async def killed():
        answers = await engine.submit(
            [GenerationRequest("last", prompts_of(tokenizer, 1)[0], {"max_tokens": 8})]
        )
        for worker in workers:
            worker.kill()
        await answers[0]

    with pytest.raises(EngineDied):
        loop.run(killed())
