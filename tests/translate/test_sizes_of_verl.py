"""The size rules against veRL's own: random sizes are refused by both, or by neither."""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace

import pytest
from hydra.errors import InstantiationException
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.verl_config.pinned import pinned_tree

from .helpers import launch_of

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model"))
SP = f"{ACTOR}.ulysses_sequence_parallel_size"
FEW = st.sampled_from([1, 1, 2, 2, 3, 4, 8])
MANY = st.sampled_from([8, 12, 16, 24, 32, 48, 64])
OLD = st.sampled_from([*[None] * 12, 4, 8])  # the spelling for all GPUs
EACH = st.sampled_from([None, 1, 1, 2, 2, 3, 4, 8])
SIZES = {
    "algorithm.adv_estimator": st.sampled_from(["grpo", "grpo", "gae"]),
    "data.train_batch_size": MANY,
    f"{ACTOR}.ppo_mini_batch_size": MANY,
    f"{ACTOR}.ppo_micro_batch_size": OLD,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": EACH,
    f"{ACTOR}.use_dynamic_bsz": st.booleans(),
    f"{ACTOR}.use_kl_loss": st.booleans(),
    SP: st.sampled_from([1, 1, 1, 2, 4]),
    f"{MODEL}.use_remove_padding": st.sampled_from([True, True, False]),
    f"{ROLLOUT}.n": FEW,
    f"{ROLLOUT}.log_prob_micro_batch_size": OLD,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": EACH,
    f"{REF}.log_prob_micro_batch_size": OLD,
    f"{REF}.log_prob_micro_batch_size_per_gpu": EACH,
    "critic.ppo_micro_batch_size": OLD,
    "critic.ppo_micro_batch_size_per_gpu": EACH,
    "trainer.nnodes": st.sampled_from([1, 1, 2, 3]),
    "trainer.n_gpus_per_node": FEW,
}
FIXED = {
    "data.train_files": "/d/a.parquet",
    "data.val_files": "/d/b.parquet",
    f"{ROLLOUT}.name": "vllm",
    "trainer.use_v1": False,  # v1 fills a step up to whole updates
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a model's configuration: the critic's dataclass reads it."""
    from trinity_compat.job.known_models import stand_in
    from trinity_compat.run.checks import models

    return str(models.write(stand_in("Qwen2.5-0.5B"), tmp_path_factory.mktemp("model")))


def refused_here(sizes) -> str:
    """Our reason, "" without one."""
    words = [f"{key}={'null' if value is None else value}" for key, value in {**FIXED, **sizes}.items()]
    try:
        found, _ = translate_launch(launch_of([*words, f"{MODEL}.path=org/m"]), TranslateOptions())
    except UserError as error:
        return error.message
    return "; ".join(each.message for each in found.warnings if each.code in ("TW024", "TW029"))


def refused_by_verl(sizes, model) -> str:
    """The reason of veRL's start, then of its first update, "" without one."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    tree = pinned_tree("ppo_trainer")
    paths = {f"{MODEL}.path": model, "critic.model.path": model}
    for key, value in {**FIXED, **sizes, **paths}.items():
        put(tree, key, value)
    config = OmegaConf.create(tree)
    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
        update(config)
    except (AssertionError, ValueError, TypeError, InstantiationException) as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Reached(Exception):
    """The engine would compute now."""


def rows_of(number, **given):
    """Rows with veRL's own settings beside them."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    rows = TensorDict({"x": torch.zeros(number)}, batch_size=[number])
    tensordict_utils.assign_non_tensor(rows, **given)
    return rows


def update(config) -> None:
    """A step of the workers, up to what their engines compute."""
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.workers.engine_workers import TrainingWorker

    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    ranks, rest = divmod(gpus, actor.ulysses_sequence_parallel_size)
    assert not rest and ranks, "the device mesh"

    def reached(**_):
        raise Reached

    engine = SimpleNamespace(
        get_data_parallel_size=lambda: ranks, get_data_parallel_rank=lambda: 0, train_mode=reached
    )
    mini = actor.ppo_mini_batch_size * n
    share, rest = divmod(config.data.train_batch_size * n, ranks)
    assume(not rest)  # else the workers' dispatch is asked, not they
    worker, whole = SimpleNamespace(engine=engine), rows_of(share, mini_batch_size=mini)
    with contextlib.suppress(Reached):
        inspect.unwrap(TrainingWorker.train_mini_batch)(worker, whole)
    if actor.use_dynamic_bsz:
        return
    assert actor.ppo_micro_batch_size_per_gpu is not None  # of ActorRolloutRefWorker.init_model
    compute(mini // ranks, actor.ppo_micro_batch_size_per_gpu)
    compute(share, config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu)
    if need_reference_policy(config):
        compute(share, config.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu)


def compute(rows, size) -> None:
    from verl.workers.engine.utils import prepare_micro_batches

    prepare_micro_batches(rows_of(rows, use_dynamic_bsz=False, micro_batch_size_per_gpu=size))


FIT = dict.fromkeys(SIZES) | {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 32,
    f"{ACTOR}.ppo_mini_batch_size": 16,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2,
    f"{ACTOR}.use_dynamic_bsz": False,
    f"{ACTOR}.use_kl_loss": True,
    SP: 1,
    f"{MODEL}.use_remove_padding": True,
    f"{ROLLOUT}.n": 2,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 4,
    f"{REF}.log_prob_micro_batch_size_per_gpu": 4,
    "critic.ppo_micro_batch_size_per_gpu": 2,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
}
BROKEN = [
    {f"{ACTOR}.ppo_mini_batch_size": 64},
    {f"{ACTOR}.ppo_mini_batch_size": 64, f"{ACTOR}.use_dynamic_bsz": True},
    {f"{ACTOR}.ppo_mini_batch_size": 24, f"{ACTOR}.use_dynamic_bsz": True},
    {f"{ACTOR}.ppo_mini_batch_size": 4, "trainer.nnodes": 2},
    {f"{ACTOR}.ppo_micro_batch_size": 16},
    {f"{ACTOR}.ppo_micro_batch_size": 16, f"{ACTOR}.ppo_micro_batch_size_per_gpu": None},
    {f"{ROLLOUT}.log_prob_micro_batch_size": 16, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": None},
    {f"{REF}.log_prob_micro_batch_size": 16, f"{REF}.log_prob_micro_batch_size_per_gpu": None},
    {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3},
    {f"{ROLLOUT}.log_prob_micro_batch_size": 8},
    {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 3},
    {f"{REF}.log_prob_micro_batch_size_per_gpu": 3},
    {SP: 2, f"{MODEL}.use_remove_padding": False},
    {SP: 3, "trainer.n_gpus_per_node": 4},
    {"trainer.nnodes": 3},
]


def test_sizes_that_fit_are_refused_by_neither(model):
    assert (refused_here(FIT), refused_by_verl(FIT, model)) == ("", "")


@pytest.mark.parametrize("changed", BROKEN)
def test_sizes_that_break_one_rule_are_refused_by_both(model, changed):
    assert refused_here(FIT | changed) and refused_by_verl(FIT | changed, model)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(sizes=st.fixed_dictionaries(SIZES))
def test_random_sizes_are_refused_by_both_or_by_neither(model, sizes):
    ours, verls = refused_here(sizes), refused_by_verl(sizes, model)
    note(f"ours: {ours}\nveRL's: {verls}")
    assert bool(ours) == bool(verls)
