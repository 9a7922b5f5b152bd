"""The adapters of veRL's v0 and v1 trainer train the same on the same stored groups."""

from dataclasses import replace

import pytest
import torch
from test_replay import critic_of
from test_trainer_runs import learnt, toy_dir, train  # noqa: F401
from toy_job import PlainExplorer, job

pytestmark = [pytest.mark.runtime, pytest.mark.nightly]

# Without it v0 orders the rows of a step by their length, v1 does not: other rows share a mini-batch.
SAME_ORDER = "trainer.balance_batch=False"
ADAPTIVE_KL = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive")
ACCEPTED = "rollout_rs_threshold=0.05"  # of token_k2, half the square of the log-probability's error
# v1 compares lengths with the longest row, v0 with the limit, and it logs the balance of its one order.
LOGGED_OTHERWISE = ("prompt_length/clip_ratio", "response_length/clip_ratio")
LOGGED_OTHERWISE += ("response_length_non_aborted/clip_ratio", "global_seqlen/")
LOGGED_OTHERWISE += ("gdpo/", "variance_proxy/")  # by v0 alone


def store_groups(spec, steps, *, off_policy=0.0, top=None):
    """Answers for ``steps``, the same in each call.

    ``off_policy``: the spread of their log-probabilities' error. ``top``: a teacher's tokens for each token,
    0 for its numbers of these tokens alone.
    """
    explorer = PlainExplorer(spec)
    explorer.version = 0
    for step in range(1, steps + 1):
        rng = torch.Generator().manual_seed(step)
        places = range((step - 1) * explorer.batch, step * explorer.batch)
        groups = [explorer._group(n, explorer.train[n], step, rng, key=f"1-{n}") for n in places]
        moved = [_moved(group, rng, off_policy) for group in groups]
        explorer.buffer.put_groups(
            [_taught(group, rng, top) for group in moved] if top is not None else moved
        )
    explorer.buffer.beat("explorer", "recorded", state="done")


def _moved(group, rng, spread):
    def moved(one):
        noise = spread * torch.randn(len(one.logprobs), generator=rng).numpy()
        return replace(one, logprobs=one.logprobs + noise)

    return replace(group, experiences=tuple(map(moved, group.experiences)))


def _taught(group, rng, top):
    """The group with the numbers of a teacher who likes other tokens."""

    def taught(one):
        size = (len(one.response_ids), max(top, 1))
        ids = torch.stack([torch.randperm(60, generator=rng)[: size[1]] for _ in range(size[0])])
        log_probs = torch.log_softmax(torch.randn(size[0], 60, generator=rng), -1)[:, : size[1]]
        return replace(
            one,
            teacher_ids=ids.numpy().astype("int32") if top else None,
            teacher_logprobs=log_probs.numpy(),
        )

    return replace(group, experiences=tuple(map(taught, group.experiences)))


def trained_on_stored_groups(toy, folder, trainer, *options, steps=2, **given):
    """Store the same groups for each trainer, train on them; returns the metrics by step."""
    spec = job(toy, folder, f"trainer.total_training_steps={steps}", SAME_ORDER, *options, trainer=trainer)
    store_groups(spec, steps, **given)
    return train(folder)


def the_same_is_computed(v0, v1, steps):
    for step in range(1, steps + 1):
        computed = {k: v for k, v in learnt(v0[step]).items() if not k.startswith(LOGGED_OTHERWISE)}
        assert computed["actor/grad_norm"] > 0 and computed.keys() <= v1[step].keys()
        for name, value in computed.items():
            assert v1[step][name] == pytest.approx(value, rel=1e-5, abs=1e-6), f"{name} at step {step}"


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_both_trainers_compute_the_same(toy_dir, tmp_path, algorithm):  # noqa: F811
    options = ["actor_rollout_ref.actor.use_kl_loss=True"]
    if algorithm == "ppo":
        options = ["algorithm.adv_estimator=gae", *ADAPTIVE_KL]
        options += [f"critic.model.path={critic_of(toy_dir / 'model', tmp_path / 'critic')}"]
    v0, v1 = (trained_on_stored_groups(toy_dir, tmp_path / name, name, *options) for name in ("v0", "v1"))
    the_same_is_computed(v0, v1, 2)


LOSS = "distillation.distillation_loss"
DISTILLED = {
    "the top 16, supervised": ("forward_kl_topk", False, False),
    "k1 as a reward": ("k1", True, False),
    "k3 beside task rewards": ("k3", False, True),
}


@pytest.mark.parametrize("case", DISTILLED)
def test_both_trainers_distil_the_same(toy_dir, tmp_path, case):  # noqa: F811
    mode, as_reward, task_rewards = DISTILLED[case]
    teacher = "distillation.teacher_models.teacher_model"
    options = [
        "distillation.enabled=True",
        "distillation.n_gpus_per_node=1",
        "distillation.nnodes=1",
        f"{teacher}.model_path={toy_dir}/model",
        f"{teacher}.inference.tensor_model_parallel_size=1",
        f"{LOSS}.loss_mode={mode}",
        f"{LOSS}.topk=16",
        f"{LOSS}.use_policy_gradient={as_reward}",
        f"{LOSS}.use_task_rewards={task_rewards}",
    ]
    given = {"top": 16 if mode == "forward_kl_topk" else 0}
    v0, v1 = (
        trained_on_stored_groups(toy_dir, tmp_path / name, name, *options, **given) for name in ("v0", "v1")
    )
    assert v0[1]["actor/distillation/loss"] != 0
    the_same_is_computed(v0, v1, 2)


def test_after_rejection_v1_divides_by_the_rejected_tokens_too(toy_dir, tmp_path):  # noqa: F811
    options = [f"algorithm.rollout_correction.{word}" for word in ("rollout_rs=token_k2", ACCEPTED)]
    options += ["actor_rollout_ref.actor.ppo_mini_batch_size=8"]
    given = {"steps": 1, "off_policy": 0.5}
    v0, v1 = (
        trained_on_stored_groups(toy_dir, tmp_path / name, name, *options, **given)[1]
        for name in ("v0", "v1")
    )
    rejected = v0["rollout_corr/rollout_rs_masked_fraction"]
    assert 0.1 < rejected < 0.9 and v1["rollout_corr/rollout_rs_masked_fraction"] == rejected
    assert v0["actor/grad_norm"] > 0.1
    for name in ("actor/grad_norm", "actor/pg_loss"):
        assert v1[name] == pytest.approx((1 - rejected) * v0[name], rel=1e-4), name
    assert v1["critic/advantages/max"] == pytest.approx(v0["critic/advantages/max"])


def test_either_trainer_goes_on_from_the_other_s_checkpoint(toy_dir, tmp_path):  # noqa: F811
    """Three steps of v0, v1 and v0 in turn compute what v1 computes in one run."""
    options = ["trainer.save_freq=1", *ADAPTIVE_KL]
    whole = trained_on_stored_groups(toy_dir, tmp_path / "whole", "v1", *options, steps=3)
    folder = tmp_path / "turns"
    for step, trainer in enumerate(("v0", "v1", "v0"), 1):
        words = (f"trainer.total_training_steps={step}", SAME_ORDER, *options)
        spec = job(toy_dir, folder, *words, trainer=trainer)
        if step == 1:
            store_groups(spec, 3)
        turns = train(folder)
        assert sorted(turns) == list(range(1, step + 1))
    the_same_is_computed(turns, whole, 3)
    assert whole[3]["actor/reward_kl_penalty_coeff"] != whole[1]["actor/reward_kl_penalty_coeff"]
