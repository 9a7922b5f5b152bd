"""What a YAML's functions compute here is what trinity-rft 0.6.0 computes, to 1e-6, veRL's own functions
included.

``numbers.json`` holds the real ones; the way is a run's: YAML → veRL's keys → configuration → veRL's
registries.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from algorithm_batches import answers, in_turns, of_loss, tokens
from algorithm_cases import EXPERTS, STEP, answer_batch, cases
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.core_algos import get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils.config import omega_conf_to_dataclass

from trinity_compat.trainer.algorithms import COLUMNS, ENTROPY, aggregate, with_advantages
from trinity_compat.trinity.algorithms import FUNCTIONS
from trinity_compat.trinity.algorithms.model import PREFIX
from trinity_compat.trinity.algorithms.selection import verl_keys
from trinity_compat.verl_config.pinned import compose_pinned

HERE = Path(__file__).parent
NUMBERS = json.loads((HERE / "numbers.json").read_text())
ACTOR = {
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.actor.optim.total_training_steps": 1,
}


@cache
def configuration(given):
    """veRL's, of the ``algorithm`` section ``given`` as JSON."""
    return OmegaConf.create(compose_pinned({**verl_keys(json.loads(given)), **ACTOR}))


def configured(kind, name, arguments):
    """veRL's configuration of a YAML that chooses one function. A mode of the loss alone is said for all."""
    common = {"loss_agg_mode": arguments["loss_agg_mode"]} if "loss_agg_mode" in (arguments or {}) else {}
    if kind == "policy_loss_fn" and name == "gspo" and arguments is None:
        common = {
            "loss_agg_mode": "seq-mean-token-mean"
        }  # its default_args alone, as upstream's function has them
    of = name if name in ("mix", "mix_chord", "on_policy_distill", "jsd") else "grpo"
    given = {"algorithm_type": of, kind: name, **({f"{kind}_args": arguments} if arguments else {})}
    if kind == "policy_loss_fn":  # its aggregation alone: KL's may be another
        given["kl_loss_fn"] = "none"
    return configuration(json.dumps({**given, **common}))


def policy_loss(arguments, batch, name):
    config = omega_conf_to_dataclass(configured("policy_loss_fn", name, arguments).actor_rollout_ref.actor)
    of = tokens(batch)
    # As ppo_loss counts a mini-batch. One without a token is part of a larger one: alone, veRL divides by 0.
    counted = max(1, int(of["mask"].sum()))
    config.global_batch_info.update(dp_size=1, batch_num_tokens=counted, global_batch_size=len(of["mask"]))
    further = {
        "ref_log_prob": of["ref"],
        "expert_mask": torch.tensor(EXPERTS),
        "step": torch.full((len(EXPERTS),), STEP),
    }
    columns = FUNCTIONS["policy_loss_fn"][name].columns
    config.__dict__[COLUMNS] = {column: further[column] for column in columns}
    loss, _ = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=of["old"],
        log_prob=of["log_prob"],
        advantages=of["advantages"],
        response_mask=of["mask"],
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=None,
    )
    return loss, of


def kl_loss(arguments, batch, name):
    actor = configured("kl_loss_fn", name, arguments).actor_rollout_ref.actor
    of, ours = tokens(batch), actor.policy_loss.get(f"{PREFIX}kl")
    if not actor.use_kl_loss:
        return torch.tensor(0.0), of
    if ours:
        values = FUNCTIONS["kl_loss_fn"][ours].call(of["log_prob"], of["ref"], of["old"])
    else:
        values = kl_penalty(of["log_prob"], of["ref"], actor.kl_loss_type)
    return aggregate(values, of["mask"], actor.loss_agg_mode) * actor.kl_loss_coef, of


def advantages(arguments, batch, name):
    algorithm = configured("advantage_fn", name, arguments).algorithm
    tensors, tasks = answers(batch), np.array(answer_batch(batch)["tasks"])
    tensors["ref_log_prob"], tensors[ENTROPY] = tensors.pop("teacher_logprobs"), tensors.pop("entropys")
    info = [{} for _ in tasks]
    if name == "gigpo":
        tensors["response_mask"], info = in_turns(batch)
    told = {"uid": tasks, "reward_extra_info": np.array(info, dtype=object)}
    data = DataProto.from_dict(tensors=tensors, non_tensors=told)
    done = compute_advantage(
        data, algorithm.adv_estimator, gamma=algorithm.gamma, lam=algorithm.lam, config=algorithm
    )
    done, _ = with_advantages(done, algorithm)
    trained = done.batch["advantages"] * done.batch["response_mask"]
    return trained[tensors["response_mask"].bool()].tolist()


def close(ours, theirs):
    """To 1e-6 of the larger of 1 and the largest number of the case."""
    return np.allclose(ours, theirs, rtol=0, atol=1e-6 * max(1.0, *np.abs(theirs)))


@pytest.mark.parametrize(
    ("key", "kind", "name", "arguments", "batch"), [pytest.param(*case, id=case[0]) for case in cases()]
)
def test_the_numbers_are_trinitys(key, kind, name, arguments, batch):
    theirs = NUMBERS[key]
    if kind == "advantage_fn":
        assert close(advantages(arguments, batch, name), theirs)
        return
    make = policy_loss if kind == "policy_loss_fn" else kl_loss
    ours = of_loss(*make(arguments, batch, name))
    assert close([ours["loss"], *ours["gradient"]], [theirs["loss"], *theirs["gradient"]])
