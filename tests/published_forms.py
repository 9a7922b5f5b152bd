"""The form's fields, filled in as a new user would, for the published guide's two worked examples."""

GRPO = {
    "model": "deepseek-ai/deepseek-llm-7b-chat",
    "answer_length": "512",
    "batch_size": "1024",
    "epochs": "15",
    "project": "verl_grpo_example_gsm8k",
    "name": "deepseek_llm_7b_function_rm_seq_packing",
    "mini_batch": "256",
    "tokens_per_gpu": "24000",
    "tensor_parallel": "2",
    "offload_reference": "on",
    "logger": "wandb",
}
PPO = {
    "model": "$HOME/models/Qwen2-7B-Instruct",
    "train_files": "$HOME/data/gsm8k/train.parquet\n$HOME/data/math/train.parquet",
    "val_files": "$HOME/data/gsm8k/test.parquet\n$HOME/data/math/test.parquet",
    "algorithm": "gae",
    "prompt_length": "1024",
    "answer_length": "512",
    "batch_size": "1024",
    "group_size": "1",
    "reward": "model",
    "reward_source": "$HOME/models/FsfairX-LLaMA3-RM-v0.1",
    "epochs": "15",
    "project": "verl_example",
    "name": "Qwen2-7B-Instruct_hybrid_rm",
    "mini_batch": "256",
    "kl": "none",
    "tokens_per_gpu": "",
    "micro_batch": "16",
    "logger": "wandb",
    "test_first": "",
    "settings": "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1\n"
    "critic.optim.lr_warmup_steps_ratio=0.05\n"
    "critic.ppo_micro_batch_size_per_gpu=32",
}
FORMS = {"grpo": GRPO, "ppo": PPO}
