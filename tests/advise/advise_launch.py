"""A launch of eight GPUs, and the command on it."""

import json

from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError

ARR = "actor_rollout_ref"
LAUNCH = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "/d/train.parquet",
    "data.val_files": "/d/val.parquet",
    "data.train_batch_size": 64,
    "data.max_prompt_length": 512,
    "data.max_response_length": 2048,
    f"{ARR}.model.path": "Qwen/Qwen2.5-7B-Instruct",
    f"{ARR}.actor.ppo_mini_batch_size": 32,
    f"{ARR}.actor.ppo_micro_batch_size_per_gpu": 4,
    f"{ARR}.rollout.name": "vllm",
    f"{ARR}.rollout.n": 4,
    f"{ARR}.rollout.tensor_model_parallel_size": 2,
    f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu": 4,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
}


def told(*words, code=0):
    done = CliRunner().invoke(cli, ["advise", *map(str, words)])
    if isinstance(done.exception, UserError):
        assert code == 2, done.exception
        return str(done.exception)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def advised(*words):
    return json.loads(told(*words, "--json"))


def by_name(found):
    return {mode["name"]: mode for mode in found["modes"]}
