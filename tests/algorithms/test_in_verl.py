"""What stands around a function of ours inside veRL: the KL term at its loss, the parts of a mini-batch."""

import math
from functools import partial

import pytest
import torch
from algorithm_batches import tokens
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from trinity_compat.algorithms import ALGORITHMS
from trinity_compat.algorithms.chosen import verl_keys
from trinity_compat.algorithms.model import AGGREGATIONS
from trinity_compat.trainer.algorithms import aggregate, loss_function
from trinity_compat.verl_config.pinned import compose_pinned

ACTOR = {
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.actor.optim.total_training_steps": 1,
}


def loss_of(section, batch="near"):
    """Loss, gradient and metrics of a worker's loss function for a YAML's ``algorithm`` section."""
    config = OmegaConf.create(compose_pinned({**verl_keys({"algorithm_type": "grpo", **section}), **ACTOR}))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    given = tokens(batch)
    mask, log_prob = given["mask"].long(), given["log_prob"]
    rows, length = mask.shape
    data = TensorDict(
        {
            "prompts": torch.zeros(rows, 2).long(),
            "responses": torch.zeros(rows, length).long(),
            "attention_mask": torch.cat([torch.ones(rows, 2).long(), mask], dim=1),
            "response_mask": mask,
            "old_log_probs": given["old"],
            "ref_log_prob": given["ref"],
            "advantages": given["advantages"],
        },
        batch_size=[rows],
    )
    tensordict_utils.assign_non_tensor(
        data, dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=rows, max_response_len=length
    )
    # As a model gives them: all sequences in one row, each place the log-probability of the token after it.
    flat = torch.cat(
        [
            torch.cat([log_prob.new_zeros(1), row[: int(count)], log_prob.new_zeros(1)])
            for row, count in zip(log_prob, mask.sum(-1), strict=True)
        ]
    )
    function = loss_function(partial(ppo_loss, config=actor), actor)
    loss, metrics = function(model_output={"log_probs": flat}, data=data)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return loss.item(), gradient, metrics


@pytest.mark.parametrize("name", [each.name for each in ALGORITHMS.values() if not each.lacks])
def test_every_algorithm_that_runs_has_a_finite_loss_in_verls_worker(name):
    loss, gradient, metrics = loss_of({"algorithm_type": name}, "far")
    assert math.isfinite(loss) and gradient.isfinite().all() and gradient.any()
    assert "actor/ppo_kl" in metrics and "actor/pg_loss" in metrics


def test_a_kl_term_of_ours_takes_the_place_of_verls():
    arguments = {"kl_coef": 0.5}
    verls = loss_of({"kl_loss_fn": "low_var_kl", "kl_loss_fn_args": arguments})
    ours = loss_of({"kl_loss_fn": "k3", "kl_loss_fn_args": arguments})
    without = loss_of({"kl_loss_fn": "none"})
    assert ours[0] == pytest.approx(verls[0], abs=1e-9) and ours[0] != pytest.approx(without[0], abs=1e-4)
    assert torch.allclose(ours[1], verls[1], atol=1e-9)
    values = [(metrics["kl_loss"].aggregate(), metrics["kl_coef"]) for _, _, metrics in (ours, verls)]
    assert values[0] == pytest.approx(values[1])


def test_a_correction_by_the_old_policy_reaches_the_loss():
    names = ("corrected_k3", "k3")
    losses = [loss_of({"kl_loss_fn": name, "kl_loss_fn_args": {"kl_coef": 0.5}}, "far")[0] for name in names]
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_the_parts_of_a_mini_batch_add_up_to_the_whole(mode):
    given = tokens("far")
    values, mask = given["log_prob"], given["mask"]
    whole = {"batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}
    parts = [aggregate(values[i : i + 2], mask[i : i + 2], mode, **whole) for i in (0, 2)]
    assert sum(parts).item() == pytest.approx(aggregate(values, mask, mode).item(), abs=1e-12)


def test_what_masked_places_hold_counts_for_nothing():
    values = torch.tensor([[1.0, float("nan")], [float("inf"), 3.0]])
    mask = torch.tensor([[True, False], [False, True]])
    assert [aggregate(values, mask, mode).item() for mode in AGGREGATIONS] == [2, 4, 2, 2, 2]
