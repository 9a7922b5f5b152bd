"""Every field of a Trinity YAML by hand changes something, has no effect for a reason, or is refused."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from trinity_files import LEAST, TASKSET, merged

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put, value_at
from trinity_compat.common.releases import TRINITY
from trinity_compat.explorer.engine.sampling import make_job
from trinity_compat.run.plan.error_locations import in_file
from trinity_compat.run.plan.plan_run import plan_source
from trinity_compat.run.plan.source import RunOptions, from_yaml
from trinity_compat.translate.trinity_fields import fate_of, fields, table
from trinity_compat.trinity.config.schema import schema

BASE = merged(
    LEAST,
    {
        "project": "p",
        "name": "n",
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8},
        "cluster": {"node_num": 1, "gpu_per_node": 3},
        "buffer": {"explorer_input": {"eval_tasksets": [{"path": "/d/v.parquet"}]}},
        "synchronizer": {"sync_style": "trainer_driven"},
    },
)
PPO = {"algorithm": {"algorithm_type": "ppo", "repeat_times": 1}}
MEGATRON = {"trainer": {"trainer_strategy": "megatron"}}
LORA = {"model": {"lora_configs": [{"name": "a"}]}}
SHUFFLED = {
    "buffer": {"explorer_input": {"taskset": {**TASKSET, "data_selector": {"selector_type": "shuffle"}}}}
}
DIFFICULT = {
    "selector_type": "difficulty_based",
    "feature_keys": ["weak", "strong"],
    "kwargs": {"m": 8, "lamb": 0.2, "rho": 0.2, "tau": 0.5, "do_sample": False, "adaptive_rho": False},
}
BY_DIFFICULTY = {"buffer": {"explorer_input": {"taskset": {**TASKSET, "data_selector": DIFFICULT}}}}
OLDER_DIFFICULT = {"buffer": {"explorer_input": {"taskset": {**TASKSET, "task_selector": DIFFICULT}}}}
OF_A_SELECTOR = {
    "feature_keys": ["a", "b"],
    "kwargs.m": 4,
    "kwargs.lamb": 0.5,
    "kwargs.rho": 0.5,
    "kwargs.target_reward": 0.5,
    "kwargs.tau": 0,
    "kwargs.do_sample": True,
    "kwargs.adaptive_rho": True,
}
OLDER = {
    "buffer": {"explorer_input": {"taskset": {**TASKSET, "task_selector": {"selector_type": "shuffle"}}}}
}
JUDGED = {
    "cluster": {"gpu_per_node": 8},
    "explorer": {"rollout_model": {"engine_num": 2}, "auxiliary_models": [{"model_path": "/reward"}]},
}
TWICE_JUDGED = merged(
    JUDGED, {"explorer": {"auxiliary_models": [{"model_path": "/reward"}, {"model_path": "/other"}]}}
)
OF_A_FURTHER_MODEL = {
    "dtype": "float16",
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.3,
    "max_model_len": 64,
    "max_response_tokens": 7,
    "seed": 7,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "extra_engine_args.max_num_seqs": 4,
    "extra_engine_args.swap_space": 4,
}
ROWS = "buffer.trainer_input.experience_buffer"
REPLAY = f"{ROWS}.replay_buffer"
JUDGE = "explorer.auxiliary_models.0"
EXPERTS = "buffer.trainer_input.auxiliary_buffers.sft_dataset"
MIXED = {
    "algorithm": {"algorithm_type": "mix", "repeat_times": 2},
    "buffer": {
        "train_batch_size": 16,
        "trainer_input": {
            "auxiliary_buffers": {"sft_dataset": {"storage_type": "file", "path": "/d/sft.jsonl"}}
        },
    },
}
OPERATORS = "data_processor.experience_pipeline.operators"
CLEANED = {"data_processor": {"experience_pipeline": {"operators": [{"name": "reward_filter"}]}}}
ROW, EVAL = "buffer.explorer_input.taskset", "buffer.explorer_input.eval_tasksets.0"
MODEL, ENGINE, OPTIMIZER = "model", "explorer.rollout_model", "algorithm.optimizer"

SERVED = {"mode": "serve"}
ASKED = {"buffer": {"explorer_input": {"default_workflow_type": "math_workflow"}}}
REPLAYED = {"buffer": {"trainer_input": {"experience_buffer": {"replay_buffer": {"enable": True}}}}}
COOLED = merged(
    REPLAYED,
    {"buffer": {"trainer_input": {"experience_buffer": {"replay_buffer": {"reuse_cooldown_time": 5}}}}},
)
LIMITED = merged(
    COOLED,
    {
        "buffer": {
            "trainer_input": {
                "experience_buffer": {"replay_buffer": {"priority_fn": "decay_limit_randomization"}}
            }
        }
    },
)

# field of a taskset → (another value, what the file needs beside it), wherever the taskset stands
OF_A_TASKSET = {
    "name": ("sums", {}),
    "path": ("/d/b", {}),
    "split": ("other", {}),
    "subset_name": ("main", {}),
    "storage_type": ("sql", {}),
    "workflow_args.with_think": (True, ASKED),
    "reward_fn_args.pattern": ("x", ASKED),
    "format.prompt_key": ("question", {}),
    "format.response_key": ("answer", {}),
    "format.messages_key": ("chat", {}),
    "format.system_prompt": ("Be brief.", {}),
    "format.system_prompt_key": ("rules", {}),
    "default_workflow_type": ("math_boxed_workflow", ASKED),
    "default_reward_fn_type": ("format_reward", ASKED),
    "rollout_args.temperature": (0.5, {}),
    "rollout_args.top_p": (0.5, {}),
    "rollout_args.top_k": (5, {}),
}

SFT = {
    "mode": "train",
    "algorithm": {"algorithm_type": "sft", "repeat_times": 1},
    "buffer": {"train_batch_size": 12, "trainer_input": {"experience_buffer": {"path": "/d/rows.jsonl"}}},
}
DPO = merged(SFT, {"algorithm": {"algorithm_type": "dpo", "repeat_times": 2}})
SHUFFLED_ROWS = merged(
    SFT,
    {"buffer": {"trainer_input": {"experience_buffer": {"data_selector": {"selector_type": "shuffle"}}}}},
)
DRAWN_ROWS = merged(SFT, {"buffer": {"trainer_input": {"experience_buffer": {"data_selector": DIFFICULT}}}})
# field of the rows that the trainer reads itself → (another value, what the file needs beside it)
OF_ROWS = {
    "split": ("other", SFT),
    "subset_name": ("main", SFT),
    "data_selector.selector_type": ("shuffle", SFT),
    "data_selector.seed": (7, SHUFFLED_ROWS),
    **{f"data_selector.{field}": (value, DRAWN_ROWS) for field, value in OF_A_SELECTOR.items()},
    "format.prompt_type": ("plaintext", SFT),
    "format.prompt_key": ("question", SFT),
    "format.response_key": ("answer", SFT),
    "format.system_prompt_key": ("rules", SFT),
    "format.system_prompt": ("Be brief.", SFT),
    "format.messages_key": ("chat", SFT),
    "format.tools_key": ("functions", SFT),
    "format.chosen_key": ("good", DPO),
    "format.rejected_key": ("bad", DPO),
    "format.enable_concatenated_multi_turn": (True, SFT),
    "format.chat_template": ("x", SFT),
    "format.enable_thinking": (False, SFT),
}

# path → (another value, what the file needs beside it)
JUICER = {
    "service": {"data_juicer": {"server_url": "http://127.0.0.1:5005"}},
    "data_processor": {
        "task_pipeline": {
            "operators": [{"name": "text_length_filter", "args": {"min_len": 3}}],
            "inputs": ["/d/raw.jsonl"],
            "output": {"path": "/d/tasks"},
        }
    },
}
OF_TASKS = {
    "config_path": "/d/juicer.yaml",
    "inputs": ["/d/other.jsonl"],
    "num_process": 2,
    "operators.0.name": "alphanumeric_filter",
    "operators.0.args.min_len": 4,
    "output.path": "/d/clean",
    "priority_weights.quality": 2.0,
    "target_fields": ["question"],
    "top_k": 7,
}
READ = {
    "mode": ("explore", {}),
    "project": ("q", {}),
    "group": ("g", {}),
    "name": ("m", {}),
    "checkpoint_root_dir": ("/elsewhere", {}),
    "continue_from_checkpoint": (False, {}),
    "algorithm.algorithm_type": ("rloo", {}),
    "algorithm.repeat_times": (2, {}),
    f"{OPTIMIZER}.lr": (1e-4, {}),
    f"{OPTIMIZER}.lr_warmup_steps": (7, {}),
    f"{OPTIMIZER}.lr_warmup_steps_ratio": (0.5, {}),
    f"{OPTIMIZER}.min_lr_ratio": (0.5, {}),
    f"{OPTIMIZER}.warmup_style": ("cosine", {}),
    f"{OPTIMIZER}.lr_scheduler_type": ("cosine", {}),
    f"{OPTIMIZER}.optimizer_type": ("sgd", {}),
    f"{OPTIMIZER}.betas": ([0.8, 0.9], {}),
    f"{OPTIMIZER}.weight_decay": (0.3, {}),
    "algorithm.sample_strategy_args.max_staleness": (
        4,
        {"algorithm": {"sample_strategy": "staleness_control"}},
    ),
    "algorithm.advantage_fn": ("rloo", {}),
    "algorithm.advantage_fn_args.std_cal_level": ("batch", {}),
    "algorithm.kl_penalty_fn": ("k1", {}),
    "algorithm.kl_penalty_fn_args.kl_coef": (0.5, {"algorithm": {"kl_penalty_fn": "k1"}}),
    "algorithm.policy_loss_fn": ("gspo", {}),
    "algorithm.policy_loss_fn_args.clip_range": (0.1, {}),
    "algorithm.kl_loss_fn": ("none", {}),
    "algorithm.kl_loss_fn_args.kl_coef": (0.5, {}),
    "algorithm.entropy_loss_fn": ("none", {"algorithm": {"entropy_loss_fn_args": {"entropy_coef": 0.1}}}),
    "algorithm.entropy_loss_fn_args.entropy_coef": (0.5, {}),
    "algorithm.loss_agg_mode": ("seq-mean-token-sum", {}),
    "algorithm.bypass_old_logprobs": (False, {}),
    "algorithm.rollout_correction.rollout_is": ("token", {}),
    f"{MODEL}.model_path": ("/other", {}),
    f"{MODEL}.trust_remote_code": (True, {}),
    f"{MODEL}.critic_model_path": ("/other", PPO),
    f"{MODEL}.custom_chat_template": ("x", {}),
    f"{MODEL}.temperature": (0.5, {}),
    f"{MODEL}.top_p": (0.5, {}),
    f"{MODEL}.max_model_len": (64, {}),
    f"{MODEL}.max_prompt_tokens": (9, {}),
    f"{MODEL}.max_response_tokens": (9, {}),
    f"{MODEL}.min_response_tokens": (3, {}),
    f"{MODEL}.enable_prompt_truncation": (False, {}),
    f"{MODEL}.repetition_penalty": (1.5, {}),
    f"{MODEL}.enable_thinking": (False, {}),
    f"{MODEL}.lora_configs.0.path": ("/adapter", LORA),
    f"{MODEL}.lora_configs.0.lora_rank": (8, LORA),
    f"{MODEL}.lora_configs.0.lora_alpha": (8, LORA),
    f"{MODEL}.lora_configs.0.target_modules": ("q_proj", LORA),
    f"{MODEL}.lora_configs.0.exclude_modules": ("lm_head", LORA),
    "cluster.node_num": (2, {}),
    "cluster.gpu_per_node": (2, {}),
    "buffer.batch_size": (12, {}),
    "buffer.train_batch_size": (24, {"explorer": {"eval_interval": 4}}),
    "buffer.total_epochs": (3, {}),
    "buffer.total_steps": (30, {}),
    f"{ROW}.workflow_args.truncation": ("left", {}),
    f"{ROW}.reward_fn_args.reward_manager": ("dapo", {}),
    f"{ROW}.reward_fn_args.custom_reward_function.path": ("/r.py", {}),
    f"{ROW}.reward_fn_args.overlong_buffer_cfg.len": (4, {}),
    f"{ROW}.data_selector.selector_type": ("shuffle", {}),
    f"{ROW}.data_selector.seed": (7, SHUFFLED),
    f"{EVAL}.repeat_times": (4, {}),
    "buffer.trainer_input.experience_buffer.path": ("postgresql+psycopg://db/run", {}),
    "buffer.trainer_input.experience_buffer.replay_buffer.enable": (True, {}),
    "algorithm.sample_strategy_args.expert_data_ratio": (0.25, MIXED),
    OPERATORS: ([{"name": "reward_std_filter"}], {}),
    f"{OPERATORS}.0.name": ("reward_std_filter", CLEANED),
    f"{OPERATORS}.0.args": ({"threshold": 0.5}, CLEANED),
    "explorer.max_timeout": (60, {}),
    "explorer.env_vars.NAME": ("value", {}),
    "explorer.eval_interval": (7, {}),
    "explorer.eval_on_startup": (False, {}),
    "explorer.over_rollout.ratio": (0.25, {}),
    "explorer.proxy_port": (9000, SERVED),
    "explorer.listen_address": ("127.0.0.2", SERVED),
    "explorer.service_status_check_interval": (5, SERVED),
    f"{ENGINE}.engine_type": ("sglang", {}),
    f"{ENGINE}.engine_num": (2, {}),
    f"{ENGINE}.tensor_parallel_size": (2, {}),
    f"{ENGINE}.enforce_eager": (True, {}),
    f"{ENGINE}.enable_prefix_caching": (False, {}),
    f"{ENGINE}.enable_chunked_prefill": (False, {}),
    f"{ENGINE}.gpu_memory_utilization": (0.3, {}),
    f"{ENGINE}.dtype": ("float16", {}),
    f"{ENGINE}.seed": (7, {}),
    f"{ENGINE}.ignore_eos": (True, {}),
    f"{ENGINE}.extra_engine_args.max_num_seqs": (4, {}),
    f"{ENGINE}.extra_engine_args.swap_space": (4, {}),
    f"{ENGINE}.max_model_len": (48, {}),
    f"{ENGINE}.max_response_tokens": (9, {}),
    f"{ENGINE}.repetition_penalty": (1.5, {}),
    **{f"data_processor.task_pipeline.{field}": (value, JUICER) for field, value in OF_TASKS.items()},
    "service.data_juicer.auto_start": (True, JUICER),
    "service.data_juicer.port": (5006, {**JUICER, "service": {"data_juicer": {"auto_start": True}}}),
    "service.data_juicer.server_url": ("http://127.0.0.1:5006", JUICER),
    "trainer.trainer_strategy": ("fsdp", {}),
    "trainer.save_interval": (7, {}),
    "trainer.total_steps": (7, {}),
    "trainer.save_hf_checkpoint": ("never", {}),
    "trainer.use_remove_padding": (False, {}),
    "trainer.balance_batch": (False, {}),
    "trainer.critic_warmup": (7, PPO),
    "trainer.max_token_len_per_gpu": (99, {}),
    "trainer.ulysses_sequence_parallel_size": (2, {}),
    "trainer.param_offload": (True, {}),
    "trainer.optimizer_offload": (True, {}),
    "trainer.offload_policy": (True, {}),
    "trainer.max_checkpoints_to_keep": (2, {}),
    "trainer.megatron.tensor_model_parallel_size": (2, MEGATRON),
    "trainer.trainer_config.actor_rollout_ref.actor.use_torch_compile": (False, {}),
    "trainer.trainer_config.critic.optim.lr": (0.5, PPO),
    "explorer.auxiliary_models.0.model_path": ("/other", JUDGED),
    "explorer.auxiliary_models.0.name": ("judge", JUDGED),
    "explorer.auxiliary_models.0.engine_num": (2, JUDGED),
    "explorer.auxiliary_models.0.tensor_parallel_size": (2, JUDGED),
    **{
        f"explorer.auxiliary_models.0.{field}": (value, JUDGED) for field, value in OF_A_FURTHER_MODEL.items()
    },
    **{
        f"explorer.auxiliary_models.1.{field}": (value, TWICE_JUDGED)
        for field, value in OF_A_FURTHER_MODEL.items()
    },
    "explorer.max_retry_times": (5, {}),
    "explorer.rollout_model.tool_call_parser": ("qwen3_coder", {}),
    "explorer.rollout_model.reasoning_parser": ("qwen3", {}),
    "explorer.rollout_model.data_parallel_size": (2, {}),
    "explorer.rollout_model.enable_expert_parallel": (
        True,
        {"cluster": {"gpu_per_node": 8}, "explorer": {"rollout_model": {"tensor_parallel_size": 2}}},
    ),
    "explorer.rollout_model.max_prompt_tokens": (9, {}),
    "explorer.rollout_model.min_response_tokens": (3, {}),
    "explorer.rollout_model.enable_prompt_truncation": (False, {}),
    "explorer.rollout_model.enable_thinking": (False, {}),
    "model.chat_template_path": ("TEMPLATE", {}),
    "monitor.monitor_type": ("wandb", {}),
    "synchronizer.sync_method": ("checkpoint", {}),
    "synchronizer.sync_style": ("explorer_driven", {}),
    "synchronizer.sync_interval": (2, {}),
    "synchronizer.explorer_sync_interval": (2, {}),
    "synchronizer.trainer_sync_interval": (2, {}),
    "synchronizer.sync_offset": (2, {}),
    "synchronizer.sync_timeout": (7, {}),
    "log.level": ("DEBUG", {}),
    "log.group_by_node": (True, {}),
    f"{OPTIMIZER}.clip_grad": (0.3, {}),
    "algorithm.sample_strategy": (
        "staleness_control",
        {"algorithm": {"sample_strategy_args": {"max_staleness": 4}}},
    ),
    f"{ROW}.task_selector.selector_type": ("shuffle", {}),
    f"{ROW}.task_selector.seed": (7, OLDER),
    **{f"{ROW}.data_selector.{field}": (value, BY_DIFFICULTY) for field, value in OF_A_SELECTOR.items()},
    **{f"{ROW}.task_selector.{field}": (value, OLDER_DIFFICULT) for field, value in OF_A_SELECTOR.items()},
    "buffer.explorer_input.default_workflow_type": ("math_workflow", {}),
    "buffer.explorer_input.default_eval_workflow_type": ("math_boxed_workflow", ASKED),
    "buffer.explorer_input.default_reward_fn_type": ("format_reward", ASKED),
    f"{REPLAY}.reuse_cooldown_time": (5, REPLAYED),
    f"{REPLAY}.priority_fn": ("decay_limit_randomization", COOLED),
    f"{REPLAY}.priority_fn_args.decay": (0.5, COOLED),
    f"{REPLAY}.priority_fn_args.use_count_limit": (7, LIMITED),
    f"{REPLAY}.priority_fn_args.sigma": (0.5, LIMITED),
    "trainer.megatron.pipeline_model_parallel_size": (2, MEGATRON),
    "trainer.megatron.virtual_pipeline_model_parallel_size": (2, MEGATRON),
    "trainer.megatron.expert_model_parallel_size": (2, MEGATRON),
    "trainer.megatron.expert_tensor_parallel_size": (2, MEGATRON),
    "trainer.megatron.context_parallel_size": (2, MEGATRON),
    "trainer.megatron.sequence_parallel": (False, MEGATRON),
} | {f"{place}.{field}": row for place in (ROW, EVAL) for field, row in OF_A_TASKSET.items()}
READ |= {f"{ROWS}.{field}": row for field, row in OF_ROWS.items()}
SHUFFLED_EXPERTS = merged(
    MIXED,
    {
        "buffer": {
            "trainer_input": {
                "auxiliary_buffers": {"sft_dataset": {"data_selector": {"selector_type": "shuffle"}}}
            }
        }
    },
)
DRAWN_EXPERTS = merged(
    MIXED,
    {"buffer": {"trainer_input": {"auxiliary_buffers": {"sft_dataset": {"data_selector": DIFFICULT}}}}},
)
OF_SELECTED = {f"data_selector.{field}": DRAWN_EXPERTS for field in OF_A_SELECTOR}
OF_SELECTED["data_selector.seed"] = SHUFFLED_EXPERTS
READ |= {
    f"{EXPERTS}.{field}": (value, OF_SELECTED.get(field, MIXED))
    for field, (value, _) in OF_ROWS.items()
    if field not in ("format.chosen_key", "format.rejected_key")
}
READ[f"{EXPERTS}.path"] = ("/d/other.jsonl", MIXED)

# Fields that are read, and why no plan of a training run shows it.
SEEN_ELSEWHERE = {
    "buffer.trainer_input.auxiliary_buffers.*.storage_type": "another kind than a file is refused, below",
    "explorer.bench_on_latest_checkpoint": "a bench's plan: tests/run/test_bench_plan.py",
    "explorer.rollout_model.pipeline_parallel_size": "more than 1 is refused: test_every_key.py",
    "trainer.use_dynamic_bsz": "false needs micro-batches, and is refused without: test_every_key.py",
    "*.rollout_args.max_tokens": "another value than the model's is refused, below",
    "trainer.grad_clip": "another value than the optimizer's is named, below",
}


def plan_of(tmp_path, config, **options):
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config))
    source = from_yaml(file)
    with engines_installed():
        return plan_source(source, RunOptions(device="cuda", **options), cwd=Path("/work"))


def engines_installed():
    """Let the packages of every training engine count as installed, Megatron's among them."""
    return patch("trinity_compat.common.training_engines.find_spec", return_value="installed")


def downstream(made):
    """Everything that the processes of the run are given, what is told of it aside."""
    spec = json.loads(json.dumps(made.spec.as_saved(), default=str))
    return {"spec": spec, "job": str(made.job.root), "env": dict(made.env), "log": made.log_folder}


def changed(path, value, needs):
    config = json.loads(json.dumps(merged(BASE, needs)))
    put(config, path, value)
    return config


@pytest.mark.parametrize("path", READ)
def test_a_field_that_is_read_changes_what_the_processes_are_given(path, tmp_path):
    value, needs = READ[path]
    (tmp_path / "TEMPLATE").write_text("{{ messages }}")
    value = str(tmp_path / value) if value == "TEMPLATE" else value
    before = downstream(plan_of(tmp_path, merged(BASE, needs)))
    made = plan_of(tmp_path, changed(path, value, needs))
    assert downstream(made) != before
    assert path not in made.unread


THOUGHTS = "explorer.rollout_model.reasoning_parser"


@pytest.mark.parametrize(
    ("workflow", "mode", "asks"),
    [
        (None, "both", False),
        ("math_workflow", "both", False),
        ("agent_workflow", "both", True),
        (None, "serve", True),
    ],
)
def test_an_unused_reasoning_parser_is_reported(workflow, mode, asks, tmp_path):
    config = merged(changed(THOUGHTS, "qwen3", {}), {"mode": mode})
    config["buffer"]["explorer_input"] |= {"default_workflow_type": workflow} if workflow else {}
    plugins = str(Path(__file__).parents[1] / "trinity" / "workflows" / "plugins")
    made = plan_of(tmp_path, config, plugin_dirs=(plugins,))
    idle = [note for note in made.notes if f"{THOUGHTS}=qwen3: no part of this run reads it" in note]
    assert bool(idle) != asks


def test_a_refused_reasoning_parser_is_said_at_its_line_in_the_yaml(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(changed(THOUGHTS, "qwen4", {})))
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.reasoning_parser"
    said, where = in_file(f"{key}=qwen4: no", from_yaml(file))
    (line,) = (n for n, text in enumerate(file.read_text().splitlines(), 1) if "qwen4" in text)
    assert (said, where.line) == (f"{THOUGHTS}=qwen4: no", line)


def test_every_field_that_the_table_calls_read_is_seen_to_be():
    """One taskset alone is a list of one (trinity/config/complete.py): its fields are those of the list."""
    paths = set(fields(schema(TRINITY)))
    read = {path for path in paths if fate_of(path).kind == "read" and not path.startswith("stages.")}
    tried = [_pattern(path) for path in READ]
    seen = {
        path
        for path in read
        if any(each == one or each.startswith(f"{one}.") for each in tried for one in (path, _listed(path)))
    }
    unseen = {path for path in read - seen if not any(fnmatchcase(path, name) for name in SEEN_ELSEWHERE)}
    assert not unseen


def _pattern(path):
    listed = re.sub(r"\.\d+(?=\.|$)", ".*", path).replace(f"{ROW}.", f"{ROW}s.*.")
    return listed.replace(EXPERTS, EXPERTS.removesuffix("sft_dataset") + "*")


def _listed(path):
    return path.replace(f"{ROW}.", f"{ROW}s.*.")


def test_every_field_of_the_schema_has_a_fate():
    unknown = {path for path in fields(schema(TRINITY)) if fate_of(path) is None}
    assert not unknown


def test_every_row_of_the_table_is_about_a_field():
    seen = {fate_of(path) for path in fields(schema(TRINITY))}
    assert {fate for fate in table().values() if fate.kind == "refused"} <= seen


# A taskset's own are below; the older way to the trainer's configuration is refused where the file is read.
REFUSED = [
    path
    for path, fate in table().items()
    if fate.kind == "refused" and "tasksets.*" not in path and path != "trainer.trainer_config_path"
]


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_field_that_would_change_what_is_trained_is_refused_with_its_line(pattern, tmp_path):
    path, value = sample_of(pattern)
    beside = {"lora_configs": LORA, EXPERTS: MIXED, f"{ROWS}.format": SFT, "auxiliary_models": JUDGED}
    needs = next((needs for part, needs in beside.items() if part in path), {})
    with pytest.raises(UserError) as error:
        plan_of(tmp_path, changed(path, value, needs))
    assert error.value.where and error.value.where.line > 0
    assert error.value.message.startswith(path)
    assert error.value.hint


def test_a_field_asks_for_what_its_variables_come_to(tmp_path, monkeypatch):
    scaled = changed("model.rope_scaling", "${oc.decode:${oc.env:SCALING,null}}", {})
    assert not [note for note in plan_of(tmp_path, scaled).notes if "rope" in note]
    monkeypatch.setenv("SCALING", "{rope_type: yarn}")
    with pytest.raises(UserError, match=r"model\.rope_scaling\.rope_type=yarn: rotary") as error:
        plan_of(tmp_path, scaled)
    assert error.value.where.line > 0


@pytest.mark.parametrize("needs", [{}, MIXED])
def test_a_further_buffer_that_nothing_reads_is_refused_with_its_line(needs, tmp_path):
    path = "buffer.trainer_input.auxiliary_buffers.other"
    config = changed(path, {"storage_type": "file", "path": "/d/a.jsonl"}, needs)
    with pytest.raises(UserError, match=f"{path}.* this run does not read that buffer") as error:
        plan_of(tmp_path, config)
    assert error.value.where.line > 0


def test_an_expert_s_rows_are_read_from_files_only(tmp_path):
    config = changed(f"{EXPERTS}.storage_type", "sql", MIXED)
    with pytest.raises(UserError, match="storage_type=sql: sft reads rows of a file"):
        plan_of(tmp_path, config)


def sample_of(pattern):
    """(path, a value that is not the default) of a refused pattern."""
    special = {
        "buffer.trainer_input.auxiliary_buffers.*.format.image_key": (f"{EXPERTS}.format.image_key", "image"),
        "buffer.trainer_input.auxiliary_buffers.*.format.video_key": (f"{EXPERTS}.format.video_key", "video"),
        "model.lora_configs.*.lora_dtype": ("model.lora_configs.0.lora_dtype", "float16"),
        "explorer.auxiliary_models.*.chat_template": (f"{JUDGE}.chat_template", "{{ messages }}"),
        "explorer.auxiliary_models.*.rope_scaling.*": (f"{JUDGE}.rope_scaling", {"rope_type": "linear"}),
        "trainer.trainer_type": ("trainer.trainer_type", "tinker"),
    }
    if pattern in special:
        return special[pattern]
    pattern = pattern.replace("auxiliary_models.*", "auxiliary_models.0")
    if pattern.endswith(".*"):
        return pattern.removesuffix(".*"), {"rope_type": "linear"}
    kind = schema(TRINITY).find(pattern).type.kind
    samples = {"bool": True, "str": "other", "float": 0.5, "int": 3}
    return pattern, samples[kind]


ELSEWHERE = {
    "another workflow": ({"default_workflow_type": "math_workflow"}, "eval_tasksets.0 names no workflow"),
    "another reward": ({"default_reward_fn_type": "math_reward"}, "default_reward_fn_type=math_reward"),
    "an argument of another workflow": ({"workflow_args": {"max_env_steps": 3}}, "max_env_steps"),
    "a selector that there is not": (
        {"data_selector": {"selector_type": "dificulty_based"}},
        r"selector_type=dificulty_based: .*(?s:.)*did you mean 'difficulty_based'",
    ),
    "a selector without columns": (
        {"data_selector": {"selector_type": "offline_easy2hard"}},
        r"feature_keys=\[\]: .* one column or more",
    ),
    "a selector with a column too few": (
        {"data_selector": {**DIFFICULT, "feature_keys": ["weak"]}},
        r"feature_keys=\['weak'\]: .* 2 columns",
    ),
    "an argument that a selector has not": (
        {"data_selector": {**DIFFICULT, "kwargs": {"lambda": 0.3}}},
        r"data_selector\.kwargs\.lambda=0\.3: difficulty_based has no such argument",
    ),
    "an argument of another type": (
        {"data_selector": {**DIFFICULT, "kwargs": {"tau": True}}},
        r"data_selector\.kwargs\.tau=True: write a number",
    ),
    "a temperature below 0": (
        {"data_selector": {**DIFFICULT, "kwargs": {"tau": -1}}},
        r"data_selector\.kwargs\.tau=-1: write 0 or more",
    ),
    "an older selector that there is not": (
        {"task_selector": {"selector_type": "easy"}},
        r"selector_type=easy: ",
    ),
    "an argument whose name is a number": (
        {"data_selector": {**DIFFICULT, "kwargs": {1: 2}}},
        r"data_selector\.kwargs\.1=2: difficulty_based has no such argument",
    ),
    "a value for a reward function's section": (
        {"default_workflow_type": None, "reward_fn_args": {"custom_reward_function": "r.py"}},
        r"reward_fn_args\.custom_reward_function=r\.py: write its keys",
    ),
    "a value for its arguments": (
        {"default_workflow_type": None, "reward_fn_args": {"custom_reward_function": {"reward_kwargs": 5}}},
        r"custom_reward_function\.reward_kwargs=5: write its keys",
    ),
    "no file": ({"path": None}, r"tasksets\.0\.path is missing: a taskset needs a file"),
    "a length of its own": ({"rollout_args": {"max_tokens": 5}}, r"rollout_args\.max_tokens=5"),
}


@pytest.mark.parametrize("workflow", [None, "math_workflow"])
def test_a_taskset_may_be_sampled_in_its_own_way(workflow, tmp_path):
    own = {**TASKSET, "rollout_args": {"temperature": 0.5, "top_k": 7}}
    input_ = {"taskset": None, "tasksets": [TASKSET, own], "eval_tasksets": [TASKSET, TASKSET, own]}
    made = plan_of(
        tmp_path,
        merged(BASE, {"buffer": {"explorer_input": {**input_, "default_workflow_type": workflow}}}),
    )
    sampled = made.spec.verl["data"]["taskset_sampling"]
    assert list(sampled) == ["train/1", "eval/2"]
    assert sampled["train/1"] == {"temperature": 0.5, "top_p": 1.0, "top_k": 7}
    assert made.spec.verl["actor_rollout_ref"]["rollout"]["temperature"] == 1.0
    (told,) = [note for note in made.notes if "is sampled at" in note]
    assert told.startswith("train/1 is sampled at temperature 0.5") and "log-probabilities at 1.0" in told
    assert "taskset_sampling" not in plan_of(tmp_path, BASE).spec.verl["data"]


def test_a_penalty_of_trinity_rft_s_own_is_what_it_asks_for(tmp_path):
    made = plan_of(tmp_path, merged(BASE, {"explorer": {"rollout_model": {"repetition_penalty": 1.05}}}))
    assert made.spec.verl["actor_rollout_ref"]["rollout"]["repetition_penalty"] == 1.05
    assert not [note for note in made.notes if "repetition_penalty" in note]


@pytest.mark.parametrize("workflow", [None, "math_workflow"])
def test_each_eval_taskset_has_its_own_number_of_answers(workflow, tmp_path):
    input_ = {"eval_tasksets": [TASKSET, {**TASKSET, "repeat_times": 4}], "default_workflow_type": workflow}
    made = plan_of(tmp_path, merged(BASE, {"buffer": {"explorer_input": input_}}))
    verl = made.spec.verl
    assert [make_job(verl, "eval", 0, {}, taskset=number).n for number in (0, 1)] == [1, 4]
    assert list(verl["data"]["taskset_sampling"]) == ["eval/1"]
    # A training taskset has the algorithm's number, whatever it says (trinity-rft's config_validator.py).
    two = {"taskset": None, "tasksets": [TASKSET, {**TASKSET, "repeat_times": 4}]}
    training = plan_of(tmp_path, merged(BASE, {"buffer": {"explorer_input": two}}))
    assert "taskset_sampling" not in training.spec.verl["data"]


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_taskset_that_cannot_be_served_as_it_asks_is_refused_with_its_line(case, tmp_path):
    change, said = ELSEWHERE[case]
    config = merged(BASE, {"buffer": {"explorer_input": {"taskset": {**TASKSET, **change}}}})
    with pytest.raises(UserError, match=said) as error:
        plan_of(tmp_path, config)
    assert error.value.where.line > 0


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], True),
        (["reward_filter"], True),
        (["pass_rate_calculator"], False),
        (["reward_filter", "pass_rate_calculator"], False),
    ],
)
def test_it_is_said_where_nothing_tells_a_selector_what_came_back(names, told, tmp_path):
    operators = {"experience_pipeline": {"operators": [{"name": name} for name in names]}}
    made = plan_of(tmp_path, merged(BASE, merged(BY_DIFFICULTY, {"data_processor": operators})))
    assert bool([note for note in made.notes if "no operator tells difficulty_based" in note]) == told


def test_a_mode_that_there_is_not_is_refused_with_its_line(tmp_path):
    with pytest.raises(UserError, match="mode: trian is not among both, train") as error:
        plan_of(tmp_path, {**BASE, "mode": "trian"})
    assert error.value.where.line > 0


@pytest.mark.parametrize("kind", ["queue", "sql"])
def test_rows_that_are_said_to_lie_in_no_file_are_refused(kind, tmp_path):
    config = merged(BASE, SFT)
    config["buffer"]["trainer_input"]["experience_buffer"]["storage_type"] = kind
    with pytest.raises(UserError, match=rf"storage_type={kind}: sft reads rows of a file") as error:
        plan_of(tmp_path, config)
    assert error.value.where.line > 0


def test_tasksets_that_verl_s_manager_would_score_in_unlike_ways_are_refused(tmp_path):
    two = [{"path": "/d/v"}, {"path": "/d/w", "reward_fn_args": {"reward_manager": "dapo"}}]
    config = json.loads(json.dumps(BASE))
    config["buffer"]["explorer_input"]["eval_tasksets"] = two
    with pytest.raises(UserError, match=r"eval_tasksets\.1\.reward_fn_args="):
        plan_of(tmp_path, config)


def test_the_norm_that_gradients_are_clipped_to_is_the_optimizer_s(tmp_path):
    """0.6.0 trains on veRL 0.8, whose engines know the optimizer's field alone."""
    config = changed("trainer.grad_clip", 0.3, {})
    made = plan_of(tmp_path, config)
    assert value_at(made.spec.verl, "actor_rollout_ref.actor.optim.clip_grad") == 1.0
    (line,) = [note for note in made.notes if "grad_clip=0.3" in note]
    assert "algorithm.optimizer.clip_grad=1.0" in line


def test_what_has_no_effect_is_said_with_its_reason(tmp_path):
    made = plan_of(tmp_path, changed("explorer.runner_per_model", 99, {}))
    (line,) = [note for note in made.notes if "runner_per_model" in note]
    assert "x.yaml:" in line and "workflow runners" in line


def test_an_older_spelling_means_the_same(tmp_path):
    config = changed("synchronizer.sync_method", "online", {})
    put(config, "synchronizer.sync_style", "dynamic_by_explorer")
    put(config, f"{ENGINE}.engine_type", "vllm_async")
    spec = plan_of(tmp_path, config).spec
    assert (spec.sync.method, spec.sync.style) == ("nccl", "explorer_driven")
    assert value_at(spec.verl, "actor_rollout_ref.rollout.name") == "vllm"


def test_the_trainer_s_own_section_is_taken_as_upstream_takes_it(tmp_path):
    section = {
        "model": {"enable_gradient_checkpointing": False},
        "actor_rollout_ref": {"actor": {"use_dynamic_bsz": False}},
    }
    config = merged(BASE, {"trainer": {"trainer_config": {**section, "algorithm": {"x": 1}}}})
    made = plan_of(tmp_path, config)
    models = made.spec.verl["actor_rollout_ref"]
    assert models["model"]["enable_gradient_checkpointing"] is False  # a model at the top
    assert models["actor"]["use_dynamic_bsz"] is True  # trainer.use_dynamic_bsz says it
    told = [note for note in made.notes if "trainer_config" in note]
    assert len(told) == 2 and all("does not read it there either" in note for note in told)


def test_the_trainer_s_own_section_counts_over_the_fields_that_do_not_freeze_it(tmp_path):
    """Source: FROZEN_KEYS in trainer/verl/config.py of trinity-rft 0.6.0."""
    actor = {
        "optim": {"lr": 7e-7, "weight_decay": 0.3},
        "fsdp_config": {"param_offload": True, "optimizer_offload": True},
    }
    section = {"actor_rollout_ref": {"actor": actor, "ref": {"fsdp_config": {"param_offload": True}}}}
    config = merged(BASE, {"trainer": {"trainer_config": section}})
    made = plan_of(tmp_path, config)
    models = made.spec.verl["actor_rollout_ref"]
    for name, values in actor.items():
        assert values.items() <= models["actor"][name].items()
    assert models["ref"]["fsdp_config"]["param_offload"] is True
    assert models["ref"]["fsdp_config"]["optimizer_offload"] is False  # trainer.optimizer_offload's
    assert not [note for note in made.notes if "trainer_config" in note]


def test_a_file_that_names_a_secret_s_variable_is_read_by_its_lines(tmp_path):
    config = merged(BASE, {"explorer": {"runner_per_model": 3, "env_vars": {"JUDGE_API_KEY": "abc"}}})
    (line,) = [note for note in plan_of(tmp_path, config).notes if "runner_per_model" in note]
    assert "x.yaml:" in line


def test_a_variable_of_the_environment_is_its_value(tmp_path, monkeypatch):
    monkeypatch.setenv("BATCH", "12")
    config = json.loads(json.dumps(BASE))
    config["buffer"]["batch_size"] = "${oc.env:BATCH}"
    config["model"]["model_path"] = "${oc.env:NOWHERE,/fallback}"
    verl = plan_of(tmp_path, config).spec.verl
    assert verl["data"]["train_batch_size"] == 12
    assert verl["actor_rollout_ref"]["model"]["path"] == "/fallback"


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("${trainer.trainer_config.critic.ppo_micro_batch_size_per_gpu}", 3),
        ("${.ppo_micro_batch_size_per_gpu}", 3),
        ("${oc.decode:${oc.env:NOWHERE,5}}", 5),
        ("${critic.ppo_micro_batch_size_per_gpu}", 3),  # no field of the file: veRL's key
    ],
)
def test_the_trainer_s_own_section_may_name_fields_of_the_file(written, means, tmp_path):
    critic = {"ppo_micro_batch_size_per_gpu": 3, "forward_micro_batch_size_per_gpu": written}
    config = merged(BASE, merged(PPO, {"trainer": {"trainer_config": {"critic": critic}}}))
    verl = plan_of(tmp_path, config).spec.verl
    assert verl["critic"]["forward_micro_batch_size_per_gpu"] == means
