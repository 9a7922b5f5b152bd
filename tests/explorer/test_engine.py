"""The in-process engine against transformers: log-probabilities, weight loading, seeds, the vocabulary."""

import asyncio
import json
import time
from dataclasses import replace
from itertools import chain

import pytest
import torch
from explorer_job import verl_config
from omegaconf import OmegaConf
from safetensors.torch import load_file

from trinity_compat.explorer.engine.vllm import GenerationRequest
from trinity_compat.synchronizer.transports.files import WeightFile, WeightsDamaged, write_file
from trinity_compat.trinity.workflows.openai_api import ToolChoice, bound

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def engine(toy, loop):
    yield from engine_of(verl_config(toy, "data.max_response_length=160"), loop)


def engine_of(verl, loop):
    """An engine in this process, started."""
    from verl.utils.config import omega_conf_to_dataclass

    from trinity_compat.explorer.rollout.worker import make_engine

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
            ("TORCH_COMPILE_DISABLE", "1"),
            ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ):
            patch.setenv(name, value)
        config = OmegaConf.create(verl)
        engine = make_engine(config, omega_conf_to_dataclass(config.actor_rollout_ref.model), "cpu", 0)
        loop.run(engine.start())
        yield engine


def prompts_of(tokenizer, count):
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": f"sort {i * 371 % 10000:04d}"}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for i in range(count)
    ]


def ask(loop, engine, tokenizer, count=12, tag="q", **sampling):
    prompts = prompts_of(tokenizer, count)
    values = {"n": 4, "temperature": 1.0, "max_tokens": 8, **sampling}

    async def go():
        requests = [
            GenerationRequest(f"{tag}{i}", p, {"seed": i * 10, **values}) for i, p in enumerate(prompts)
        ]
        return [await future for future in await engine.submit(requests)]

    return prompts, loop.run(go())


def distance(weights, toy, prompts, answers):
    """Largest difference between the engine's log-probabilities and transformers' (fp32)."""
    pairs = [(prompt, part) for prompt, parts in zip(prompts, answers, strict=True) for part in parts]
    return max(max(apart(toy, weights, prompt, part)) for prompt, part in pairs)


def apart(toy, weights, prompt, part):
    """The difference by token."""
    known = 259  # bytes and ChatML's marks; the rows above are padding
    ids = torch.tensor([prompt + part.token_ids])
    with torch.no_grad():
        logits = reference(toy, weights)(ids).logits[0, len(prompt) - 1 : -1, :known].log_softmax(-1)
    own = logits.gather(1, torch.tensor(part.token_ids)[:, None])[:, 0]
    return (own - torch.tensor(part.logprobs)).abs().tolist()


def reference(toy, weights):
    """transformers' model with ``weights``."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(toy / "model", dtype=torch.float32).eval()
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model


def changed(toy, scale):
    weights = load_file(toy / "model" / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    return {k: v + scale * torch.randn(v.shape, generator=generator) for k, v in weights.items()}


def test_the_models_own_weights_answer_as_transformers(toy, loop, engine, tokenizer):
    prompts, answers = ask(loop, engine, tokenizer, tag="own")
    assert distance(load_file(toy / "model" / "model.safetensors"), toy, prompts, answers) < 1e-4


def test_loaded_weights_answer_as_transformers_tied_embeddings_included(
    toy, loop, engine, tokenizer, tmp_path
):
    new = changed(toy, 0.05)
    prompts, before = ask(loop, engine, tokenizer, tag="before")
    loop.run(engine.load(write_file(tmp_path, 1, new.items())))
    prompts, answers = ask(loop, engine, tokenizer, tag="after")
    assert distance(new, toy, prompts, before) > 1e-2, "the change must be visible"
    assert distance(new, toy, prompts, answers) < 1e-4


def test_a_damaged_file_is_refused(toy, loop, engine, tmp_path):
    good = write_file(tmp_path, 2, changed(toy, 0.01).items())
    with pytest.raises(WeightsDamaged, match="not what was published"):
        loop.run(engine.load(WeightFile(good.path, "0" * 64, good.nbytes)))


def test_the_same_seeds_give_the_same_answers(loop, engine, tokenizer):
    _, first = ask(loop, engine, tokenizer, tag="s1")
    _, again = ask(loop, engine, tokenizer, tag="s2")
    _, other = ask(loop, engine, tokenizer, tag="s3", seed=99)
    assert first == again
    assert first != other


def test_responses_of_a_group_differ(loop, engine, tokenizer):
    _, answers = ask(loop, engine, tokenizer, tag="n", temperature=2.0)
    assert all(len({tuple(part.token_ids) for part in parts}) > 1 for parts in answers)


def test_a_tool_that_has_to_be_called_is_called_with_its_own_arguments(loop, engine, tokenizer):
    """``tool_choice`` (trinity/workflows/openai_api.py) binds the answer of a model with random weights."""
    digits = {"type": "string", "pattern": "^[0-9]{1,4}$"}
    parameters = {"type": "object", "properties": {"digits": digits}, "required": ["digits"]}
    tools = [{"type": "function", "function": {"name": "check", "parameters": parameters}}]
    body = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "check"}}}
    structure = bound(body, ToolChoice.of(body))
    _, answers = ask(
        loop, engine, tokenizer, 4, tag="tool", n=1, max_tokens=200, structured_outputs=structure
    )
    assert [part.reason for (part,) in answers] == ["stop"] * 4
    for (part,) in answers:
        called = json.loads(tokenizer.decode(part.token_ids, skip_special_tokens=True))
        assert list(called) == ["digits"] and called["digits"].isdecimal() and len(called["digits"]) <= 4


def test_tokens_that_the_tokenizer_lacks_are_never_drawn(toy, loop, engine, tokenizer, tmp_path):
    # Make every known token all but impossible: what is drawn must still be one of them.
    weights = load_file(toy / "model" / "model.safetensors")
    weights["model.embed_tokens.weight"][: len(tokenizer)] *= 0.01
    weights["model.embed_tokens.weight"][len(tokenizer) :] *= 100
    loop.run(engine.load(write_file(tmp_path, 3, weights.items())))
    _, answers = ask(loop, engine, tokenizer, tag="v", temperature=1.0)
    assert max(max(part.token_ids) for parts in answers for part in parts) < len(tokenizer)


def test_a_prompt_longer_than_a_prefill_chunk_with_seeds(toy, loop, engine, tokenizer):
    """vLLM 0.28 on a CPU dies on a chunked prefill of a seeded request; ours never chunks."""
    _, answers = ask(loop, engine, tokenizer, count=80, tag="many", n=8)
    assert all(len(parts) == 8 for parts in answers)


def test_new_weights_in_mid_answer_go_on_from_the_tokens_there_are(toy, loop, engine, tokenizer, tmp_path):
    """Each token is the policy's that was in place when it was drawn: nothing of the old cache is kept."""
    old = load_file(toy / "model" / "model.safetensors")
    new = changed(toy, 0.05)
    loop.run(engine.load(write_file(tmp_path, 4, old.items())))
    file = write_file(tmp_path, 5, new.items())
    check_change_in_mid_answer(
        toy, loop, engine, prompts_of(tokenizer, 4), lambda: engine.load(file), (old, new)
    )


def check_change_in_mid_answer(toy, loop, engine, prompts, load, weights, seeded=True):
    """``load`` puts the second of ``weights`` in place of the first, which the engine has."""

    async def go():
        values = {"n": 1, "temperature": 1.0, "max_tokens": 160, "ignore_eos": True}
        requests = [
            GenerationRequest(f"mid{i}", prompt, {**({"seed": i} if seeded else {}), **values})
            for i, prompt in enumerate(prompts)
        ]
        begun = engine.steps
        answers = await engine.submit(requests)
        while engine.steps < begun + 20:  # counted in steps: a pause would be too long on a fast machine
            await asyncio.sleep(0)
        assert not any(answer.done() for answer in answers)
        await load()
        return [(await answer)[0] for answer in answers]

    for prompt, part in zip(prompts, loop.run(go()), strict=True):
        assert len(part.token_ids) == len(part.logprobs) == 160  # none is missing
        by_old, by_new = (apart(toy, each, prompt, part) for each in weights)
        change = next(i for i, wrong in enumerate(by_old) if wrong > 1e-3)
        assert 0 < change < len(part.token_ids) - 1
        assert max(by_old[:change]) < 1e-3
        assert max(by_new[change:]) < 1e-3


def test_an_answer_keeps_its_cache_over_a_load_and_a_later_one_reads_none_of_it(
    toy, loop, engine, tokenizer, tmp_path, monkeypatch
):
    check_stale_cache(toy, loop, engine, tokenizer, tmp_path, monkeypatch)


def check_stale_cache(toy, loop, engine, tokenizer, tmp_path, monkeypatch):
    """A prompt's blocks are in use while the second version is loaded, so vLLM cannot forget them."""
    monkeypatch.setattr(engine, "_config", replace(engine._config, stale_cache=True))
    weights = changed(toy, 0.04), changed(toy, 0.06)
    files = [write_file(tmp_path, i + 1, each.items()) for i, each in enumerate(weights)]
    prompt = [*chain(*prompts_of(tokenizer, 12))][:150]
    assert len(prompt) > engine._engine.vllm_config.cache_config.block_size
    values = {"n": 1, "temperature": 1.0, "ignore_eos": True, "seed": 7}

    async def go():
        await engine.load(files[0])
        begun = engine.steps
        (kept,) = await engine.submit([GenerationRequest("kept", prompt, {**values, "max_tokens": 50})])
        while engine.steps < begun + 10:
            await asyncio.sleep(0)
        await engine.load(files[1])
        (later,) = await engine.submit([GenerationRequest("later", prompt, {**values, "max_tokens": 4})])
        while not later.done():
            assert not kept.done()
            await asyncio.sleep(0)
        return (await kept)[0], later.result()[0]

    kept, later = loop.run(go())
    assert max(apart(toy, weights[1], prompt, later)) < 1e-3
    assert len(kept.token_ids) == 50
    assert max(apart(toy, weights[1], prompt, kept)[25:]) > 1e-3  # of a cache that the new weights made
    models = [reference(toy, each) for each in weights]
    assert min(apart_from_change(models, prompt, kept, change) for change in range(1, 50)) < 1e-3


@torch.no_grad()
def apart_from_change(models, prompt, part, change):
    """The largest difference where the second model goes on after ``change`` tokens, on the first's cache."""
    ids, read = torch.tensor([prompt + part.token_ids]), len(prompt) + change - 1
    before = models[0](ids[:, :read], use_cache=True)
    after = models[1](ids[:, read:-1], past_key_values=before.past_key_values)
    logits = torch.cat([before.logits[0, len(prompt) - 1 :], after.logits[0]])[:, :259].log_softmax(-1)
    own = logits.gather(1, torch.tensor(part.token_ids)[:, None])[:, 0]
    return float((own - torch.tensor(part.logprobs)).abs().max())


def test_a_cancelled_answer_is_aborted_and_the_others_go_on(loop, engine, tokenizer):
    async def go():
        values = {"max_tokens": 8, "ignore_eos": True}
        requests = [GenerationRequest(f"cut{i}", p, values) for i, p in enumerate(prompts_of(tokenizer, 3))]
        answers = await engine.submit(requests)
        answers[1].cancel()
        kept = [await answers[0], await answers[2]]
        assert len(kept[0][0].token_ids) == len(kept[1][0].token_ids) == 8
        until = time.monotonic() + 120  # aborted by the engine's own thread
        while engine._engine.get_num_unfinished_requests() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        return engine._engine.get_num_unfinished_requests(), engine._waiting

    assert loop.run(go()) == (0, {})
