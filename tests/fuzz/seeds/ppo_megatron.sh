#!/usr/bin/env bash
source "$(dirname "$0")/env.sh" 2>/dev/null || true
common() {
  local extra=${1:-}
  cat <<END
trainer.project_name=verl_example
trainer.experiment_name=${extra:+$extra-}run
END
}
mapfile -t NAMES < <(common "$USER")
case "$(uname)" in Linux) device=cuda ;; *) device=npu ;; esac
ray job submit --address="${RAY:-http://127.0.0.1:8265}" -- python3 -m verl.trainer.main_ppo \
    --config-path=config --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=gae algorithm.lam=0.95 data.train_batch_size=512 \
    data.train_files=$HOME/a.parquet data.val_files=$HOME/b.parquet \
    actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.name=vllm critic.optim.lr=1e-5 critic.model.path=deepseek-ai/x \
    critic.ppo_micro_batch_size_per_gpu=4 reward_model.reward_manager=prime \
    trainer.device=$device trainer.n_gpus_per_node=8 ${NAMES[@]}
