set -x
export VLLM_USE_V1=1 WANDB_API_KEY=abc
MODEL=${MODEL:-$HOME/models/Qwen2.5-7B}
n_gpus=8
batch=$((n_gpus * 128))
for f in train test; do
  eval "${f}_path=$HOME/data/gsm8k/$f.parquet"
done
if [ "$1" = ppo ]; then estimator=gae; else estimator=grpo; fi
ARGS=(actor_rollout_ref.rollout.n=5 trainer.logger="['console','wandb']")
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=$estimator \
    data.train_files="['$train_path']" data.val_files=$test_path \
    data.train_batch_size=$batch data.max_prompt_length=512 data.max_response_length=1024 \
    data.filter_overlong_prompts=True data.truncation='error' \
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=32 \
    algorithm.use_kl_in_reward=False trainer.n_gpus_per_node=$n_gpus trainer.nnodes=1 \
    trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15 "${ARGS[@]}" "$@" 2>&1 | tee run.log
