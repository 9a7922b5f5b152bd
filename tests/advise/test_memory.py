"""Memory of both sides by hand, and what does not fit."""

from dataclasses import replace

import pytest
from advise_launch import ARR, advised, by_name, told

from trinity_compat.advise import memory
from trinity_compat.advise.memory import GIB, ModeMemory, ResidentParts, Spread, Training
from trinity_compat.advise.model_shape import ModelShape

HEAD = 2**27  # parameters of the embedding, and of the head
BILLION = ModelShape(
    2**30,
    2**30,
    layers=4,
    hidden=1024,
    vocabulary=1000,
    kv_values=4 * 2 * 2 * 128,
    kv_heads=2,
    experts=2**29,
    embeddings=2 * HEAD,
    tied=False,
    layer_bytes=34 * 1024,
    adapted=2**20,
)
MODES = "stock veRL, lockstep", "turns on all GPUs"
PLAIN = Training(tokens=1024, models=1, references=0, checkpointed=True, fused=True)
LAYERS = 2**30 - 2 * HEAD  # parameters of all four


def moments(training, gpus=1, shape=BILLION):
    """Each moment of an update with GiB of its gradients and of what else it needs."""
    per_gpu = training.spread.tensor * training.spread.pipeline / gpus
    tokens = min(training.tokens, training.update * per_gpu)
    of = memory._of_megatron if training.is_megatron else memory._of_fsdp
    found = of(
        shape,
        training,
        memory._state(shape, training, gpus),
        tokens=tokens,
        scored=training.scored,
        accumulates=training.update * per_gpu > training.tokens,
    )
    return {name: (gradients / GIB, working / GIB) for name, gradients, _, working in found}


def test_a_trainer_shares_sixteen_bytes_a_parameter():
    found = memory.of_trainer(BILLION, PLAIN, gpus=4)
    assert (found.weights, found.gradients, found.optimizer, found.references) == (1, 1, 2, 0)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"weight_bytes": 2}, (0.5, 0.5, 1)),
        ({"spread": Spread(shards=2)}, (2, 2, 4)),
        ({"engine": "fsdp2", "all_on_cpu": True}, (0, 0, 0)),
        ({"lora": 64}, (1 + 1 / 16, 1 / 16, 1 / 8)),  # 64 × 2²⁰ parameters of the adapter
    ],
)
def test_dtype_shards_offload_and_adapters_change_the_state(changed, parts):
    found = memory._state(BILLION, replace(PLAIN, **changed), 4)
    assert tuple(each / GIB for each in (found.weights, found.gradients, found.optimizer)) == parts


@pytest.mark.parametrize(
    ("spread", "parts"),
    [
        (Spread(tensor=2, expert_tensor=2), (1, 2, 1.5)),  # 12 bytes over four ranks
        (Spread(tensor=2, expert_tensor=2, distributed=False), (1, 2, 6)),
        # Half of it is experts: an eighth of these on each GPU, without a copy.
        (Spread(tensor=2, expert=8), (0.5 + 0.125, 1 + 0.25, 12 * (0.25 / 4 + 0.5 / 8))),
        # A stage has half of the layers and one of the embeddings.
        (Spread(pipeline=2), (2 * 0.5, 4 * 0.5, 12 * 0.5 / 4)),
    ],
)
def test_megatron_splits_weights_by_its_sizes_and_the_optimizer_over_the_rest(spread, parts):
    found = memory._state(BILLION, replace(PLAIN, engine="megatron", spread=spread), 8)
    assert tuple(each / GIB for each in (found.weights, found.gradients, found.optimizer)) == parts


def test_an_optimizer_on_the_cpu_has_nothing_on_the_gpu():
    training = replace(PLAIN, engine="megatron", on_cpu=1.0)
    assert memory._state(BILLION, training, 8).optimizer == 0


def test_the_loss_has_inputs_of_layers_logits_and_gathered_embeddings():
    found = moments(replace(PLAIN, fused=False, update=1024))
    kept, logits = 1024 * 4 * 2 * 1024, 1024 * 1000 * 4
    assert found["loss"] == (0, pytest.approx((kept + logits + 2 * HEAD * 4) / GIB))
    assert moments(replace(PLAIN, update=1024))["loss"][1] == pytest.approx((kept + 2 * HEAD * 4) / GIB)
    fsdp2 = moments(replace(PLAIN, engine="fsdp2", update=1024))  # its units are each alone
    assert fsdp2["loss"][1] == pytest.approx((kept + HEAD * 2) / GIB)


def test_entropy_of_the_loss_costs_as_much_as_the_logits_again_unless_chunked():
    bytes_of = [
        memory._logit_bytes(replace(PLAIN, fused=False, entropy=True, chunked=chunked))
        for chunked in (False, True)
    ]
    assert bytes_of == [(8, 8), (4, 4)]


def test_without_checkpointing_layers_keep_all_and_offloaded_inputs_are_elsewhere():
    whole = 1024 * 34 * 1024
    assert memory._activations(BILLION, replace(PLAIN, checkpointed=False), 1024) == (4 * whole, 0)
    assert memory._activations(BILLION, PLAIN, 1024) == (1024 * 4 * 2 * 1024, whole)
    assert memory._activations(BILLION, replace(PLAIN, kept_on_gpu=False), 1024) == (0, whole)


def test_the_largest_unit_is_reduced_in_float32_and_a_step_makes_a_value_a_parameter():
    found = moments(PLAIN)
    assert found["reduction"] == (4, 2 * HEAD * 6 / GIB)
    assert found["optimizer's step"] == (4, 4)
    assert memory.of_trainer(BILLION, PLAIN, 1).at == "optimizer's step"
    assert memory.of_trainer(BILLION, PLAIN, 8).at == "backward pass"


def test_gradients_of_earlier_micro_batches_stay():
    assert moments(PLAIN)["loss"][0] == 4  # an update of any size
    assert moments(replace(PLAIN, update=1024))["loss"][0] == 0  # of one micro-batch


def test_a_micro_batch_has_no_more_tokens_than_its_gpu():
    few = memory.of_trainer(BILLION, replace(PLAIN, tokens=2**20, update=8 * 1024), 8)
    assert few == memory.of_trainer(BILLION, replace(PLAIN, tokens=1024, update=8 * 1024), 8)


def test_an_adapter_has_no_gradient_of_the_embeddings():
    found = moments(replace(PLAIN, lora=8, update=1024))
    kept, one = 1024 * 4 * 2 * 1024, 1024 * 34 * 1024
    assert "reduction" not in found
    assert found["backward pass"][1] == pytest.approx((kept + one + 2 * 2 * LAYERS / 4 + 4 * HEAD) / GIB)


def test_tensor_parallelism_splits_activations_and_logits_and_a_first_stage_waits_for_the_others():
    sizes = Training(1024, 1, 0, checkpointed=True, fused=False, engine="megatron")
    alone = moments(sizes)["loss"][1]
    tensor = moments(replace(sizes, spread=Spread(tensor=2)))["loss"][1]
    assert tensor == alone / 2
    piped = moments(replace(sizes, spread=Spread(pipeline=2)))["backward pass"][1]
    assert piped == moments(sizes)["backward pass"][1]  # half of the layers, two micro-batches


def test_log_probabilities_may_need_more_than_the_update():
    training = replace(PLAIN, fused=False, scored=2**20)
    found = memory.of_trainer(BILLION, training, 8)
    assert (found.at, found.gradients, found.optimizer) == ("log-probabilities", 0, 0)
    kept = memory.of_trainer(BILLION, replace(training, stays=ResidentParts(1, 1)), 8)
    assert kept.optimizer == 1  # eight bytes over eight GPUs, where it is not offloaded


def test_a_critic_stays_beside_the_actor_unless_it_is_offloaded():
    beside = replace(PLAIN, models=2, beside=ResidentParts(weights=1, optimizers=1))
    assert memory.of_trainer(BILLION, beside, 4).references == 3
    assert memory.of_trainer(BILLION, replace(beside, beside=ResidentParts()), 4).references == 0


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
    assert found[0] == "a trainer GPU needs 22 GiB of 16"
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
    stays = memory.resident(BILLION, PLAIN, ResidentParts(weights=2, optimizers=1, references=1), gpus=2)
    assert stays == (2 * 4 + 8 + 2) / 2
    megatron = replace(PLAIN, engine="megatron")  # gradients have a buffer of their own
    assert memory.resident(BILLION, megatron, ResidentParts(weights=1), gpus=2) == 2 + 4


def test_an_engine_that_stays_awake_is_beside_the_trainer(script):
    found = by_name(advised(script(**{f"{ARR}.rollout.free_cache_engine": False})))[MODES[0]]["memory"]
    assert found["awake_gib"] == found["engine"]["requested"]
    assert by_name(advised(script()))[MODES[0]]["memory"]["awake_gib"] == 0


def test_memory_that_is_not_estimated_says_so(script):
    name = script(**{f"{ARR}.actor.optim.optimizer": "SGD"})
    assert f"memory of the trainer is not estimated for {ARR}.actor.optim.optimizer=SGD" in told(name)


def test_memory_of_an_unknown_model_is_open_until_its_size_is_given(script):
    name = script(**{f"{ARR}.model.path": "/models/ours"})
    found = advised(name)
    assert all(mode.get("memory") is None for mode in found["modes"])
    assert any(line.startswith("memory is not estimated") for line in found["assumptions"])
    assert by_name(advised(name, "--model-size", "3B"))[MODES[0]]["memory"]["trainer"]["total"] > 10


def test_given_lengths_count_where_padding_is_left_out(script):
    def peak(*words, **changed):
        found = by_name(advised(script(**changed), *words))[MODES[0]]["memory"]["trainer"]
        return found["total"]

    padded = {f"{ARR}.model.use_remove_padding": False}
    short = "--answer-length", "200,600"
    assert peak() == peak(*short, **padded)  # assumed lengths, or padded rows: the longest
    assert peak(*short) < peak() - 2


def savings(name, *words, mode=MODES[1]):
    found = by_name(advised(name, *words))[mode]["memory"]
    return found, {each["key"]: each for each in found["savings"]}


@pytest.mark.parametrize(
    ("key", "value", "changed"),
    [
        (f"{ARR}.model.use_fused_kernels", True, {}),
        (f"{ARR}.actor.ppo_micro_batch_size_per_gpu", 2, {}),
        (
            f"{ARR}.model.enable_gradient_checkpointing",
            True,
            {f"{ARR}.model.enable_gradient_checkpointing": False},
        ),
        (f"{ARR}.actor.fsdp_config.optimizer_offload", True, {}),
        (f"{ARR}.rollout.gpu_memory_utilization", 0.4, {}),
        (f"{ARR}.rollout.free_cache_engine", True, {f"{ARR}.rollout.free_cache_engine": False}),
        (
            "critic.fsdp.optimizer_offload",
            True,
            {
                "algorithm.adv_estimator": "gae",
                "critic.model.path": "Qwen/Qwen2.5-7B",
                "critic.ppo_micro_batch_size_per_gpu": 4,
            },
        ),
    ],
)
def test_a_setting_is_named_with_the_effect_that_it_has(script, key, value, changed):
    before, found = savings(script(**changed))
    each = found[key]
    assert each["value"] == value
    after, _ = savings(script(**(changed | {key: value})))
    need = {
        "trainer": lambda of: of["trainer"]["total"] + of["awake_gib"],
        "engine": lambda of: of["engine"]["requested"] + of["resident_gib"],
    }[each["side"]]
    assert each["gib"] == pytest.approx(need(before) - need(after)) and each["gib"] > 0.1
    effects = [one["gib"] for one in before["savings"]]
    assert effects == sorted(effects, reverse=True)


def test_a_setting_that_is_on_is_not_named_and_what_does_not_fit_is_told_its_settings(script):
    name = script(**{f"{ARR}.model.use_fused_kernels": True})
    assert f"{ARR}.model.use_fused_kernels" not in savings(name)[1]
    out = told(name, "--card-gb", 20)
    assert "less while the trainer works: −" in out
    assert f"GiB: {ARR}.actor.ppo_micro_batch_size_per_gpu=2" in out


def test_a_key_is_spelled_as_the_launch_s_release_has_it(script):
    critic = {
        "algorithm.adv_estimator": "gae",
        "critic.model.path": "Qwen/Qwen2.5-7B",
        "critic.ppo_micro_batch_size_per_gpu": 4,
    }
    _, found = savings(script(**critic), "--verl-version", "0.4.1")
    assert "critic.model.fsdp_config.optimizer_offload" in found
    assert "critic.fsdp.optimizer_offload" not in found


def test_a_key_that_the_release_lacks_is_not_named(script):
    name = script(**{f"{ARR}.ref.log_prob_micro_batch_size_per_gpu": 4})
    assert f"{ARR}.model.use_fused_kernels" in savings(name, "--verl-version", "0.4.1")[1]
    assert f"{ARR}.model.use_fused_kernels" not in savings(name, "--verl-version", "0.3.0")[1]


@pytest.mark.parametrize(("tensor", "named"), [(1, {2}), (2, {4}), (4, set())])
def test_megatron_s_sizes_are_doubled_where_gpus_and_heads_divide_by_them(script, tensor, named):
    mega = f"{ARR}.actor.megatron"
    changed = {
        "model_engine": "megatron",
        f"{mega}.tensor_model_parallel_size": tensor,
        f"{ARR}.ref.megatron.tensor_model_parallel_size": tensor,
    }
    _, found = savings(script(**changed), mode=MODES[0])  # the model has four heads of keys
    key = f"{mega}.tensor_model_parallel_size"
    assert {each["value"] for name, each in found.items() if name == key} == named
    assert found[f"{mega}.override_transformer_config.recompute_granularity"]["value"].startswith(
        "full, with"
    )
