"""The settings on which a stored answer depends, one row each.

The fingerprint, its test and its table in the documentation read them. A rule names settings by their last
names in one section, or all of a section (``*``). The nearest rule counts: a setting's own before that of a
section above it. A setting without a rule voids stored answers (``UNCLASSIFIED``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from trinity_compat.job.settings import SECTION as OURS
from trinity_compat.job.settings import SETTINGS

# How a setting counts: by its ``value``; as true or false (``flag``); by the content of the Python ``code``
# that it names, of a ``model`` or a ``tokenizer`` folder, of ``data`` files, of a ``config`` file;
# ``installed``: plugins of distributions, by version and files; ``baseline``: whether a greedy answer belongs
# to the group; ``tasksets``, ``workflows``, ``operators``, ``served``: sections of ours, by what their
# entries name; ``distillation``: that of an enabled section which decides the teachers' stored numbers.
Read = Literal[
    "value",
    "flag",
    "code",
    "model",
    "tokenizer",
    "data",
    "config",
    "baseline",
    "tasksets",
    "workflows",
    "operators",
    "served",
    "distillation",
    "installed",
]
WHOLE = ("tasksets", "workflows", "operators", "served", "distillation")


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings, and the ``part`` of the fingerprint to which they belong ("" where they do not void).

    ``names``: last names, separated by spaces, of settings in the section ``above``; ``*`` for all below it.
    """

    part: str
    above: str
    names: str
    why: str
    read: Read = "value"

    @property
    def keys(self) -> Iterator[str]:
        """Yield dotted keys; for ``*`` the section's own."""
        for name in self.names.split():
            yield self.above if name == "*" else f"{self.above}.{name}".lstrip(".")


MODEL, TOKENIZER, TEMPLATE = "model", "tokenizer", "chat template"
ADAPTER, DATA, ORDER, PROMPTS = "adapter", "training data", "order of tasks", "prompts"
SAMPLING, LENGTHS, ENGINE, AGENT = "sampling", "lengths", "engine", "agent loop and tools"
REWARD, MANAGER, REWARD_MODEL = "reward function", "reward manager", "reward model"
FILTER, PIPELINE, WORKFLOWS, PLUGINS = "group filter", "experience pipeline", "workflows", "plugin folders"
ENVIRONMENT, TEACHERS, PACKAGES = "environment of the explorer", "teachers", "plugins"
UNCLASSIFIED = Rule("other settings", "", "", "a setting that no row names may change an answer")

_M = "actor_rollout_ref.model"
_R = "actor_rollout_ref.rollout"
_RM = "reward.reward_model"
_SPEED = "speed, memory or placement: the same answers up to rounding"
_TRAINER = "how answers are trained on, not how they are made"
_LOGGING = "logs, profiles and checkpoints"
_VALIDATION = "validation: its answers are not trained on"
_CLASS = "veRL's class of the section"

RULES = (
    # -- model, tokenizer ---------------------------------------------------------------------------
    Rule(MODEL, _M, "path hf_config_path", "the policy; a local folder by its files", "model"),
    Rule(MODEL, f"{_M}.override_config", "*", "the model's configuration"),
    Rule(MODEL, _M, "trust_remote_code", "which code the model is"),
    Rule(MODEL, _M, "external_lib", "a module that registers models or agent loops", "code"),
    Rule(MODEL, _M, "_target_", _CLASS),
    Rule(ADAPTER, _M, "lora_rank lora_alpha target_modules exclude_modules target_parameters", "LoRA"),
    Rule(ADAPTER, _M, "lora_adapter_path", "an adapter's folder, by its files", "model"),
    Rule(ADAPTER, f"{_M}.lora", "*", "LoRA"),
    Rule(ADAPTER, f"{_M}.lora", "adapter_path", "an adapter's folder, by its files", "model"),
    Rule("", f"{_M}.lora", "merge", "how versions travel, not what they are"),
    Rule("", _M, "use_shm enable_gradient_checkpointing enable_activation_offload", _SPEED),
    Rule("", _M, "use_remove_padding use_liger use_fused_kernels", _SPEED),
    Rule("", f"{_M}.fused_kernel_options", "*", _SPEED),
    Rule("", f"{_M}.tiled_mlp", "*", _SPEED),
    Rule("", f"{_M}.mtp", "*", "drafts: the model accepts only what it would have said"),
    Rule(TOKENIZER, _M, "tokenizer_path", "a local folder by its files", "tokenizer"),
    Rule(TOKENIZER, "data", "tokenizer", "a local folder by its files", "tokenizer"),
    Rule(TOKENIZER, "data", "trust_remote_code", "which code the tokenizer is"),
    Rule(TEMPLATE, _M, "custom_chat_template", "how a prompt is written"),
    Rule(TEMPLATE, "data.apply_chat_template_kwargs", "*", "how a prompt is written"),
    # -- data ---------------------------------------------------------------------------------------
    Rule(DATA, "data", "train_files", "rows, by the files' content", "data"),
    Rule(DATA, "data", "train_max_samples custom_cls.name", "which rows there are"),
    Rule(DATA, "data", "custom_cls.path", "the dataset's class, by its code", "code"),
    Rule(DATA, "data", "tasksets", "tasksets of a YAML; those of training", "tasksets"),
    Rule(ORDER, "data", "shuffle seed train_batch_size", "which row a task's number means"),
    Rule(ORDER, "data", "dataloader_num_workers", "a loader with workers draws another order", "flag"),
    Rule(PROMPTS, "data", "prompt_key truncation filter_overlong_prompts", "what is asked"),
    Rule(PROMPTS, "data", "image_key video_key audio_key image_patch_size", "what is asked"),
    Rule(PROMPTS, "data.mm_processor_kwargs", "*", "what is asked"),
    Rule(PROMPTS, "data", "return_raw_input_ids return_raw_chat return_full_prompt", "fields of a task"),
    Rule(PROMPTS, "data", "return_multi_modal_inputs", "fields of a task"),
    Rule("", "data", "use_shm filter_overlong_prompts_workers", _SPEED),
    Rule("", "data", "val_files val_batch_size val_max_samples validation_shuffle", _VALIDATION),
    Rule("", "data.task_pipeline", "*", "it writes training files before a run; those count by content"),
    # -- how answers are made -----------------------------------------------------------------------
    Rule(SAMPLING, _R, "temperature top_k top_p do_sample n repetition_penalty ignore_eos", "the answers"),
    Rule(SAMPLING, _R, "seed full_determinism", "seeds decide which answers are drawn"),
    Rule(SAMPLING, "data", "taskset_sampling", "a taskset's own sampling; those of training", "tasksets"),
    Rule(SAMPLING, "algorithm", "adv_estimator", "remax alone has a greedy answer in each group", "baseline"),
    Rule(LENGTHS, "data", "max_prompt_length max_response_length min_response_length", "where they end"),
    Rule(LENGTHS, _R, "prompt_length response_length max_model_len", "where they end"),
    Rule(
        ENGINE, _R, "name mode dtype quantization load_format logprobs_mode limit_images", "what is computed"
    ),
    Rule(ENGINE, _R, "quantization_config_file", "what is computed; by the file's content", "config"),
    Rule(ENGINE, _R, "enable_rollout_routing_replay _target_", "what is stored beside the tokens"),
    Rule(ENGINE, f"{_R}.qat", "*", "what is computed"),
    Rule(ENGINE, f"{_R}.engine_kwargs.vllm", "*", "vLLM's own arguments: any of them may change answers"),
    Rule("", f"{_R}.engine_kwargs.sglang", "*", "the explorer runs vLLM"),
    Rule("", f"{_R}.engine_kwargs.trtllm", "*", "the explorer runs vLLM"),
    Rule("", _R, "nnodes n_gpus_per_node tensor_model_parallel_size data_parallel_size", _SPEED),
    Rule("", _R, "expert_parallel_size pipeline_model_parallel_size gpu_memory_utilization", _SPEED),
    Rule("", _R, "enforce_eager cudagraph_capture_sizes free_cache_engine multi_stage_wake_up", _SPEED),
    Rule("", _R, "max_num_batched_tokens max_num_seqs enable_chunked_prefill enable_prefix_caching", _SPEED),
    Rule("", _R, "scheduling_policy layered_summon skip_tokenizer_init over_sample_rate", _SPEED),
    Rule("", _R, "router_config_path moe_load_balance_metrics_interval checkpoint_manager_class", _SPEED),
    Rule("", _R, "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu", _TRAINER),
    Rule("", _R, "log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu calculate_log_probs", _TRAINER),
    Rule("", _R, "disable_log_stats", _LOGGING),
    Rule("", f"{_R}.mtp", "*", "drafts: the model accepts only what it would have said"),
    Rule("", f"{_R}.checkpoint_engine", "*", "how versions travel, not what they are"),
    Rule("", f"{_R}.disaggregation", "*", _SPEED),
    Rule("", f"{_R}.val_kwargs", "*", _VALIDATION),
    Rule("", f"{_R}.trace", "*", _LOGGING),
    Rule("", f"{_R}.profiler", "*", _LOGGING),
    Rule("", f"{_R}.prometheus", "*", _LOGGING),
    # -- agent loops, workflows ---------------------------------------------------------------------
    Rule(AGENT, f"{_R}.multi_turn", "_target_ enable max_assistant_turns max_user_turns", "the conversation"),
    Rule(AGENT, f"{_R}.multi_turn", "max_parallel_calls max_tool_response_length", "the conversation"),
    Rule(
        AGENT,
        f"{_R}.multi_turn",
        "tool_response_truncate_side format num_repeat_rollouts",
        "the conversation",
    ),
    Rule(AGENT, f"{_R}.multi_turn", "use_inference_chat_template", "the conversation"),
    Rule(AGENT, f"{_R}.multi_turn", "tokenization_sanity_check_mode", "the conversation"),
    Rule(AGENT, f"{_R}.multi_turn", "tool_config_path", "tools, by the file and their code", "config"),
    Rule(AGENT, f"{_R}.multi_turn", "interaction_config_path", "users, by the file and their code", "config"),
    Rule(AGENT, f"{_R}.multi_turn", "function_tool_path", "tools, by their code", "code"),
    Rule(AGENT, "data", "tool_config_path", "tools, by the file and their code", "config"),
    Rule(AGENT, "data", "function_tool_path", "tools, by their code", "code"),
    Rule(AGENT, f"{_R}.agent", "_target_ default_agent_loop custom_async_server._target_", "the loop"),
    Rule(AGENT, f"{_R}.agent", "custom_async_server.path custom_async_server.name", "who answers the loop"),
    Rule(AGENT, f"{_R}.agent", "agent_loop_config_path", "loops, by the file and their code", "config"),
    Rule("", f"{_R}.agent", "num_workers", _SPEED),
    Rule(WORKFLOWS, "data", "workflows", "a YAML's workflows, rewards and programs", "workflows"),
    Rule(PLUGINS, "trinity_compat", "plugin_dirs", "`--plugin-dir`: workflows, rewards, operators", "code"),
    Rule(
        PACKAGES, "trinity_compat", "plugins", "workflows, rewards, operators of distributions", "installed"
    ),
    Rule(ENVIRONMENT, "explorer.env_vars", "*", "users' code and vLLM read it; secrets by their name alone"),
    Rule("", "explorer.env_vars", "PYTHONPATH TRINITY_PLUGIN_DIRS", "what is found there counts by content"),
    # -- rewards ------------------------------------------------------------------------------------
    Rule(REWARD, "reward.custom_reward_function", "path", "its file, and modules beside it", "code"),
    Rule(REWARD, "reward.custom_reward_function", "name", "which function"),
    Rule(REWARD, "reward.custom_reward_function.reward_kwargs", "*", "its arguments"),
    Rule(REWARD, "reward.reward_kwargs", "*", "the manager's arguments"),
    Rule(REWARD, "reward", "_target_ sandbox_fusion._target_ sandbox_fusion.url", "who scores"),
    Rule(REWARD, "reward", "sandbox_fusion.memory_limit_mb", "when an answer gets 0"),
    Rule(REWARD, "data", "reward_fn_key", "which score a row gets"),
    Rule(MANAGER, "reward.reward_manager", "_target_ source name module._target_ module.name", "who scores"),
    Rule(MANAGER, "reward.reward_manager", "module.path", "its file, and modules beside it", "code"),
    Rule(REWARD_MODEL, _RM, "_target_ enable", "who scores"),
    Rule(REWARD_MODEL, _RM, "model_path", "a local folder by its files", "model"),
    Rule(REWARD_MODEL, f"{_RM}.rollout", "_target_ name dtype max_model_len prompt_length", "its scores"),
    Rule(REWARD_MODEL, f"{_RM}.rollout", "response_length temperature top_k top_p do_sample n", "its scores"),
    Rule(REWARD_MODEL, f"{_RM}.rollout", "seed full_determinism ignore_eos quantization", "its scores"),
    Rule(REWARD_MODEL, f"{_RM}.rollout", "load_format skip_tokenizer_init limit_images", "its scores"),
    Rule(REWARD_MODEL, f"{_RM}.rollout", "quantization_config_file", "its scores; by the file", "config"),
    Rule(REWARD_MODEL, f"{_RM}.rollout.engine_kwargs", "*", "vLLM's own arguments"),
    Rule(REWARD_MODEL, "data", "auxiliary_models", "models beside the policy, by their files", "served"),
    Rule("", f"{_RM}.rollout", "gpu_memory_utilization enforce_eager cudagraph_capture_sizes", _SPEED),
    Rule("", f"{_RM}.rollout", "free_cache_engine data_parallel_size expert_parallel_size", _SPEED),
    Rule("", f"{_RM}.rollout", "tensor_model_parallel_size pipeline_model_parallel_size", _SPEED),
    Rule(
        "", f"{_RM}.rollout", "max_num_batched_tokens max_num_seqs layered_summon scheduling_policy", _SPEED
    ),
    Rule(
        "", f"{_RM}.rollout", "multi_stage_wake_up enable_chunked_prefill enable_prefix_caching mtp", _SPEED
    ),
    Rule("", f"{_RM}.rollout", "disable_log_stats", _LOGGING),
    Rule("", f"{_RM}.rollout.disaggregation", "*", _SPEED),
    Rule("", _RM, "enable_resource_pool n_gpus_per_node nnodes", _SPEED),
    Rule("", "reward", "num_workers sandbox_fusion.max_concurrent", _SPEED),
    Rule("", "custom_reward_function", "*", "an older spelling: `reward.*` has what it said"),
    Rule("", "reward_model", "*", "an older spelling: `reward.*` has what it said"),
    Rule("", "sandbox_fusion", "*", "an older spelling: `reward.*` has what it said"),
    # -- which groups are kept ----------------------------------------------------------------------
    Rule(FILTER, "algorithm.filter_groups", "_target_ enable metric", "which groups are kept"),
    Rule(FILTER, "algorithm", "trinity_std_threshold", "which groups are kept"),
    Rule(FILTER, "data", "gen_batch_size", "how many tasks are drawn for a step"),
    Rule("", "algorithm.filter_groups", "max_num_gen_batches", "a bound beyond which the run ends"),
    Rule("", "algorithm.filter_groups", "max_inflight_gen_batches", _SPEED),
    Rule(PIPELINE, "data", "experience_pipeline", "operators on answers, and their files", "operators"),
    # -- what the trainer does ----------------------------------------------------------------------
    Rule("", "", "model_engine", _TRAINER),
    Rule("", "actor_rollout_ref.actor", "*", _TRAINER),
    Rule("", "actor_rollout_ref.ref", "*", _TRAINER),
    Rule("", "actor_rollout_ref", "hybrid_engine nccl_timeout", _SPEED),
    Rule("", "critic", "*", _TRAINER),
    Rule(
        TEACHERS,
        "",
        "distillation",
        "where it is enabled: teachers, by their files, and which of their numbers are stored",
        "distillation",
    ),
    Rule(TEACHERS, "distillation", "enabled", "whether a teacher is asked about answers"),
    Rule("", "distillation", "*", _TRAINER),
    Rule("", "algorithm", "_target_ gamma lam norm_adv_by_std_in_grpo use_kl_in_reward kl_penalty", _TRAINER),
    Rule("", "algorithm", "use_pf_ppo", _TRAINER),
    Rule("", "algorithm.pf_ppo", "*", _TRAINER),
    Rule("", "algorithm.kl_ctrl", "*", _TRAINER),
    Rule("", "algorithm.rollout_correction", "*", _TRAINER),
    Rule("", "algorithm.trinity_args", "*", _TRAINER),
    Rule("", "trainer", "balance_batch critic_warmup device nnodes n_gpus_per_node use_v1", _TRAINER),
    Rule("", "trainer", "total_epochs total_training_steps", "how long the run is"),
    Rule("", "trainer", "resume_mode resume_from_path del_local_ckpt_after_load", "where it goes on"),
    Rule("", "trainer", "project_name experiment_name logger rollout_data_dir save_freq", _LOGGING),
    Rule("", "trainer", "esi_redundant_time checkpoint_callback_class default_hdfs_dir", _LOGGING),
    Rule("", "trainer", "default_local_dir max_actor_ckpt_to_keep max_critic_ckpt_to_keep", _LOGGING),
    Rule(
        "",
        "trainer",
        "log_val_generations validation_data_dir val_before_train val_only test_freq",
        _VALIDATION,
    ),
    Rule("", "trainer", "ray_wait_register_center_timeout", _SPEED),
    Rule("", "trainer.v1", "*", "veRL's other trainer; not used"),
    Rule("", "transfer_queue", "*", "of veRL's other trainer; not used"),
    Rule("", "global_profiler", "*", _LOGGING),
    Rule("", "skip", "*", "veRL's own rollout; not used"),
    Rule("", "ray_kwargs", "*", _SPEED),
    Rule(ENVIRONMENT, "ray_kwargs.ray_init.runtime_env", "*", "reward functions and agents may read it"),
    # -- the run's own settings ---------------------------------------------------------------------
    *(Rule(row.voids, OURS, row.name, row.why) for row in SETTINGS.values()),
    Rule("", "explorer", "max_retry_times", "a group that fails is masked or made again"),
    Rule("", "algorithm.sample_strategy_args", "max_staleness", "a group says its versions"),
    Rule("", "synchronizer", "*", "a group says its versions"),
    Rule("", "buffer.trainer_input", "*", "how often groups are trained, and which rows beside them"),
    Rule("", "trinity_compat", "updates_per_step", "how long the run is"),
    Rule("", "", "continue_from_checkpoint --job --database", "where it goes on"),
    Rule("", "", "--mode --device --explorers --checkpoints", _SPEED),
)

_EXACT: Mapping[str, Rule] = {key: rule for rule in RULES for key in rule.keys if rule.names != "*"}
_SECTIONS: Mapping[str, Rule] = {rule.above: rule for rule in RULES if rule.names == "*"}


def rule_of(key: str) -> Rule:
    """The rule of a dotted key: its own, else that of the nearest section, else UNCLASSIFIED."""
    if key in _EXACT:
        return _EXACT[key]
    at = key
    while at:
        if at in _SECTIONS:
            return _SECTIONS[at]
        at = at.rpartition(".")[0]
    return UNCLASSIFIED


def is_whole(key: str) -> bool:
    """Return whether the section at ``key`` is read as one."""
    return key in _EXACT and _EXACT[key].read in WHOLE


_HEAD = """# Settings that void waiting answers

Generated from `trinity_compat/job/fingerprint_rules.py` by `scripts/site/make_reference.py`.

For each setting the part of a run's fingerprint to which it belongs, or "no" where an edit voids nothing
([how a run uses this](../durability.md#what-voids-waiting-answers)). A test changes every key of veRL's
configuration and every setting of a run, and fails for a key without a row."""


def page() -> str:
    """docs/reference/voids.md: the rules, those of one part or reason together."""
    return f"{_HEAD}\n\n{_table()}"


def _table() -> str:
    grouped: dict[tuple[str, str], dict[str, list[str]]] = {}
    for rule in RULES:
        sections = grouped.setdefault((rule.part, rule.why), {})
        if rule.names == "*":
            sections[f"{rule.above}.*"] = []
        else:
            sections.setdefault(rule.above, []).extend(rule.names.split())
    lines = ["| setting | voids | why |", "|---|---|---|"]
    for (part, why), sections in sorted(grouped.items(), key=lambda row: not row[0][0]):
        settings = ", ".join(f"`{_braced(*section)}`" for section in sections.items())
        lines.append(f"| {settings} | {part or 'no'} | {why} |")
    lines.append(f"| any other | {UNCLASSIFIED.part} | {UNCLASSIFIED.why} |")
    return "\n".join(lines) + "\n"


def _braced(above: str, names: list[str]) -> str:
    """As a shell writes several words with a common beginning."""
    listed = names[0] if len(names) == 1 else f"{{{','.join(names)}}}" if names else ""
    return f"{above}.{listed}" if above and listed else above or listed
