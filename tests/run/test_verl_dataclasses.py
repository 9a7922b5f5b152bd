"""What a plan hands to veRL's trainer is what veRL 0.9.1's own dataclasses take, for each strategy."""

from copy import deepcopy
from pathlib import Path

import pytest
from omegaconf import open_dict

from trinity_compat.launch import read_argv
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.trainer.config import trainer_config
from trinity_compat.translate import TranslateOptions, translate_launch

pytestmark = pytest.mark.verl

GIVEN = (
    "data.train_files=/d/t.parquet",
    "data.val_files=/d/v.parquet",
    "data.train_batch_size=64",
    "actor_rollout_ref.model.path=org/m",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=4",
    "critic.ppo_micro_batch_size_per_gpu=2",
)
MEGATRON = ("--config-name=ppo_megatron_trainer.yaml",)
GAE = ("algorithm.adv_estimator=gae",)
GRPO = ("algorithm.adv_estimator=grpo",)
LONG = ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "critic.ulysses_sequence_parallel_size=2")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A critic's section loads its model's configuration and tokenizer."""
    from toys import made_toy

    from trinity_compat.run.toy import ToySpec

    return made_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=8, val_rows=2, warm_steps=1)) / "model"


def built(words, device, model):
    """veRL's objects of the models that the launch has, made as its trainer and its workers make them."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    (launch,) = read_argv(
        ["python3", "-m", "verl.trainer.main_ppo", *words, *GIVEN, f"critic.model.path={model}"]
    ).launches
    translation, _ = translate_launch(launch, TranslateOptions())
    plan = make_plan(translation.config, RunOptions(), cwd=Path("/work"), device=device)
    config = trainer_config(plan.spec)
    validate_config(config, need_reference_policy(config), need_critic(config))
    models = config.actor_rollout_ref
    sections = [models.actor, as_the_worker_has_it(models), models.rollout]
    sections += [config.critic] if need_critic(config) else []
    return [omega_conf_to_dataclass(section) for section in sections]


def as_the_worker_has_it(models):
    """The reference's section as engine_workers.init_model renames its keys."""
    ref = deepcopy(models.ref)
    with open_dict(ref):
        ref.ppo_mini_batch_size = models.actor.ppo_mini_batch_size
        ref.ppo_micro_batch_size = ref.pop("log_prob_micro_batch_size", None)
        ref.ppo_micro_batch_size_per_gpu = ref.pop("log_prob_micro_batch_size_per_gpu", None)
        ref.use_dynamic_bsz = ref.pop("log_prob_use_dynamic_bsz", False)
        ref.ppo_max_token_len_per_gpu = ref.pop("log_prob_max_token_len_per_gpu", None)
    return ref


@pytest.mark.parametrize("estimator", [GRPO, GAE], ids=["grpo", "gae"])
@pytest.mark.parametrize(
    ("words", "classes"),
    [
        ((), "FSDP"),
        (("actor_rollout_ref.actor.strategy=fsdp2", "critic.strategy=fsdp2"), "FSDP"),
        (MEGATRON, "Mcore"),
        (("model_engine=megatron",), "Mcore"),
        # a script of 0.4 to 0.8, where gradients were offloaded by themselves
        (
            (
                *MEGATRON,
                "actor_rollout_ref.actor.megatron.grad_offload=True",
                "critic.megatron.grad_offload=True",
            ),
            "Mcore",
        ),
        ((*MEGATRON, "actor_rollout_ref.actor.optim.clip_grad=0.5"), "Mcore"),
    ],
    ids=["fsdp", "fsdp2", "megatron", "model_engine", "grad_offload", "clip_grad"],
)
def test_every_section_becomes_its_dataclass_on_gpus(model, words, classes, estimator):
    actor, ref, rollout, *critic = built((*words, *estimator), "cuda", model)
    assert [type(made).__name__ for made in (actor, ref)] == [f"{classes}ActorConfig"] * 2
    assert [type(made).__name__ for made in critic] == [f"{classes}CriticConfig"] * (estimator is GAE)
    assert actor.optim.clip_grad == (0.5 if "clip_grad" in str(words) else 1.0)
    assert rollout.name == "vllm"


@pytest.mark.parametrize("estimator", [GRPO, GAE], ids=["grpo", "gae"])
def test_sequences_are_not_split_on_a_cpu_where_they_are_not_packed(model, estimator):
    """veRL refuses Ulysses without use_remove_padding, which the CPU's profile turns off."""
    actor, ref, _, *critic = built((*LONG, *estimator), "cpu", model)
    assert not any(made.fsdp_config.ulysses_sequence_parallel_size > 1 for made in (actor, ref))
    assert not any(made.fsdp.ulysses_sequence_parallel_size > 1 for made in critic)
