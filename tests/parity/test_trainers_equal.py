"""The adapters of veRL's v0 and v1 trainer train the same on the same stored groups."""

import pytest
import torch
from test_replay import critic_of
from test_trainer_runs import learnt, toy_dir, train  # noqa: F401
from toy_job import PlainExplorer, job

pytestmark = [pytest.mark.runtime, pytest.mark.nightly]

# Without it v0 orders the rows of a step by their length, v1 does not: other rows share a mini-batch.
SAME_ORDER = "trainer.balance_batch=False"
STEPS = 2
# v1 compares lengths with the longest row, v0 with the limit, and it logs the balance of its one order.
LOGGED_OTHERWISE = ("prompt_length/clip_ratio", "response_length/clip_ratio")
LOGGED_OTHERWISE += ("response_length_non_aborted/clip_ratio", "global_seqlen/")


def trained_on_stored_groups(toy, folder, trainer, *options):
    """Store the same groups for each trainer, train on them; returns the metrics by step."""
    spec = job(toy, folder, f"trainer.total_training_steps={STEPS}", SAME_ORDER, *options, trainer=trainer)
    explorer = PlainExplorer(spec)
    explorer.version = 0
    for step in range(1, STEPS + 1):
        rng = torch.Generator().manual_seed(step)
        places = range((step - 1) * explorer.batch, step * explorer.batch)
        explorer.buffer.put_groups(
            [explorer._group(n, explorer.train[n], step, rng, key=f"1-{n}") for n in places]
        )
    explorer.buffer.beat("explorer", "recorded", state="done")
    return train(folder)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_both_trainers_compute_the_same(toy_dir, tmp_path, algorithm):  # noqa: F811
    options = ["actor_rollout_ref.actor.use_kl_loss=True"]
    if algorithm == "ppo":
        options = ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=True"]
        options += ["algorithm.kl_ctrl.type=adaptive"]
        options += [f"critic.model.path={critic_of(toy_dir / 'model', tmp_path / 'critic')}"]
    v0, v1 = (trained_on_stored_groups(toy_dir, tmp_path / name, name, *options) for name in ("v0", "v1"))
    for step in range(1, STEPS + 1):
        computed = {k: v for k, v in learnt(v0[step]).items() if not k.startswith(LOGGED_OTHERWISE)}
        assert computed["actor/grad_norm"] > 0 and computed.keys() <= v1[step].keys()
        for name, value in computed.items():
            assert v1[step][name] == pytest.approx(value, rel=1e-5, abs=1e-6), f"{name} at step {step}"
