"""Which launches hand their adapter over, and with what vLLM is started for it."""

import pytest

from trinity_compat.common.nested import put
from trinity_compat.job.lora import engine_settings, for_model, is_handed_over, lora_rank, merged, why_whole

MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout"))


def launch(**keys):
    tree = {}
    for key, value in ({f"{MODEL}.lora_rank": 8, f"{ACTOR}.strategy": "fsdp"} | keys).items():
        put(tree, key, value)
    return tree


def test_an_adapter_is_handed_over_as_verl_does():
    assert is_handed_over(launch()) and why_whole(launch()) is None
    assert engine_settings(launch()) == {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}
    assert not is_handed_over(launch(**{f"{MODEL}.lora_rank": 0}))
    assert engine_settings(launch(**{f"{MODEL}.lora_rank": 0})) == {}


def test_megatrons_section_names_the_rank_first():
    both = launch(**{f"{MODEL}.lora.rank": 32, f"{MODEL}.lora.fully_sharded_loras": True})
    assert lora_rank(both) == 32
    assert engine_settings(both)["fully_sharded_loras"] is True


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (33, 64), (512, 512)])
def test_vllm_has_room_for_the_next_rank_that_it_knows(rank, room):
    assert engine_settings(launch(**{f"{MODEL}.lora_rank": rank}))["max_lora_rank"] == room


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({f"{MODEL}.lora.merge": True}, "lora.merge=True"),
        ({f"{ACTOR}.strategy": "megatron"}, "strategy=megatron"),
        ({f"{MODEL}.lora_rank": 513}, "rank 512"),
        ({f"{MODEL}.target_parameters": ["experts.w1"]}, "target_parameters"),
        ({f"{ROLLOUT}.quantization": "fp8"}, "quantizes"),
    ],
)
def test_what_vllm_or_the_trainer_cannot_do_with_adapters_travels_merged(keys, why):
    assert why in why_whole(launch(**keys))
    assert engine_settings(launch(**keys)) == {}


def test_a_model_whose_vision_tower_is_adapted_too_travels_merged():
    given = launch()
    assert not is_handed_over(for_model(given, lambda: "model.visual.blocks.0.attn.qkv"))
    assert for_model(given, lambda: "") is given
    assert not is_handed_over(merged(given)) and is_handed_over(given)


def test_what_is_adapted_is_not_looked_for_where_versions_are_whole_anyway():
    def looked():
        raise AssertionError

    for whole in (launch(**{f"{MODEL}.lora.merge": True}), launch(**{f"{MODEL}.lora_rank": 0})):
        assert for_model(whole, looked) is whole
