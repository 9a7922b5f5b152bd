"""An engine that is handed LoRA adapters, against transformers with the adapter merged in by PEFT."""

import threading
from dataclasses import asdict

import pytest
import torch
from explorer_job import verl_config
from safetensors.torch import load_file
from test_engine import ask, check_change_in_mid_answer, distance, engine_of, prompts_of

from trinity_compat.common.errors import RunError
from trinity_compat.plugins.vllm_weights import WeightReceiver
from trinity_compat.synchronizer.adapters import as_version
from trinity_compat.synchronizer.transports.files import write_file
from trinity_compat.synchronizer.transports.nccl import Rendezvous, WeightGroup
from trinity_compat.trainer.nccl_sender import store_at

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def engine(toy, loop):
    lora = ("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8")
    yield from engine_of(verl_config(toy, "data.max_response_length=160", *lora), loop)


@pytest.fixture(scope="module")
def base(toy):
    return load_file(toy / "model" / "model.safetensors")


def adapted(toy, seed, targets="all-linear"):
    """(adapter as a version, the model's weights with it merged in); B is not zero."""
    from peft import LoraConfig, get_peft_model
    from peft.utils.save_and_load import get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(toy / "model", dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False)
    model = get_peft_model(model, config)
    adapter = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(model).items()}
    peft = model.peft_config["default"].to_dict()
    return list(as_version(adapter.items(), peft)), model.merge_and_unload().state_dict()


def test_requests_go_on_with_the_first_adapter_from_the_tokens_they_have(
    toy, loop, engine, tokenizer, base, tmp_path
):
    """Until then the engine answers as the model without one: that is version 0."""
    prompts, answers = ask(loop, engine, tokenizer, tag="base")
    assert distance(base, toy, prompts, answers) < 1e-4
    version, merged = adapted(toy, 1)
    file = write_file(tmp_path, 1, version)
    prompts = prompts_of(tokenizer, 4)
    check_change_in_mid_answer(toy, loop, engine, prompts, lambda: engine.load(file), (base, merged))


def test_each_version_replaces_the_one_before_and_has_the_adapters_bytes(
    toy, loop, engine, tokenizer, base, tmp_path
):
    whole = sum(tensor.nbytes for tensor in base.values())
    for number in (2, 3):
        version, merged = adapted(toy, number)
        file = write_file(tmp_path, number, version)
        loop.run(engine.load(file))
        prompts, answers = ask(loop, engine, tokenizer, tag=f"v{number}")
        assert distance(merged, toy, prompts, answers) < 1e-4
        assert distance(base, toy, prompts, answers) > 1e-2, "the adapter must be visible"
        tensors = sum(tensor.nbytes for _, tensor in version)
        assert tensors < file.nbytes < min(tensors * 1.2, whole / 4)


def test_a_broadcast_adapter_is_in_place_too(toy, loop, engine, tokenizer):
    (version, merged), store = adapted(toy, 4), store_at("127.0.0.1")
    meeting = Rendezvous("h", "g", "127.0.0.1", store.port, 2, 1, timeout_s=300.0, secret="s")
    sent = []

    def send():  # in buckets that are smaller than the adapter
        sent.append(WeightGroup(meeting, 0, torch.device("cpu")).send(meeting, version, 1 << 12))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    taken = loop.run(engine.receive(asdict(meeting), 1))
    sender.join(300)
    assert [answer["digest"] for answer in taken] == [sent[0].digest]
    prompts, answers = ask(loop, engine, tokenizer, tag="broadcast")
    assert distance(merged, toy, prompts, answers) < 1e-4


def test_what_the_engine_would_leave_out_is_refused_by_name(toy, loop, engine, tmp_path):
    version, _ = adapted(toy, 5, ["q_proj"])
    odd = [(name.replace("self_attn", "cross_attn"), tensor) for name, tensor in version]
    with pytest.raises(RunError, match=r"no place for the adapter's .*cross_attn.*lora\.merge=True"):
        loop.run(engine.load(write_file(tmp_path, 5, odd)))


def test_a_whole_model_is_refused(loop, engine, base, tmp_path):
    with pytest.raises(RunError, match="whole model, and this engine was started for LoRA adapters"):
        loop.run(engine.load(write_file(tmp_path, 6, base.items())))


def test_an_engine_that_makes_another_adapter_of_what_arrived_is_refused(
    toy, loop, engine, tmp_path, monkeypatch
):
    """As a fault of the way of loading would: one tensor of one layer is not the one that arrived."""
    good, wrong = (write_file(tmp_path, number, adapted(toy, number)[0]) for number in (7, 8))
    load = WeightReceiver._update_weights

    def planted(self, weights, **how):
        name, tensor = weights[3]
        return load(self, [*weights[:3], (name, tensor + 1e-3), *weights[4:]], **how)

    (answer,) = loop.run(engine.load(good))
    assert (answer["digest"], answer["proof"]) == (good.digest, "equals what arrived")
    monkeypatch.setattr(WeightReceiver, "_update_weights", planted)
    with pytest.raises(RunError, match="vLLM holds another adapter than the one that arrived"):
        loop.run(engine.load(wrong))
    monkeypatch.undo()
    (again,) = loop.run(engine.load(good))
    assert again["held"] == answer["held"], "a fresh load is the same"


def test_an_engine_whose_adapter_is_changed_after_its_load_is_refused_at_the_next(
    toy, loop, engine, tmp_path
):
    good, later = (write_file(tmp_path, number, adapted(toy, number)[0]) for number in (9, 10))
    loop.run(engine.load(good))

    def plant(worker):
        layers = worker.model_runner.lora_manager._adapter_manager.modules
        next(iter(layers.values())).lora_b_stacked[0][0, 0, 0, 0] += 1

    engine._engine.collective_rpc(plant)
    with pytest.raises(RunError, match="weights were changed since they were loaded"):
        loop.run(engine.load(later))
    (answer,) = loop.run(engine.load(later))
    assert answer["digest"] == later.digest


def test_digests_after_loading_can_be_left_out(toy, loop, engine, tmp_path, monkeypatch):
    monkeypatch.setenv("TRINITY_COMPAT_HELD_DIGESTS", "0")
    (answer,) = loop.run(engine.load(write_file(tmp_path, 11, adapted(toy, 11)[0])))
    assert set(answer) == {"tensors", "digest"}
