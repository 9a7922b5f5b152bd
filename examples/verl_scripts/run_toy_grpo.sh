#!/usr/bin/env bash
# GRPO on the toy task: sort four digits. Make model and data first:
#   trinity-compat toy "${TOY_DIR:-$PWD/toy}"
set -xeuo pipefail

TOY_DIR=${TOY_DIR:-$PWD/toy}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

train_prompts=${TRAIN_PROMPTS:-32}
mini_prompts=${MINI_PROMPTS:-16}
n_resp_per_prompt=8
max_prompt_length=48
max_response_length=8
micro_batch=$((mini_prompts * n_resp_per_prompt))

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    data.train_files="$TOY_DIR/data/train.parquet" \
    data.val_files="$TOY_DIR/data/val.parquet" \
    data.train_batch_size=$train_prompts \
    data.max_prompt_length=$max_prompt_length \
    data.max_response_length=$max_response_length \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    data.seed=1 \
    actor_rollout_ref.model.path="$TOY_DIR/model" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.optim.lr=3e-4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=$mini_prompts \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$micro_batch \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=$n_resp_per_prompt \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=$micro_batch \
    reward.custom_reward_function.path="$HERE/toy_reward.py" \
    reward.custom_reward_function.name=compute_score \
    trainer.logger='["console","tensorboard"]' \
    trainer.project_name=toy \
    trainer.experiment_name=grpo \
    trainer.n_gpus_per_node=1 \
    trainer.nnodes=1 \
    trainer.val_before_train=True \
    trainer.test_freq=20 \
    trainer.save_freq=20 \
    trainer.total_training_steps=60 \
    trainer.total_epochs=1 "$@"
