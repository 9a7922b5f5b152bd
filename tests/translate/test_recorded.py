# ruff: noqa: E501
"""Everything that a translation says, for launches that differ from a plain one in a few keys.

Recorded is the difference to the plain launch: lines of the YAML with their comments, findings, cautions and
facts, or the refusal (tests/recorded.py says how to record it again).
"""

from collections import Counter
from pathlib import Path

import pytest
from recorded import assert_recorded

from trinity_compat.common.errors import UserError
from trinity_compat.translate import TranslateOptions, translate_launch

from .helpers import BASICS, launch_of
from .test_cases import read_cases

RECORDED = Path(__file__).parent / "recorded"
A, R, RO = "actor_rollout_ref.actor.", "actor_rollout_ref.ref.", "actor_rollout_ref.rollout."
PPO = ["algorithm.adv_estimator=gae", "critic.model.path=/m/critic", "critic.optim.lr=2e-6"]
MORE = {
    "critic": [*PPO, "critic.optim.lr_warmup_steps=3", "trainer.critic_warmup=2", "critic.ppo_epochs=2"],
    "no critic": ["trainer.critic_warmup=2", "critic.optim.lr=2e-6", "critic.optim.lr_warmup_steps=3"],
    "eight gpus": ["trainer.n_gpus_per_node=8", "trainer.nnodes=1", f"{RO}tensor_model_parallel_size=4"],
    "too wide an engine": ["trainer.n_gpus_per_node=4", f"{RO}tensor_model_parallel_size=4"],
    "two nodes": ["trainer.n_gpus_per_node=8", "trainer.nnodes=2", f"{A}ulysses_sequence_parallel_size=4"],
    "engine of all": ["trainer.n_gpus_per_node=8", f"{RO}tensor_model_parallel_size=8"],
    "published engine of all": ["trainer.n_gpus_per_node=8", f"{RO}tensor_model_parallel_size=8", "@as_published=1"],
    "given split of all": ["trainer.n_gpus_per_node=8", f"{RO}tensor_model_parallel_size=8", "@rollout_gpus=4"],
    "one gpu": ["trainer.n_gpus_per_node=1", "trainer.nnodes=1"],
    "given split": ["trainer.n_gpus_per_node=8", "@rollout_gpus=2"],
    "split that cannot be": ["trainer.n_gpus_per_node=8", "@rollout_gpus=8"],
    "odd batch": ["trainer.use_v1=False", "data.train_batch_size=1000", f"{A}ppo_mini_batch_size=300"],
    "large odd batch": ["trainer.use_v1=False", "data.train_batch_size=27720", f"{A}ppo_mini_batch_size=27719"],
    "sixteen divisors": ["trainer.use_v1=False", "data.train_batch_size=120", f"{A}ppo_mini_batch_size=7"],
    "schedule": [f"{A}optim.lr_warmup_steps=5", f"{A}optim.lr_scheduler_type=cosine", f"{A}optim.min_lr_ratio=0.1"],
    "schedule by ratio": [f"{A}optim.lr_warmup_steps_ratio=0.1", "trainer.total_training_steps=100"],
    "kl in loss": [f"{A}use_kl_loss=True", f"{A}kl_loss_type=low_var_kl", f"{A}kl_loss_coef=0.01"],
    "kl in reward": ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.002", "algorithm.kl_penalty=abs"],
    "dapo": ["reward.reward_manager.name=dapo", f"{A}clip_ratio_high=0.28", f"{A}loss_agg_mode=token-mean"],
    "length limits": ["data.max_prompt_length=1", "data.max_response_length=7", f"{RO}max_model_len=5"],
    "sampling": [f"{RO}n=8", f"{RO}temperature=0.7", f"{RO}top_p=0.9", f"{RO}top_k=50", f"{RO}val_kwargs.n=4"],
    "tracking": ["trainer.logger=[console,wandb]", "trainer.project_name=p", "trainer.experiment_name=e"],
    "saving": ["trainer.save_freq=20", "trainer.test_freq=5", "trainer.val_before_train=False", "trainer.total_epochs=3"],
    "resume": ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/c/global_step_5"],
    "lora": ["actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.model.lora_alpha=16"],
    "offload": [f"{A}fsdp_config.param_offload=True", f"{A}fsdp_config.optimizer_offload=True", f"{R}fsdp_config.param_offload=True"],
    "micro batches": [f"{A}use_dynamic_bsz=True", f"{A}ppo_max_token_len_per_gpu=9000", f"{R}log_prob_micro_batch_size=8"],
    "megatron": ["--config-name=ppo_megatron_trainer", f"{A}megatron.tensor_model_parallel_size=2"],
    "offset": ["@sync_offset=2"],
    "published": ["@as_published=1"],
    "old target": ["@target=0.4.1"],
    "unknown": ["data.train_bach_size=3", "+my.key=1"],
    "refused by hydra": ["data.nope=1", "trainer.none=2", "x=1"],
    "help": ["--help"],
    "cfg": ["--cfg", "job"],
    "file lists": ["data.train_files=[/a.parquet,/b.parquet]", "data.val_files=null", "data.shuffle=False", "data.seed=7"],
    "tools": [f"{RO}multi_turn.enable=True", f"{RO}mode=async", f"{RO}agent.num_workers=4"],
    "own reward": ["custom_reward_function.path=/r.py", "custom_reward_function.name=f"],
    "reward model": ["reward_model.enable=True", "reward_model.model.path=/rm"],
    **{f"verl {version}": [f"@verl_version={version}"] for version in ("0.2.0", "0.3.0", "0.4.1", "0.5.0", "0.6.1", "0.7.0")},
}  # fmt: skip


def said(given):
    """Every line of what a translation says."""
    options = dict(word[1:].split("=") for word in given if word.startswith("@"))
    for name in {"rollout_gpus", "sync_offset", "as_published"} & options.keys():
        options[name] = int(options[name])
    arguments = [word for word in given if not word.startswith("@")]
    try:
        translation, text = translate_launch(launch_of([*BASICS, *arguments]), TranslateOptions(**options))
    except UserError as error:
        return ["refused: " + line for line in f"{error}\n{error.hint}".splitlines()]
    findings = [
        f"{f.code} {f.status.value} {f.key}={f.value!r} ({f.where}) -> {f.target}={f.target_value!r}: {f.reason}"
        for f in translation.findings
    ]
    cautions = [f"{c.code} {c.message} ({c.where}); {c.hint}" for c in translation.warnings]
    facts = [f"fact {name}: {value!r}" for name, value in translation.facts.items()]
    return [*text.splitlines(), *findings, *cautions, *facts]


@pytest.fixture(scope="module")
def plain():
    return said([])


def test_the_plain_launch_as_recorded(plain):
    assert_recorded(RECORDED / "plain.txt", "\n".join(plain) + "\n")


CASES = {case.id: case.values[0] for case in read_cases()} | MORE


@pytest.mark.parametrize("name", CASES)
def test_what_differs_as_recorded(name, plain):
    found = said(CASES[name])
    gone, new = Counter(plain) - Counter(found), Counter(found) - Counter(plain)
    lines = (
        found
        if found[0].startswith("refused: ")
        else [f"- {line}" for line in gone] + [f"+ {line}" for line in new]
    )
    file = "".join(char if char.isalnum() else "-" for char in name)
    assert_recorded(RECORDED / f"{file}.txt", "\n".join([" ".join(CASES[name]), *lines]) + "\n")
