project=DAPO; overlong=$((1024 * 4)); RAY_DATA_HOME=${RAY_DATA_HOME:-"${HOME}/verl"}
python3 -m recipe.dapo.main_dapo data.train_files="${RAY_DATA_HOME}/data/dapo.parquet" \
  data.val_files="${RAY_DATA_HOME}/aime.parquet" data.prompt_key=prompt data.truncation='left' \
  data.gen_batch_size=1536 data.train_batch_size=512 actor_rollout_ref.rollout.n=16 \
  algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.clip_ratio_c=10.0 \
  actor_rollout_ref.model.path=m reward_model.reward_manager=dapo \
  reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=${overlong} \
  trainer.project_name="$project" trainer.default_local_dir="ckpts/$project" trainer.resume_mode=auto
python3 -m verl.trainer.fsdp_sft_trainer data.train_files=a.parquet optim.lr=1e-5
