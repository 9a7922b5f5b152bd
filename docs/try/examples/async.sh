#!/usr/bin/env bash
# Fully asynchronous: rollouts on four nodes, training on two.
set -euo pipefail
NGPUS_PER_NODE=8
NNODES_ROLLOUT=4
NNODES_TRAIN=2
staleness_threshold=0.5
trigger_parameter_sync_step=4

python3 -m verl.experimental.fully_async_policy.fully_async_main \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/math/train.parquet \
    data.val_files=$HOME/data/math/test.parquet \
    data.train_batch_size=0 \
    data.gen_batch_size=1 \
    data.max_prompt_length=2048 \
    data.max_response_length=8192 \
    data.return_raw_chat=True \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \
    actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.mode=async \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    rollout.nnodes=$NNODES_ROLLOUT \
    rollout.n_gpus_per_node=$NGPUS_PER_NODE \
    rollout.total_rollout_steps=$((512 * 100)) \
    trainer.nnodes=$NNODES_TRAIN \
    trainer.n_gpus_per_node=$NGPUS_PER_NODE \
    async_training.staleness_threshold=$staleness_threshold \
    async_training.trigger_parameter_sync_step=$trigger_parameter_sync_step \
    async_training.require_batches=4 \
    async_training.partial_rollout=True
