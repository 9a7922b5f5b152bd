"""The fields of the form, each declared once: its label, help, choices, and a default that runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["text", "whole", "number", "choice", "flag", "lines"]


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of the form.

    Attributes:
        name: the name of its input; values of a form are texts by this name.
        kind: ``whole`` is an int, ``number`` a float, ``lines`` a text of several lines, ``flag`` "" or "on".
        default: the text that a new form holds.
        help: one line, with the veRL keys that it sets.
        choices: of a choice, the value → its words for people.
        low, high: the least and the largest number.
        optional: an empty text has a meaning, which ``help`` says.
        when: another field → the values of it with which this one counts; empty for always.
    """

    name: str
    label: str
    kind: Kind
    default: str
    help: str
    choices: Mapping[str, str] | None = None
    low: float = 1
    high: float = math.inf
    optional: bool = False
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def condition(self) -> str:
        """``when`` as a page holds it: ``NAME=VALUE VALUE;…``."""
        return ";".join(f"{name}={' '.join(values)}" for name, values in self.when.items())


SAMPLED = {
    "grpo": "GRPO",
    "gae": "PPO (with a critic)",
    "rloo": "RLOO",
    "reinforce_plus_plus": "REINFORCE++",
}
OFFLINE = {"sft": "SFT (answers of a data set)", "dpo": "DPO (pairs of a data set)"}
ALGORITHMS = {**SAMPLED, **OFFLINE}
GROUPED = ("grpo", "rloo")  # they compare the answers to one prompt
REWARDS = {
    "rule": "veRL's rule for the data's data_source",
    "function": "my function",
    "model": "a reward model",
}
WORKFLOWS = {"single_turn_agent": "one answer to the prompt", "tool_agent": "an agent that calls tools"}
SHARING = {"turns": "take turns on all GPUs, as veRL", "split": "work side by side, each on GPUs of its own"}
STYLES = {
    "fixed": "fixed: weights after a number of steps",
    "fully_async": "fully_async: engines never wait",
    "explorer_driven": "explorer_driven: when the explorer asks",
    "trainer_driven": "trainer_driven: when the trainer has them",
}
METHODS = {
    "nccl": "NCCL, from GPU to GPU",
    "memory": "shared memory of one machine",
    "checkpoint": "files of a shared folder",
}
KL = {"none": "none", "loss": "in the loss", "reward": "in the reward"}
LOGGERS = {
    "tensorboard": "TensorBoard",
    "wandb": "Weights & Biases",
    "mlflow": "MLflow",
    "none": "console only",
}

BASIC: tuple[FormField, ...] = (
    FormField(
        "model",
        "Model",
        "text",
        "Qwen/Qwen2.5-0.5B-Instruct",
        "a folder, or a name on the Hugging Face hub (actor_rollout_ref.model.path)",
    ),
    FormField(
        "train_files",
        "Training data",
        "lines",
        "$HOME/data/gsm8k/train.parquet",
        "parquet files in veRL's columns, one a line (data.train_files); one file or folder for SFT and DPO",
    ),
    FormField(
        "columns",
        "Columns",
        "text",
        "",
        "of the data; empty: messages for SFT, else PROMPT,ANSWER; prompt,chosen,rejected for DPO",
        optional=True,
        when={"algorithm": tuple(OFFLINE)},
    ),
    FormField(
        "val_files",
        "Validation data",
        "lines",
        "$HOME/data/gsm8k/test.parquet",
        "parquet files, one a line (data.val_files)",
    ),
    FormField(
        "algorithm",
        "Algorithm",
        "choice",
        "grpo",
        "GRPO to REINFORCE++ train on answers that the explorer samples (algorithm.adv_estimator)",
        choices=ALGORITHMS,
    ),
    FormField(
        "gpus",
        "GPUs",
        "whole",
        "8",
        "of explorer and trainer together; more than 8: a multiple of 8 (trainer.nnodes × n_gpus_per_node)",
    ),
    FormField(
        "prompt_length",
        "Prompt length",
        "whole",
        "512",
        "tokens; longer prompts are left out (data.max_prompt_length)",
    ),
    FormField("answer_length", "Answer length", "whole", "1024", "tokens (data.max_response_length)"),
    FormField("batch_size", "Batch size", "whole", "256", "prompts a step (data.train_batch_size)"),
    FormField(
        "group_size",
        "Group size",
        "whole",
        "8",
        "answers to each prompt; PPO needs no more than 1 (actor_rollout_ref.rollout.n)",
    ),
    FormField(
        "workflow",
        "Workflow",
        "choice",
        "single_turn_agent",
        "how an answer comes about (rollout.agent.default_agent_loop); Trinity's are in Expert",
        choices=WORKFLOWS,
    ),
    FormField(
        "tools",
        "Tools",
        "text",
        "",
        "the YAML of the agent's tools (rollout.multi_turn.tool_config_path)",
        optional=True,
        when={"workflow": ("tool_agent",)},
    ),
    FormField("reward", "Reward", "choice", "rule", "the source of an answer's score", choices=REWARDS),
    FormField(
        "reward_source",
        "Function or reward model",
        "text",
        "",
        "FILE.py:FUNCTION, or the reward model's folder (reward.custom_reward_function, reward.reward_model)",
        optional=True,
        when={"reward": ("function", "model")},
    ),
    FormField("epochs", "Epochs", "whole", "1", "passes over the training data (trainer.total_epochs)"),
)

_SPLIT = {"sharing": ("split",)}
SIDES: tuple[FormField, ...] = (
    FormField(
        "sharing",
        "Both sides",
        "choice",
        "turns",
        "explorer and trainer on the GPUs",
        choices=SHARING,
    ),
    FormField(
        "rollout_gpus",
        "Explorer's GPUs",
        "whole",
        "",
        "the rest is the trainer's; empty: half (explorer.rollout_model.engine_num × GPUs of an engine)",
        optional=True,
        when=_SPLIT,
    ),
    FormField(
        "tensor_parallel",
        "GPUs of an engine",
        "whole",
        "1",
        "over which vLLM splits the model; the explorer has as many engines as fit"
        " (rollout.tensor_model_parallel_size)",
    ),
    FormField("sync_style", "Style", "choice", "fixed", "synchronizer.sync_style", choices=STYLES),
    FormField(
        "sync_offset",
        "Steps ahead",
        "whole",
        "0",
        "steps that the explorer generates ahead; 0: it waits for each step's weights"
        " (synchronizer.sync_offset)",
        low=0,
        when=_SPLIT,
    ),
    FormField(
        "max_staleness",
        "Staleness, at most",
        "whole",
        "",
        "steps between the weights of an answer and those that it trains; empty: no limit"
        " (algorithm.sample_strategy)",
        low=0,
        optional=True,
        when={"sync_style": ("fully_async",)},
    ),
    FormField(
        "sync_interval", "Interval", "whole", "1", "steps between new weights (synchronizer.sync_interval)"
    ),
    FormField(
        "sync_method",
        "Method",
        "choice",
        "nccl",
        "the way of the weights into the engines (synchronizer.sync_method)",
        choices=METHODS,
    ),
)

MORE: tuple[FormField, ...] = (
    FormField("project", "Project", "text", "trinity-compat", "trainer.project_name"),
    FormField("name", "Name of the run", "text", "first-run", "trainer.experiment_name"),
    FormField(
        "mini_batch",
        "Mini-batch",
        "whole",
        "",
        "prompts of one update; empty: the batch size, one update a step (actor.ppo_mini_batch_size)",
        optional=True,
    ),
    FormField("learning_rate", "Learning rate", "number", "1e-6", "of the policy (actor.optim.lr)", low=0),
    FormField(
        "kl",
        "KL term",
        "choice",
        "loss",
        "distance from the first weights; without one no reference model is held (actor.use_kl_loss,"
        " algorithm.use_kl_in_reward)",
        choices=KL,
    ),
    FormField("kl_coef", "KL coefficient", "number", "0.001", "of that term", low=0),
    FormField(
        "tokens_per_gpu",
        "Tokens a GPU",
        "whole",
        "16384",
        "of a micro-batch, answers of all lengths packed; empty: micro-batches of a fixed size"
        " (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu)",
        optional=True,
    ),
    FormField(
        "micro_batch",
        "Micro-batch a GPU",
        "whole",
        "8",
        "answers, where Tokens a GPU is empty (ppo_micro_batch_size_per_gpu)",
    ),
    FormField(
        "engine_memory",
        "Engine's memory",
        "number",
        "0.6",
        "part of a GPU's memory that vLLM takes, at most 1 (rollout.gpu_memory_utilization)",
        low=0.01,
        high=1,
    ),
    FormField(
        "offload_reference",
        "Offload the reference model",
        "flag",
        "",
        "its weights stay in main memory (ref.fsdp_config.param_offload)",
    ),
    FormField(
        "logger", "Log to", "choice", "tensorboard", "beside the console (trainer.logger)", choices=LOGGERS
    ),
    FormField("save_every", "Save every", "whole", "20", "steps; 0: never (trainer.save_freq)", low=0),
    FormField("test_every", "Validate every", "whole", "5", "steps; 0: never (trainer.test_freq)", low=0),
    FormField("test_first", "Validate before training", "flag", "on", "trainer.val_before_train"),
    FormField(
        "settings",
        "Further settings",
        "lines",
        "",
        "any key of veRL as a launch writes it, key=value, one a line; they win over the fields above",
        optional=True,
    ),
)
_OF_SAMPLED = (
    *("val_files", "group_size", "workflow", "tools", "reward", "reward_source", "mini_batch", "kl"),
    *("engine_memory", "offload_reference", "test_every", "test_first", "settings"),
    *(each.name for each in SIDES),
)


def _of_sampled(fields: tuple[FormField, ...]) -> tuple[FormField, ...]:
    """Return the fields; those of launches that sample answers count with their algorithms alone."""
    when = {"algorithm": tuple(SAMPLED)}
    return tuple(
        replace(each, when={**each.when, **when}) if each.name in _OF_SAMPLED else each for each in fields
    )


BASIC, SIDES, MORE = map(_of_sampled, (BASIC, SIDES, MORE))
FIELDS: Mapping[str, FormField] = {each.name: each for each in (*BASIC, *SIDES, *MORE)}


def defaults() -> dict[str, str]:
    """Return a new form: field → text."""
    return {name: each.default for name, each in FIELDS.items()}
