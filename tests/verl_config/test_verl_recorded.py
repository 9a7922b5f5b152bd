# ruff: noqa: E501
"""What becomes of each release's defaults, and what a reading says, as a whole (see tests/recorded.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import assert_recorded
from verl_samples import DAPO, PPO, make_launch

from trinity_compat.common.errors import UserError
from trinity_compat.verl_config import FLAVOURS, VERSIONS, effective_config, upgrade

RECORDED = Path(__file__).parent / "recorded"
A, RO = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
OLD = [
    f"{A}grad_clip=0.5", f"{A}clip_ratio=0.3", f"{A}use_kl_loss=True", "critic.grad_clip=0.7",
    "trainer.resume_mode=auto", f"{RO}name=sglang", f"{RO}multi_turn.enable=True", "reward_model.reward_manager=dapo",
    "custom_reward_function.path=/r.py", f"{RO}n=4", "trainer.total_epochs=2", "actor_rollout_ref.model.path=/m",
]  # fmt: skip


def upgraded(*arguments: str, version: str, module: str = PPO) -> list[str]:
    result = upgrade(effective_config(make_launch(*arguments, module=module), version=version))
    moves = [
        f"{move.old or '(implied)'} -> {', '.join(move.new)} given={move.given}: {move.why}"
        for move in result.moves
    ]
    drops = [f"{drop.key} dropped given={drop.given}: {drop.why}" for drop in result.dropped]
    written = {name for move in result.moves for name in move.new}
    settings = result.config.settings
    values = [
        f"{key} = {settings[key].value!r} ({settings[key].where})" for key in settings if key in written
    ]
    return [*moves, *drops, *values]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_as_recorded(version: str, flavour: str) -> None:
    lines = upgraded(f"--config-name={flavour}", version=version)
    try:
        lines += ["", *upgraded(f"--config-name={flavour}", *OLD, version=version)]
    except UserError as error:
        lines += ["", f"refused: {error}"]
    assert_recorded(RECORDED / f"{flavour}-{version}.txt", "\n".join(lines) + "\n")


SAID = {
    "plain": [],
    "unknown": ["data.train_bach_size=3", "trainer.nope=1", "x=1"],
    "added": ["+data.mine=1", "++data.seed=3", "+data.seed=4", "~data.shuffle", "~data.none", "+new.deep.key=[1,2]"],
    "forms": ["data.seed='x y'", "data.seed={a:1,b:[2,null]}", 'data.seed="q"', "data.seed=1e-3", "data.seed=null", "data.seed=''"],
    "broken": ["data.seed=[1", "data.seed={a", "=3", "data.seed", "data..seed=1", "data.seed=a:b", "a b=1"],
    "sections": ["data=1", "trainer={nnodes:2}", "algorithm.kl_ctrl=null", "actor_rollout_ref.actor=null"],
    "interpolation": ["data.seed=${data.train_batch_size}", "trainer.nnodes=${nope.key}", "data.val_batch_size=${oc.env:NONE,3}"],
    "groups": ["actor@actor_rollout_ref.actor=megatron_actor", "nope@x=1", "data=legacy_data", "model_engine=megatron"],
    "hydra": ["hydra.run.dir=/x", "hydra/launcher=joblib", "--multirun", "data.seed=1,2"],
    "flags": ["--config-path=/none", "--config-name=nope"],
    "twice": ["data.seed=1", "data.seed=2", "data.max_prompt_length=5", "data.max_prompt_length=6"],
    "types": ["trainer.nnodes=two", "data.shuffle=maybe", "data.train_batch_size=1.5", f"{A}optim.lr=big"],
    "old keys": OLD,
    "new keys": ["trainer.use_v1=True", f"{RO}calculate_log_probs=True"],
}  # fmt: skip


@pytest.mark.parametrize("module", [PPO, DAPO], ids=["ppo", "dapo"])
@pytest.mark.parametrize("name", SAID)
def test_what_a_configuration_says_as_recorded(name: str, module: str) -> None:
    lines = []
    for arguments in [SAID[name], *([one] for one in SAID[name])]:
        lines.append(" ".join(arguments))
        try:
            config = effective_config(make_launch(*arguments, module=module))
        except UserError as error:
            lines.append(f"  refused: {error}; {error.hint}")
            continue
        lines.append(f"  {config.version.value}: {config.version.why}")
        lines += [f"  {d.code} {d.severity} {d.where}: {d.message}" for d in config.diagnostics]
        for key in sorted(config.set_keys):
            setting = config.settings.get(key)
            lines.append(f"  {key} = {setting and setting.value!r} ({setting and setting.where})")
    assert_recorded(
        RECORDED / f"{module.rpartition('.')[2]}-{name.replace(' ', '-')}.txt", "\n".join(lines) + "\n"
    )
