"""Memory of both sides by hand, and what does not fit."""

import pytest
from advise_launch import ARR, advised, by_name, told

from trinity_compat.advise import memory
from trinity_compat.advise.memory import GIB, ModeMemory, ResidentParts, Training
from trinity_compat.advise.model_shape import ModelShape

BILLION = ModelShape(
    2**30, 2**30, layers=4, hidden=1024, vocabulary=1000, kv_values=4 * 2 * 2 * 128, kv_heads=2
)
MODES = "stock veRL, lockstep", "turns on all GPUs"
PLAIN = Training(tokens=1024, models=1, references=0, checkpointed=False, fused=True)


def test_a_trainer_shares_sixteen_bytes_a_parameter():
    found = memory.of_trainer(BILLION, PLAIN, gpus=4)
    assert (found.weights, found.gradients, found.optimizer, found.references) == (1, 1, 2, 0)
    # 34 bytes a token, layer and hidden value, and two layers gathered in bfloat16
    assert found.activations == pytest.approx(1024 * 4 * 34 * 1024 / GIB + 1)


def test_a_critic_and_a_reference_are_further_models():
    found = memory.of_trainer(BILLION, Training(1024, 2, 1, False, True), gpus=4)
    assert (found.weights, found.optimizer, found.references) == (2, 4, 0.5)


def test_checkpointing_keeps_inputs_and_one_layer_and_whole_logits_cost_six_bytes():
    found = memory.of_trainer(BILLION, Training(1024, 1, 0, True, False), gpus=4)
    assert found.activations == pytest.approx(1024 * ((4 * 2 + 34) * 1024 + 1000 * 6) / GIB + 1)


def test_an_engine_s_cache_is_what_the_rest_leaves_in_whole_blocks():
    found = memory.of_engine(BILLION, width=1, slots=100, utilization=0.5, card_gib=40)
    working = (8192 * 1024 * 34 + 100 * 1000 * 4) / GIB
    assert (found.requested, found.weights) == (20, 2)
    assert found.kv == pytest.approx(20 - 2 - working - 1.5)
    assert found.kv_tokens == int(found.kv * GIB // (16 * 4096)) * 16  # two bytes a value


@pytest.mark.parametrize(("width", "times"), [(2, 2), (4, 2)])
def test_ranks_share_the_heads_that_there_are(width, times):
    alone = memory.of_engine(BILLION, width=1, slots=1, utilization=0.9, card_gib=400)
    wide = memory.of_engine(BILLION, width=width, slots=1, utilization=0.9, card_gib=400)
    assert wide.kv_tokens / alone.kv_tokens == pytest.approx(times, rel=0.02)


def test_an_engine_whose_weights_fill_its_share_has_no_cache():
    assert memory.of_engine(BILLION, width=1, slots=1, utilization=0.05, card_gib=40).kv_tokens == 0


def test_what_does_not_fit_is_named():
    trainer = memory.of_trainer(BILLION, PLAIN, gpus=1)
    engine = memory.of_engine(BILLION, width=1, slots=1, utilization=0.2, card_gib=16)
    found = ModeMemory(trainer, engine, card_gib=16.0, resident=15.0, longest=10**6).problems
    assert [text.partition(" ")[0] for text in found] == ["a", "an", "an"]
    assert found[0] == "a trainer GPU needs 19 GiB of 16"
    assert "an answer has up to 1000000" in found[1]
    assert "beside 15 GiB of the trainer" in found[2]
    roomy = memory.of_engine(BILLION, width=1, slots=1, utilization=0.8, card_gib=80)
    assert not ModeMemory(trainer, roomy, card_gib=80.0, resident=0.0, longest=100).problems


def test_a_mode_has_its_memory_and_a_smaller_card_does_not_hold_it(script):
    name = script()
    roomy = by_name(advised(name))["split, offset 1"]["memory"]
    assert roomy["card_gib"] == 79.6 and not roomy["problems"]
    assert roomy["engine"]["requested"] == pytest.approx(0.8 * 79.6)
    assert "a trainer GPU needs" in told(name, "--card-gb", 24)


def test_turns_keep_beside_the_engines_what_stock_keeps(script):
    flags = {f"{ARR}.actor.fsdp_config.{name}_offload": True for name in ("param", "optimizer")}

    def beside(**changed):
        found = by_name(advised(script(**changed)))
        return [
            found[name]["memory"]["resident_gib"] for name in ("stock veRL, lockstep", "turns on all GPUs")
        ]

    stock, ours = beside()
    assert stock == ours > 10
    assert beside(**flags) == [0, 0]


def test_what_stays_is_what_no_flag_moves():
    stays = memory.resident(BILLION, ResidentParts(weights=2, optimizers=1, references=1), gpus=2)
    assert stays == (2 * 4 + 8 + 2) / 2


@pytest.mark.parametrize("changed", [{f"{ARR}.model.lora_rank": 16}])
def test_memory_that_is_not_estimated_says_so(script, changed):
    name = script(**changed)
    assert "memory of the trainer is not estimated for LoRA" in told(name)
