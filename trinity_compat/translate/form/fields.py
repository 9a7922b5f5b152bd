"""The fields of the form, each declared once: its label, help, choices, and a default that runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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


ALGORITHMS = {
    "grpo": "GRPO",
    "gae": "PPO (with a critic)",
    "rloo": "RLOO",
    "reinforce_plus_plus": "REINFORCE++",
}
GROUPED = ("grpo", "rloo")  # they compare the answers to one prompt
REWARDS = {
    "rule": "veRL's rule for the data's data_source",
    "function": "my function",
    "model": "a reward model",
}
KL = {"none": "none", "loss": "in the loss", "reward": "in the reward"}
LOGGERS = {
    "tensorboard": "TensorBoard",
    "wandb": "Weights & Biases",
    "mlflow": "MLflow",
    "none": "console only",
}

BASIC = (
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
        "parquet files in veRL's columns, one a line (data.train_files)",
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
        "the advantage's estimator (algorithm.adv_estimator)",
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
    FormField("reward", "Reward", "choice", "rule", "the source of an answer's score", choices=REWARDS),
    FormField(
        "reward_source",
        "Function or reward model",
        "text",
        "",
        "FILE.py:FUNCTION, or the reward model's folder; empty for the rule (reward.custom_reward_function,"
        " reward.reward_model)",
        optional=True,
    ),
    FormField("epochs", "Epochs", "whole", "1", "passes over the training data (trainer.total_epochs)"),
)

MORE = (
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
        "tensor_parallel",
        "GPUs of an engine",
        "whole",
        "1",
        "over which vLLM splits the model (rollout.tensor_model_parallel_size)",
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
FIELDS: Mapping[str, FormField] = {field.name: field for field in (*BASIC, *MORE)}


def defaults() -> dict[str, str]:
    """Return a new form: field → text."""
    return {name: field.default for name, field in FIELDS.items()}
