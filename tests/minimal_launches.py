"""Launches of unlike kinds, whose YAML is compared with the one of --minimal."""

_ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
_BASE = (
    "data.train_files=/data/gsm8k/train.parquet",
    "data.val_files=/data/gsm8k/test.parquet",
    "actor_rollout_ref.model.path=org/model",
    "trainer.n_gpus_per_node=8",
)
_GRPO = ("algorithm.adv_estimator=grpo", f"{_ROLLOUT}.n=8", f"{_ROLLOUT}.name=vllm")
_SIZES = (f"{_ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu=4")
LAUNCHES = {
    "grpo": (*_BASE, *_GRPO, *_SIZES),
    "grpo with KL": (
        *(
            *_BASE,
            *_GRPO,
            *_SIZES,
            f"{_ACTOR}.use_kl_loss=True",
            f"{_REF}.log_prob_micro_batch_size_per_gpu=4",
        ),
    ),
    "dynamic batches": (*_BASE, *_GRPO, f"{_ACTOR}.use_dynamic_bsz=True", f"{_ACTOR}.optim.lr=1e-5"),
    "dapo": (
        *(*_BASE, *_GRPO, *_SIZES, "algorithm.filter_groups.enable=True", "data.gen_batch_size=2048"),
        *(f"{_ACTOR}.clip_ratio_high=0.28", "algorithm.filter_groups.metric=acc"),
    ),
    "gae": (*_BASE, *_SIZES, "critic.ppo_micro_batch_size_per_gpu=4", "critic.optim.lr=1e-5"),
    "one GPU": (
        *(
            *_BASE[:3],
            *_GRPO,
            *_SIZES,
            "trainer.n_gpus_per_node=1",
            f"{_ROLLOUT}.tensor_model_parallel_size=1",
        ),
    ),
    "LoRA": (*_BASE, *_GRPO, *_SIZES, "actor_rollout_ref.model.lora_rank=16"),
    "sampled evaluations": (
        *(*_BASE, *_GRPO, *_SIZES, "trainer.test_freq=5", "trainer.save_freq=10", "data.shuffle=False"),
        *(
            f"{_ROLLOUT}.val_kwargs.n=4",
            f"{_ROLLOUT}.val_kwargs.do_sample=True",
            f"{_ROLLOUT}.temperature=0.7",
        ),
    ),
    "offloads": (
        *_BASE,
        *_GRPO,
        *_SIZES,
        f"{_ACTOR}.fsdp_config.param_offload=True",
        f"{_ACTOR}.strategy=fsdp2",
    ),
}
