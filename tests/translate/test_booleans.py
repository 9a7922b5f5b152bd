"""A key that veRL takes as true or false, given as a text, a number or null: veRL's reading, or an error."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves
from trinity_compat.launch import read_argv
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.booleans import with_booleans
from trinity_compat.translate.model import Status
from trinity_compat.verl_config import effective_config
from trinity_compat.verl_config.pinned import pinned_release

from .helpers import BASICS, flat, launch_of, script, translated

TEXTS = ("no", "off", "yes", "On", "None", "'False'", '"false"', '"True"', "'true'", '"0"', "nein")
# One for each kind of reader: a derivation, a copied row, a passed one, a kept one, a caution.
KEYS = (
    "trainer.val_before_train",
    "trainer.balance_batch",
    "data.shuffle",
    "actor_rollout_ref.actor.use_kl_loss",
    "algorithm.use_kl_in_reward",
    "algorithm.filter_groups.enable",
    "actor_rollout_ref.rollout.enforce_eager",
    "actor_rollout_ref.rollout.val_kwargs.do_sample",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.model.use_remove_padding",
    "critic.enable",
    "reward_model.enable",
    "trainer.use_v1",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("key", KEYS)
def test_a_text_for_true_or_false_is_refused_in_the_user_s_spelling(key, text):
    with pytest.raises(UserError) as told:
        translated(f"{key}={text}")
    assert told.value.message.startswith(f"{key}={text} should be true or false")
    assert told.value.where.line == len(BASICS) + 1


@pytest.mark.parametrize("section", ["actor_rollout_ref.rollout", "reward.reward_model.rollout"])
@pytest.mark.parametrize("value", [*TEXTS, "1", "0", '""'])
def test_a_switch_of_vllm_s_takes_no_value(section, value):
    key = f"+{section}.engine_kwargs.vllm.async_scheduling"
    with pytest.raises(UserError) as told:
        translated(f"{key}={value}")
    assert told.value.message.startswith(f"{key}={value} should be true or false: veRL starts vLLM with")
    assert told.value.where.line == len(BASICS) + 1


MODEL = "actor_rollout_ref.model"


@pytest.mark.parametrize(
    ("argument", "switch"),
    [
        ("enable_expert_parallel", ()),
        ("enable_lora", (f"{MODEL}.lora_rank=8",)),
        ("fully_sharded_loras", (f"{MODEL}.lora_rank=8", f"+{MODEL}.lora.fully_sharded_loras=True")),
        ("enable_return_routed_experts", ("actor_rollout_ref.rollout.enable_rollout_routing_replay=True",)),
    ],
)
@pytest.mark.parametrize("value", ["1", "no", '"False"'])
def test_a_switch_that_verl_sets_itself_may_be_anything(argument, switch, value):
    key = f"actor_rollout_ref.rollout.engine_kwargs.vllm.{argument}"
    translation, _ = translated(f"+{key}={value}", *switch)
    (found,) = (each for each in translation.findings if each.key == key)
    assert found.status is Status.NO_EFFECT
    if switch:
        with pytest.raises(UserError, match="should be true or false"):
            translated(f"+{key}={value}")


def test_engines_of_other_models_have_no_adapters_but_spread_experts():
    section = "reward.reward_model.rollout.engine_kwargs.vllm"
    translated(f"+{section}.enable_expert_parallel=1")
    with pytest.raises(UserError, match="should be true or false"):
        translated(f"+{section}.enable_lora=1", f"{MODEL}.lora_rank=8")


@pytest.mark.parametrize("engine", ["sglang", "trtllm", "hf"])
def test_another_engine_does_not_read_vllm_s_arguments(engine):
    rollout = "actor_rollout_ref.rollout"
    kwargs = f"+{rollout}.engine_kwargs.vllm.async_scheduling"
    _, config = translated(f"{rollout}.name={engine}", f"{kwargs}=no")
    kept = "trainer.trainer_config.trinity_compat.verl"
    assert flat(config)[f"{kept}.{kwargs[1:]}"] is None  # says nothing to the explorer's vLLM


@pytest.mark.parametrize(
    "word",
    [
        "async_scheduling=true",
        "async_scheduling=False",
        "async_scheduling=null",
        "hf_token=no",
        "served_model_name=off",
    ],
)
def test_what_vllm_s_parser_takes_is_not_refused(word):
    translated(f"+actor_rollout_ref.rollout.engine_kwargs.vllm.{word}")


@pytest.mark.parametrize("value", ["0.0", "1.5", "[]", "[true]"])
def test_so_is_a_fraction_or_a_list(value):
    with pytest.raises(UserError, match=r"should be true or false$"):
        translated(f"trainer.val_before_train={value}")


@pytest.mark.parametrize("flavour", ["ppo_trainer", "ppo_megatron_trainer"])
def test_a_text_is_refused_for_each_boolean_key_of_the_pinned_release(flavour):
    engine = ["model_engine=megatron"] if flavour != "ppo_trainer" else []
    booleans = [key for key, value in leaves(pinned_release(flavour).resolved) if isinstance(value, bool)]
    assert len(booleans) > 150
    for key in booleans:
        config = effective_config(launch_of([*engine, f"++{key}=no"]), version="0.9.1")
        with pytest.raises(UserError, match="should be true or false"):
            with_booleans(config)


@pytest.mark.parametrize(
    ("main", "words", "key"),
    [
        ("fsdp_sft_trainer", ["model.partial_pretrain=m"], "data.multiturn.enable"),
        ("fsdp_sft_trainer", ["model.partial_pretrain=m"], "model.enable_gradient_checkpointing"),
        ("sft_trainer", ["model.path=m"], "data.use_dynamic_bsz"),
        ("sft_trainer", ["model.path=m"], "engine.param_offload"),
    ],
)
def test_a_supervised_launch_has_the_same_rule(main, words, key):
    given = ["data.train_files=a.parquet", "data.val_files=b.parquet", *words, f"{key}=off"]
    (launch,) = read_argv(["torchrun", "-m", f"verl.trainer.{main}", *given]).launches
    with pytest.raises(UserError, match=f"{key}=off should be true or false"):
        translate_launch(launch, TranslateOptions())


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    ("value", "meant"), [("0", "False"), ("null", "False"), ("", "False"), ("1", "True")]
)
def test_a_number_null_and_an_empty_text_are_read_as_python_reads_them(key, value, meant):
    if (key, value) == ("critic.enable", "null"):
        meant = "null"  # its default, with which the estimator decides
    assert translated(f"{key}={value}")[1] == translated(f"{key}={meant}")[1]


def of_script(value):
    text = f"python3 -m verl.trainer.main_ppo {' '.join(BASICS)} trainer.val_before_train={value}\n"
    return translate_launch(script(text), TranslateOptions())[0].config["explorer"]["eval_on_startup"]


def test_the_default_of_a_variable_is_a_text_too_and_what_is_open_stays_open():
    with pytest.raises(UserError, match=r"trainer\.val_before_train=no should be true or false"):
        of_script("${VAL:-no}")
    with pytest.raises(UserError, match="depends on"):
        of_script("$(cat flag)")
    assert of_script("${VAL:-False}") is False
