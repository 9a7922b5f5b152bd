"""Carrying a configuration forward to the pinned veRL keeps its meaning and loses no key silently."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from verl_samples import DAPO, FULL, PPO, corpus_launches, make_launch

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, nodes, put
from trinity_compat.common.resources import data_path
from trinity_compat.launch.entrypoints import stand_in
from trinity_compat.verl_config import FLAVOURS, PINNED, VERSIONS, effective_config, upgrade
from trinity_compat.verl_config.compose import Choices, compose
from trinity_compat.verl_config.pinned import pinned_release, pinned_tree
from trinity_compat.verl_config.releases import key_index, recipes, release_tree
from trinity_compat.verl_config.upgrade import row_for

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
AGENT = ROLLOUT + "agent.default_agent_loop"
SGLANG_TOOLS = [ROLLOUT + "name=sglang", ROLLOUT + "multi_turn.enable=True"]


def carried(*arguments: str, version: str, module: str = PPO):
    return upgrade(effective_config(make_launch(*arguments, module=module), version=version))


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("version", VERSIONS)
def test_no_default_of_a_release_stays_under_a_key_that_the_pinned_one_lacks(version, flavour) -> None:
    config = upgrade(effective_config(make_launch(f"--config-name={flavour}"), version=version)).config
    assert [key for key in config.settings if not pinned_release(flavour).takes(key)] == []


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_key_of_every_release_stays_moves_or_is_dropped_with_a_reason(
    version: str, flavour: str
) -> None:
    config = effective_config(make_launch(f"--config-name={flavour}"), version=version)
    result = upgrade(config)
    moved = {move.old for move in result.moves}
    dropped = {drop.key for drop in result.dropped}
    for key in config.settings:
        stays = any(name == key or name.startswith(key + ".") for name in result.config.settings)
        assert stays or key in moved or key in dropped, key
    assert all(move.why for move in result.moves) and all(drop.why for drop in result.dropped)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_but_keys_of_the_pinned_release_comes_out(version: str, flavour: str) -> None:
    result = carried(f"--config-name={flavour}", version=version)
    pinned = nodes(pinned_tree(flavour))
    free = tuple(f"{key}." for key, value in pinned.items() if value == {} or "{}" in str(value))
    added = {key for key in result.config.settings if key not in pinned and not key.startswith(free)}
    assert added <= {"reward.reward_kwargs.max_resp_len"}
    assert result.config.version.value == PINNED


def rows() -> list[dict]:
    lines = data_path("translators/by_hand/verl/upgrade.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_row_is_about_a_key_that_some_release_or_recipe_has() -> None:
    keys = set(key_index()[FLAVOURS[0]]) | set(key_index()[FLAVOURS[1]])
    for version in VERSIONS:
        for files in recipes(version)["dirs"].values():
            for stored in files.values():
                keys |= set(nodes(stored.get("config", {})))
    for row in rows():
        assert row.get("forks") or row["old"].removesuffix(".*") in keys, row


def test_every_row_leads_to_a_key_of_the_pinned_release_or_nowhere() -> None:
    known = set(nodes(pinned_tree(FLAVOURS[0]))) | set(nodes(pinned_tree(FLAVOURS[1])))
    free = (
        "reward.reward_kwargs.",
        ROLLOUT + "engine_kwargs.",
        "critic.megatron.",
        "actor_rollout_ref.actor.megatron.",
    )
    for row in rows():
        targets = row["new"] if isinstance(row["new"], list) else [row["new"]] if row["new"] else []
        for target in targets:
            assert target.removesuffix(".*") in known or target.startswith(free), row


@pytest.mark.parametrize(
    ("version", "arguments", "expected"),
    [
        # Until 0.3 the KL penalty sat in the reward unless the KL loss was on.
        ("0.3.0", [], {"algorithm.use_kl_in_reward": True}),
        ("0.3.0", [ACTOR + "use_kl_loss=True"], {"algorithm.use_kl_in_reward": False}),
        ("0.4.1", [], {"algorithm.use_kl_in_reward": False}),
        ("0.4.1", SGLANG_TOOLS, {AGENT: "tool_agent"}),
        ("0.6.1", SGLANG_TOOLS, {AGENT: "tool_agent"}),
        ("0.6.1", [*SGLANG_TOOLS, f"{AGENT}=mine"], {AGENT: "mine"}),
        ("0.6.1", [*SGLANG_TOOLS, ROLLOUT + "mode=async"], {AGENT: "single_turn_agent"}),
        ("0.6.1", SGLANG_TOOLS[:1], {AGENT: "single_turn_agent"}),
        ("0.6.1", [ROLLOUT + "name=vllm", SGLANG_TOOLS[1]], {AGENT: "single_turn_agent"}),
        ("0.7.0", SGLANG_TOOLS, {AGENT: "single_turn_agent"}),
        # Until 0.3 one clip ratio was both bounds, and nothing was clipped twice.
        (
            "0.3.0",
            [ACTOR + "clip_ratio=0.3"],
            {ACTOR + "clip_ratio_low": 0.3, ACTOR + "clip_ratio_high": 0.3},
        ),
        ("0.3.0", [], {ACTOR + "clip_ratio_c": 1e8}),
        ("0.4.1", [ACTOR + "clip_ratio=0.3"], {ACTOR + "clip_ratio_low": 0.2, ACTOR + "clip_ratio_c": 3.0}),
        # Until 0.7 FSDP's workers clipped by the model's own field, since then by the optimizer's.
        (
            "0.7.0",
            [ACTOR + "grad_clip=0.3", "critic.grad_clip=0.4"],
            {ACTOR + "optim.clip_grad": 0.3, "critic.optim.clip_grad": 0.4},
        ),
        # Until 0.7 the critic's workers split sequences by the critic's own field.
        (
            "0.7.0",
            ["critic.ulysses_sequence_parallel_size=4"],
            {"critic.fsdp.ulysses_sequence_parallel_size": 4},
        ),
        (
            "0.8.0",
            ["critic.ulysses_sequence_parallel_size=4"],
            {"critic.fsdp.ulysses_sequence_parallel_size": 1},
        ),
        ("0.8.0", [ACTOR + "grad_clip=0.3"], {ACTOR + "optim.clip_grad": 1.0, ACTOR + "grad_clip": 0.3}),
        ("0.8.0", [ACTOR + "optim.clip_grad=0.3"], {ACTOR + "optim.clip_grad": 0.3}),
        # Defaults that flipped.
        ("0.3.0", [], {ACTOR + "entropy_coeff": 0.001}),
        ("0.5.0", [], {ROLLOUT + "enforce_eager": True, ROLLOUT + "name": "vllm", ROLLOUT + "mode": "async"}),
        (
            "0.6.1",
            [],
            {"actor_rollout_ref.model.use_remove_padding": False, "critic.model.use_remove_padding": False},
        ),
        ("0.9.1", [], {"actor_rollout_ref.model.use_remove_padding": True}),
        ("0.2.0", [], {"data.filter_overlong_prompts": True}),
        # A user's choice of what cannot be any more.
        ("0.5.0", [ROLLOUT + "mode=sync"], {ROLLOUT + "mode": "async"}),
        ("0.5.0", [ROLLOUT + "load_format=dummy_dtensor"], {ROLLOUT + "load_format": "dummy"}),
        ("0.5.0", [ROLLOUT + "load_format=safetensors"], {ROLLOUT + "load_format": "safetensors"}),
        # Moves.
        (
            "0.5.0",
            [ACTOR + "optim.warmup_style=cosine"],
            {ACTOR + "optim.lr_scheduler_type": "cosine", ACTOR + "optim.warmup_style": None},
        ),
        ("0.7.0", ["critic.model.fsdp_config.param_offload=True"], {"critic.fsdp.param_offload": True}),
        (
            "0.7.0",
            ["reward_model.enable=True", "reward_model.model.path=/rm"],
            {"reward.reward_model.enable": True, "reward.reward_model.model_path": "/rm"},
        ),
        ("0.7.0", ["reward_model.reward_manager=dapo"], {"reward.reward_manager.name": "dapo"}),
        (
            "0.9.1",
            ["custom_reward_function.path=/f.py"],
            {
                "reward.custom_reward_function.path": "/f.py",
                "reward.custom_reward_function.name": "compute_score",
            },
        ),
        ("0.3.0", ["trainer.val_generations_to_log_to_wandb=4"], {"trainer.log_val_generations": 4}),
        (
            "0.2.0",
            ["trainer.remove_previous_ckpt_in_save=True"],
            {"trainer.max_actor_ckpt_to_keep": 1, "trainer.max_critic_ckpt_to_keep": 1},
        ),
        (
            "0.2.0",
            ["trainer.resume_mode=/ckpt/global_step_5"],
            {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/ckpt/global_step_5"},
        ),
        ("0.5.0", ["ray_init.num_cpus=8"], {"ray_kwargs.ray_init.num_cpus": 8}),
        (
            "0.7.0",
            [
                "algorithm.rollout_correction.rollout_rs=token",
                "algorithm.rollout_correction.rollout_rs_threshold=4.0",
            ],
            {
                "algorithm.rollout_correction.rollout_rs": "token_k1",
                "algorithm.rollout_correction.rollout_rs_threshold": "0.25_4.0",
            },
        ),
        # v0 trains here unless the launch says otherwise.
        ("0.9.1", ["trainer.use_v1=True"], {"trainer.use_v1": True}),
        ("0.9.1", ["trainer.use_v1=False"], {"trainer.use_v1": False}),
        ("0.9.1", [], {"trainer.use_v1": False}),
        ("0.7.0", [], {"trainer.use_v1": False}),
    ],
)
def test_the_meaning_is_kept(version: str, arguments: list[str], expected: dict) -> None:
    config = carried(*arguments, version=version).config
    assert {key: config.get(key, "absent") for key in expected} == expected


def test_dapo_keeps_its_overlong_buffer_and_group_filter() -> None:
    config = carried(
        "reward_model.overlong_buffer.enable=True",
        "reward_model.overlong_buffer.len=4096",
        "data.max_response_length=20480",
        "algorithm.filter_groups.metric=acc",
        version="0.5.0",
        module=DAPO,
    ).config
    assert config.get("reward.reward_manager.name") == "dapo"
    assert config.get("reward.reward_kwargs.overlong_buffer_cfg.len") == 4096
    assert config.get("reward.reward_kwargs.max_resp_len") == 20480
    assert config.get("algorithm.filter_groups.metric") == "acc"


def test_a_moved_key_keeps_its_place_and_spelling() -> None:
    config = carried("critic.model.fsdp_config.param_offload=True", version="0.7.0").config
    setting = config.settings["critic.fsdp.param_offload"]
    assert str(setting.where) == "run.sh:2"
    assert setting.spelling == "critic.model.fsdp_config.param_offload"
    assert config.set_keys == ("critic.fsdp.param_offload",)


def test_a_key_that_no_release_knows_is_carried_and_stays_unknown() -> None:
    config = carried("+my.own.key=3", version="0.5.0").config
    assert config.get("my.own.key") == 3
    assert config.unknown == ("my.own.key",)


def test_a_key_that_would_break_a_dataclass_is_dropped_with_the_reason() -> None:
    result = carried(
        "+actor_rollout_ref.actor.my_trick=3", "+actor_rollout_ref.rollout.logprobs_mode=x", version="0.4.1"
    )
    assert [drop.key for drop in result.dropped if drop.given] == ["actor_rollout_ref.actor.my_trick"]
    assert "dataclass" in result.dropped[[d.given for d in result.dropped].index(True)].why
    assert result.config.get("actor_rollout_ref.rollout.logprobs_mode") == "x"


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.model.override_config.attn_implementation",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.enforce_eager",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision",
        "reward.reward_kwargs.overlong_buffer_cfg.len",
    ],
)
def test_what_verl_reads_without_listing_it_is_not_unknown(key: str) -> None:
    config = effective_config(make_launch(f"+{key}=3"), version="0.9.1")
    assert config.unknown == () and not config.diagnostics
    result = upgrade(config)
    assert result.config.get(key) == 3 and result.config.unknown == ()


def test_rows_of_a_prefix_give_way_to_the_key_s_own_row() -> None:
    assert row_for("reward_model.enable", FLAVOURS[0]).new == ("reward.reward_model.enable",)
    assert row_for("reward_model.strategy", FLAVOURS[0]).new == ()
    assert row_for("data.train_batch_size", FLAVOURS[0]) is None


LENGTH = ROLLOUT + "max_model_len"


@pytest.mark.parametrize(
    ("version", "mode", "length"),
    [
        ("0.5.0", "async", 6144),
        ("0.6.0", "async", None),
        ("0.6.1", "async", None),
        ("0.6.1", "sync", 6144),
        ("0.7.0", "async", None),
        ("0.7.1", "async", 6144),
        ("0.8.0", "async", 6144),
        ("0.9.1", "async", 6144),
    ],
)
def test_a_length_that_the_servers_of_a_release_overwrite_is_dropped(version, mode, length) -> None:
    result = carried(f"{LENGTH}=6144", f"{ROLLOUT}mode={mode}", version=version)
    assert result.config.get(LENGTH) == length
    assert [drop.given for drop in result.dropped if drop.key == LENGTH] == [True] * (length is None)


@pytest.mark.parametrize(("key", "length"), [("scheduling_policy", 6144), ("mine", None)])
def test_a_fork_with_code_from_after_0_7_0_keeps_the_length(tmp_path, key, length) -> None:
    content = copied(compose(release_tree("0.7.0").find, "ppo_trainer", Choices()))
    put(content, ROLLOUT + key, "fcfs")
    put(content, LENGTH, 6144)
    folder = tmp_path / "verl" / "trainer" / "config"
    folder.mkdir(parents=True)
    (folder / "ppo_trainer.yaml").write_text(yaml.safe_dump(content))
    config = effective_config(make_launch(cwd=str(tmp_path)), root=tmp_path)
    assert config.fork and config.version.value == "0.7.0"
    assert upgrade(config).config.get(LENGTH) == length


@pytest.mark.parametrize(
    ("arguments", "main"),
    [
        (["data.gen_batch_size=64", "trainer.use_v1=true"], PPO),
        (["algorithm.filter_groups.enable=True", "trainer.use_v1=true", "data.gen_batch_size=64"], PPO),
        (["data.gen_batch_size=64", "reward.num_workers=4"], PPO),
        (["data.gen_batch_size=64", "reward_model.overlong_buffer.enable=True"], DAPO),
        (["data.gen_batch_size=64", "reward_model.reward_manager=dapo"], DAPO),
    ],
)
def test_a_main_with_dapo_s_keys_is_that_whose_releases_take_its_others(arguments, main) -> None:
    words = ("algorithm.adv_estimator=grpo", *arguments)
    launch = replace(make_launch(*words, module="my_entry"), main=stand_in("my_entry", words))
    assert launch.main == DAPO
    config = effective_config(launch)
    assert config.launch.main == main
    assert not [note for note in config.diagnostics if note.severity == "error"]


@pytest.mark.parametrize("version", VERSIONS)
def test_carrying_forward_twice_changes_nothing_more(version: str) -> None:
    once = carried("data.train_batch_size=64", version=version).config
    twice = upgrade(once).config
    assert {k: s.value for k, s in twice.settings.items()} == {k: s.value for k, s in once.settings.items()}


def test_public_launches_are_carried_with_every_set_key_accounted_for() -> None:
    for _, launch in corpus_launches(PPO, DAPO)[:: 1 if FULL else 3]:
        try:
            config = effective_config(launch)
        except UserError:
            continue
        result = upgrade(config)
        moved = {move.old for move in result.moves} | {drop.key for drop in result.dropped}
        for key in config.set_keys:
            assert key in moved or key in result.config.settings, (launch.where, key)
