"""Engines of supervised launches: which one trains, and where its sizes and its optimizer's settings go."""

import pytest

from trinity_compat.common.nested import value_at
from trinity_compat.launch import read_argv
from trinity_compat.translate.model import Status, TranslateOptions
from trinity_compat.translate.pipeline import translate_launch
from trinity_compat.translate.verl_from_trinity import completed_config, flavour_of, to_verl, verl_settings
from trinity_compat.trinity.config import validate
from trinity_compat.verl_config import effective_config
from trinity_compat.verl_config.pinned import compose_pinned

ROWS = ["data.train_files=a.parquet", "data.messages_key=talk", "model.path=m", "trainer.n_gpus_per_node=8"]
MEGATRON = [*ROWS, "engine=megatron", "optim=megatron", "optim.lr=2e-5"]
ACTOR = "actor_rollout_ref.actor"


def translated(*arguments):
    (found,) = read_argv(["torchrun", "-m", "verl.trainer.sft_trainer", *arguments]).launches
    return translate_launch(found, TranslateOptions())[0]


def trained(*arguments):
    """The configuration of veRL's that the run trains with."""
    made = translated(*arguments).config
    assert not validate(made, "0.6.0")
    full = completed_config(made)
    return compose_pinned(verl_settings(full), flavour_of(made))["actor_rollout_ref"]["actor"]


def finding(key, *arguments):
    return next(each for each in translated(*arguments).findings if each.key == key)


def test_the_class_of_the_section_names_the_engine():
    actor = trained(*MEGATRON)
    assert actor["strategy"] == "megatron"
    assert actor["_target_"].endswith(".McoreActorConfig")
    assert actor["optim"]["_target_"].endswith(".McoreOptimizerConfig")
    assert trained(*ROWS, "engine=fsdp")["strategy"] == "fsdp"
    assert trained(*ROWS, "engine.strategy=fsdp2")["strategy"] == "fsdp2"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tensor_model_parallel_size", 4),
        ("pipeline_model_parallel_size", 2),
        ("virtual_pipeline_model_parallel_size", 2),
        ("context_parallel_size", 2),
        ("expert_model_parallel_size", 8),
        ("expert_tensor_parallel_size", 1),
        ("sequence_parallel", False),
        ("param_offload", True),
        ("optimizer_offload", True),
        ("use_mbridge", False),
        ("vanilla_mbridge", True),
        ("use_megatron_fsdp", True),
        ("override_transformer_config.attention_backend", "auto"),
    ],
)
def test_a_setting_of_megatrons_reaches_the_run(key, value):
    section = trained(*MEGATRON, f"engine.{key}={value}")["megatron"]
    for name in key.split("."):
        section = section[name]
    assert section == value
    found = finding(f"engine.{key}", *MEGATRON, f"engine.{key}={value}")
    assert found.status in (Status.MAPPED, Status.PASSED_THROUGH) and found.target


def test_the_settings_of_its_optimizer_reach_the_run():
    optim = trained(
        *MEGATRON,
        "optim.min_lr=2e-6",
        "optim.lr_decay_style=inverse_square_root",
        "optim.lr_warmup_init=1e-7",
        "optim.lr_warmup_steps=5",
        "optim.weight_decay=0.1",
        "optim.clip_grad=0.5",
        "optim.betas=[0.9,0.95]",
        "+optim.override_optimizer_config.optimizer_cpu_offload=True",
    )["optim"]
    assert (optim["min_lr"], optim["lr"], optim["optimizer"]) == (2e-6, 2e-5, "adam")
    assert (optim["lr_decay_style"], optim["lr_warmup_init"]) == ("inverse_square_root", 1e-7)
    assert (optim["lr_warmup_steps"], optim["weight_decay"], optim["clip_grad"]) == (5, 0.1, 0.5)
    assert optim["betas"] == [0.9, 0.95]
    assert optim["override_optimizer_config"] == {"optimizer_cpu_offload": True}


def test_its_floor_is_a_share_of_the_rate_in_the_yaml():
    optimizer = translated(*MEGATRON, "optim.min_lr=2e-6").config["algorithm"]["optimizer"]
    assert optimizer["min_lr_ratio"] == 0.1


def test_an_edit_of_the_floor_counts():
    made = translated(*MEGATRON, "optim.min_lr=1e-6").config
    made["algorithm"]["optimizer"]["min_lr_ratio"] = 0.5
    assert to_verl(made)[f"{ACTOR}.optim.min_lr"] == 1e-5


@pytest.mark.parametrize(
    ("engine", "optimizer", "betas"),
    [("megatron", "adam", [0.9, 0.95]), ("megatron", "muon", "[0.9,0.95]"), ("fsdp", "AdamW", "[0.9,0.95]")],
)
def test_quoted_numbers_are_numbers_where_verl_reads_none_of_them(engine, optimizer, betas):
    """Of the others veRL refuses the text itself."""
    given = [f"engine={engine}", f"optim={engine}", f"optim.optimizer={optimizer}"]
    made = translated(*ROWS, *given, "optim.betas='[0.9,0.95]'").config
    assert made["algorithm"]["optimizer"]["betas"] == betas


@pytest.mark.parametrize(
    ("word", "place", "value"),
    [
        ("engine.reshard_after_forward=False", "fsdp_config.reshard_after_forward", False),
        ("engine.wrap_policy.min_num_params=7", "fsdp_config.wrap_policy.min_num_params", 7),
        ("optim.num_cycles=0.75", "optim.num_cycles", 0.75),
        ("optim.optimizer_impl=torchao.optim", "optim.optimizer_impl", "torchao.optim"),
    ],
)
def test_a_setting_of_fsdps_without_a_field_reaches_the_run(word, place, value):
    section = trained(*ROWS, word)
    for name in place.split("."):
        section = section[name]
    assert section == value
    assert finding(word.partition("=")[0], *ROWS, word).status is Status.PASSED_THROUGH


@pytest.mark.parametrize("engine", ["automodel", "veomni", "torchtitan"])
def test_an_engine_that_trinity_lacks_is_carried_for_our_run(engine):
    given = [*ROWS, f"engine={engine}", f"optim={engine}", "engine.use_torch_compile=True", "optim.lr=2e-5"]
    assert translated(*given).config["trainer"]["trainer_strategy"] == "fsdp2"
    actor = trained(*given)
    assert actor["strategy"] == engine
    assert actor[engine]["use_torch_compile"] is True and actor["optim"]["lr"] == 2e-5
    for key in ("engine", "optim", "engine.use_torch_compile"):
        found = finding(key, *given)
        assert found.status is Status.UNSUPPORTED_UPSTREAM and "trinity-compat" in found.reason


def test_fsdp_turbo_s_section_is_read_by_fsdp_turbo_alone():
    word = "engine.turbo_config.distributed.ulysses_parallel_size=2"
    key = word.partition("=")[0]
    assert finding(key, *ROWS, word).status is Status.NO_EFFECT
    assert finding(key, *ROWS, "engine.strategy=fsdp_turbo", word).status is Status.UNSUPPORTED_UPSTREAM


@pytest.mark.parametrize("engine", ["automodel", "veomni", "torchtitan"])
def test_every_default_of_its_sections_is_the_supervised_trainer_s(engine):
    """PPO's configuration of an engine has other defaults, and Trinity's for FSDP are not this engine's."""
    given = [*ROWS, f"engine={engine}", f"optim={engine}"]
    (found,) = read_argv(["torchrun", "-m", "verl.trainer.sft_trainer", *given]).launches
    stock, actor = effective_config(found), trained(*given)
    sections = {"engine": engine, "optim": "optim"}
    for key, setting in stock.settings.items():
        section, _, name = key.partition(".")
        if section in sections and name != "_target_":
            assert value_at(actor[sections[section]], name) == setting.value, key


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("optim.lr_decay_style=linear", Status.UNSUPPORTED_UPSTREAM),
        ("optim.lr_decay_style=cosine", Status.DERIVED),
        ("optim.optimizer=muon", Status.APPROXIMATED),
        ("optim.optimizer=adam", Status.DERIVED),
    ],
)
def test_what_upstreams_optimizer_lacks_is_said(word, status):
    assert finding(word.partition("=")[0], *MEGATRON, word).status is status


def test_gradients_of_an_older_release_follow_the_parameters():
    given = [*MEGATRON, "engine.grad_offload=True", "optim.lr_decay_style=cosine"]
    assert finding("engine.grad_offload", *given).status is Status.NO_EFFECT
    assert "grad_offload" not in trained(*given)["megatron"]


def test_the_strategy_has_its_place_in_the_provenance():
    assert "engine._target_" in translated(*MEGATRON).provenance["trainer.trainer_strategy"]
