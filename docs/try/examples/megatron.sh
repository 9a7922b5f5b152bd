#!/usr/bin/env bash
# GRPO under Megatron: tensor and pipeline parallel, two nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=4
PP=2
offload=True
NODES=2

common=(
    --config-path=config
    --config-name=ppo_megatron_trainer.yaml
    algorithm.adv_estimator=grpo
    data.train_files=$HOME/data/gsm8k/train.parquet
    data.val_files=$HOME/data/gsm8k/test.parquet
    data.train_batch_size=512
    data.max_prompt_length=1024
    data.max_response_length=2048
)
actor=(
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=128
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=$PP
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=4
    actor_rollout_ref.actor.megatron.param_offload=$offload
    actor_rollout_ref.actor.megatron.optimizer_offload=$offload
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.001
)
rollout=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.tensor_model_parallel_size=$TP
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=$TP
    actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=$PP
)
python3 -m verl.trainer.main_ppo "${common[@]}" "${actor[@]}" "${rollout[@]}" \
    trainer.nnodes=$NODES trainer.n_gpus_per_node=8 trainer.total_epochs=2 $@
