#!/usr/bin/env bash
# PPO with a critic and a reward in a function of one's own.
set -euo pipefail
policy=deepseek-ai/deepseek-llm-7b-chat
critic=$policy
train_files="['$HOME/data/gsm8k/train.parquet', '$HOME/data/math/train.parquet']"
test_files="['$HOME/data/gsm8k/test.parquet', '$HOME/data/math/test.parquet']"

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    algorithm.gamma=1.0 \
    algorithm.lam=0.95 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_ctrl.kl_coef=0.001 \
    data.train_files="$train_files" \
    data.val_files="$test_files" \
    data.train_batch_size=512 \
    data.max_prompt_length=1024 \
    data.max_response_length=512 \
    data.return_raw_chat=True \
    actor_rollout_ref.model.path=$policy \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
    critic.optim.lr=1e-5 \
    critic.model.path=$critic \
    critic.model.use_remove_padding=True \
    critic.ppo_max_token_len_per_gpu=32768 \
    reward.custom_reward_function.path=rewards/exact_match.py \
    reward.custom_reward_function.name=score \
    trainer.critic_warmup=10 \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.total_epochs=3
