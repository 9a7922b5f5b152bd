"""The advantages of both adapters on the same stored groups, without workers: veRL's own code in each."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from trinity_compat.buffer.model import DROPPED, Experience, Group
from trinity_compat.job.answer_info import OF_RUN

pytestmark = pytest.mark.verl

N, TASKS = 4, 3
# Lengths of answers, over and over.
LENGTHS = (3, 5, 2)
KEYS = {"gdpo_reward_keys": ["format", "right"], "gdpo_reward_weights": [1.0, 2.0]}
ESTIMATORS = {
    "grpo": {},
    "remax": {},
    "gdpo": KEYS,
    "optimal_token_baseline": {},
    "tir_optimal_token_baseline": {},
    "rloo": {},
    "reinforce_plus_plus": {},
    "trinity_grpo": {},
    "trinity_clipb": {"trinity_args": {"mu": 0.5}},
    "trinity_opmd": {},
}


def groups(*, baseline, dropped):
    rng = np.random.default_rng(3)

    def answer(task, run):
        length = LENGTHS[(task + run) % len(LENGTHS)]
        return Experience(
            run=run,
            prompt_ids=np.arange(1, 3 + task, dtype=np.int32),
            response_ids=np.arange(20, 20 + length, dtype=np.int32),
            response_mask=np.array([1] * (length - 1) + [task != 1], np.uint8),
            logprobs=-rng.random(length).astype(np.float32),
            reward=float(rng.random()),
            min_model_version=0,
            max_model_version=0,
            info={"format": float(rng.random()), "right": float(rng.random())},
            metrics={DROPPED: 1.0} if dropped and (task, run) == (0, 1) else {},
        )

    every = N + baseline
    made = [tuple(answer(task, run) for run in range(every)) for task in range(TASKS)]
    return [Group(f"h1/{task}", task, {}, 1, answers) for task, answers in enumerate(made)]


def of_model(answers):
    """The actor's columns for each answer: float [N, T], zero behind its end."""
    rng = torch.Generator().manual_seed(5)
    width = max(map(len, (each.response_ids for each in answers)))
    made = {name: torch.rand(len(answers), width, generator=rng) for name in ("old", "squares", "entropy")}
    made["old"] = -made["old"]
    for row, each in enumerate(answers):
        for values in made.values():
            values[row, len(each.response_ids) :] = 0.0
    return made


def config_of(estimator, more):
    algorithm = {"adv_estimator": estimator, "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False, **more}
    rollout = {"n": N}
    actor = {"calculate_sum_pi_squared": "optimal" in estimator}
    sections = {"rollout": rollout, "actor": actor}
    return OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": sections})


def of_workflow(stored):
    """The groups as of a workflow, whose first task had a run of two rows, one of another task's."""
    out = []
    for task, group in enumerate(stored):
        runs = [{"run": run, "row": 0} for run in range(N)] + [{"run": 0, "row": 1, "task": "other"}]
        answers = [*group.experiences, group.experiences[0]][: len(runs) if task == 0 else N]
        marked = [
            replace(each, info={**each.info, OF_RUN: run}) for each, run in zip(answers, runs, strict=False)
        ]
        out.append(replace(group, experiences=tuple(marked)))
    return out


def in_rows(stored):
    """The rows of a step as v0's adapter has them, group by group."""
    from trinity_compat.trainer.pad_groups import is_uneven, pad_to_equal

    if is_uneven(stored):
        return pad_to_equal(stored, N)[0]
    return [each for group in stored for each in group.experiences[:N]]


def by_v0(config, stored):
    """Advantages and masks [N, T] of v0's adapter, answers in the order of their groups."""
    from verl.trainer.ppo import ray_trainer

    from trinity_compat.trainer.algorithms import ENTROPY, with_advantages
    from trinity_compat.trainer.batch import BatchShape, to_dataproto
    from trinity_compat.trainer.pad_groups import without_dropped_rows

    algorithm, answers = config.algorithm, in_rows(stored)
    n = len(answers) // TASKS
    model = of_model(answers)
    batch = to_dataproto(answers, BatchShape(8, model["old"].shape[1], 0))
    batch.non_tensor_batch["uid"] = np.repeat([f"t{task}" for task in range(TASKS)], n).astype(object)
    batch.batch["token_level_rewards"] = batch.batch["rm_scores"]
    batch.batch["old_log_probs"], batch.batch["sum_pi_squared"] = model["old"], model["squares"]
    batch.batch[ENTROPY] = model["entropy"]
    if algorithm.adv_estimator == "remax":
        greedy = [group.experiences[N].reward for group in stored]
        batch.batch["reward_baselines"] = torch.tensor(greedy).repeat_interleave(N)
    made = without_dropped_rows(ray_trainer.compute_advantage)(
        batch, adv_estimator=algorithm.adv_estimator, num_repeat=N, config=algorithm
    )
    made, metrics = with_advantages(made, algorithm)
    return made.batch["advantages"], made.batch["response_mask"], metrics


class Queue:
    """TransferQueue in a dictionary: rows by key."""

    def __init__(self):
        self.rows = {}

    def get(self, *, keys, partition_id, select_fields):
        from tensordict import NonTensorStack, TensorDict

        found = {}
        for name in select_fields:
            values = [self.rows[key][name] for key in keys if name in self.rows[key]]
            if len(values) == len(keys):
                tensors = isinstance(values[0], torch.Tensor)
                found[name] = (
                    torch.nested.as_nested_tensor(values, layout=torch.jagged)
                    if tensors
                    else NonTensorStack(*values)
                )
        return TensorDict(found, batch_size=len(keys))

    def put(self, *, keys, partition_id, fields):
        from transfer_queue import KVBatchMeta

        for name in fields.keys():  # noqa: SIM118 (a TensorDict iterates over rows)
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value
        return KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=[{} for _ in keys])


def by_v1(config, stored, monkeypatch, order):
    """Advantages and masks by row of v1's adapter; ``order``: in which veRL's balancing puts the rows."""
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import trainer_base

    from trinity_compat.trainer.batch import BatchShape
    from trinity_compat.trainer.multi_modal import MultiModal
    from trinity_compat.trainer.verl_v1 import adapter

    queue = Queue()

    def store(rows, partition):
        queue.rows |= {row.key: dict(row.fields) for row in rows}
        return KVBatchMeta(partition_id=partition, keys=[row.key for row in rows], tags=[{} for _ in rows])

    monkeypatch.setattr(adapter.queue, "put", store)
    for where in (trainer_base.tq, adapter):
        monkeypatch.setattr(where, "kv_batch_get", queue.get)
        monkeypatch.setattr(where, "kv_batch_put", queue.put)
    trainer = object.__new__(adapter.TrinityPPOTrainer)
    trainer.config, trainer.runs, trainer.global_steps = config, N, 1
    trainer.shape, trainer.multi_modal = BatchShape(8, 8, 0), MultiModal.none()
    trainer.exchange = SimpleNamespace(claim=lambda step: SimpleNamespace(groups=stored))
    batch, _ = adapter.StoredGroups(trainer).sample(1, "train", TASKS)
    in_order = list(batch.keys)
    answers = in_rows(stored)
    model = of_model(answers)
    for row, (key, each) in enumerate(zip(in_order, answers, strict=True)):
        length, prompt = len(each.response_ids), len(each.prompt_ids)
        columns = queue.rows[key]
        columns["old_log_probs"] = model["old"][row, :length]
        columns["entropy"] = model["entropy"][row, :length]
        squares = torch.zeros(prompt + length)  # a model gives a token's value at the one before it
        squares[prompt - 1 : -1] = model["squares"][row, :length]
        columns["sum_pi_squared"] = squares
    batch.reorder(order)
    metrics = {}
    trainer._compute_advantage(batch, metrics)
    made = [queue.rows[key] for key in in_order]
    assert all(torch.equal(row["loss_mask"], row["response_mask"]) for row in made)
    return [row["advantages"] for row in made], [row["response_mask"] for row in made], metrics


@pytest.mark.parametrize("rows", ["all", "one is dropped", "of a workflow"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_v1_hands_an_estimator_what_v0_does(estimator, rows, monkeypatch):
    config = config_of(estimator, ESTIMATORS[estimator])
    is_workflow = rows == "of a workflow" and estimator != "remax"  # whose greedy answer a workflow lacks
    stored = groups(baseline=estimator == "remax", dropped=rows == "one is dropped")
    stored = of_workflow(stored) if is_workflow else stored
    expected, masks, metrics = by_v0(config, stored)
    order = torch.randperm(len(in_rows(stored)), generator=torch.Generator().manual_seed(1)).tolist()
    made, own_masks, own = by_v1(config, stored, monkeypatch, order)
    assert expected.abs().sum() > 0
    assert (config.actor_rollout_ref.rollout.n > N) == is_workflow
    for row, (advantages, mask) in enumerate(zip(made, own_masks, strict=True)):
        length = len(mask)
        assert torch.equal(mask, masks[row, :length]), row
        assert torch.allclose(advantages, expected[row, :length], rtol=1e-5, atol=1e-6), row
    assert own == pytest.approx(metrics)
