"""veRL's datasets and rewards inside Trinity-RFT: a workflow, a reward function, a file reader.

Loaded by ``trinity run --config x.yaml --plugin-dir DIR``, where DIR is this folder. A configuration that
``trinity-compat translate`` wrote names ``verl_workflow`` and ``verl_reward``. Upstream's own workflows
take a question column and an answer column; veRL's rows hold a chat (``prompt``), a ``data_source``, the
truth in ``reward_model.ground_truth`` and ``extra_info``, and their scoring is veRL's.

``workflow_args`` of a taskset: ``files``, ``filter_overlong_prompts``, ``max_prompt_length``,
``truncation``, ``tokenizer``, ``trust_remote_code``, ``apply_chat_template_kwargs``, ``max_samples``.
``reward_fn_args``: ``reward_fn_key``, ``reward_manager``, ``custom_reward_function`` (path, name,
reward_kwargs), ``max_resp_len``, ``overlong_buffer_cfg``, ``sandbox_fusion``. All may be left out.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict
from unittest import mock

from omegaconf import OmegaConf
from trinity.buffer.reader import file_reader
from trinity.common.experience import Experience
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, Task, Workflow

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase
    from trinity.common.config import TasksetConfig
    from trinity.common.models.model import ModelWrapper
    from verl import DataProto

Score = Callable[..., object]
Row = Mapping[str, object]


class Custom(TypedDict, total=False):
    """veRL's ``custom_reward_function``."""

    path: str
    name: str
    reward_kwargs: Row


class Sandbox(TypedDict, total=False):
    """veRL's ``sandbox_fusion``."""

    url: str
    max_concurrent: int
    memory_limit_mb: int


class VerlReward(RewardFn):
    """Scores a group of responses with veRL's reward manager and scoring function."""

    def __init__(
        self,
        reward_fn_key: str = "data_source",
        reward_manager: str = "naive",
        custom_reward_function: Custom | None = None,
        max_resp_len: int | None = None,
        overlong_buffer_cfg: Row | None = None,
        sandbox_fusion: Sandbox | None = None,
        **unknown: object,
    ) -> None:
        if unknown:
            raise ValueError(f"verl_reward has no argument {', '.join(unknown)}")
        self._key = reward_fn_key
        self._name = reward_manager
        self._score = _scoring(custom_reward_function or {}, sandbox_fusion or {})
        self._more: dict[str, object] = {}
        if reward_manager == "dapo" and overlong_buffer_cfg:
            overlong = OmegaConf.create(dict(overlong_buffer_cfg))
            self._more = {"max_resp_len": max_resp_len, "overlong_buffer_cfg": overlong}

    def __call__(self, **arguments: object) -> dict[str, float]:
        """Raise TypeError: a row is needed."""
        raise TypeError("verl_reward needs veRL's row: use it with default_workflow_type: verl_workflow")

    def score(
        self, experiences: Sequence[Experience], row: Row, tokenizer: PreTrainedTokenizerBase
    ) -> list[dict[str, object]]:
        """Return per experience {"reward": float, and what the scoring function reports besides}.

        All experiences answer the same ``row``. Raises KeyError with the column that the row lacks.
        """
        from verl.workers.reward_manager import get_reward_manager_cls

        for column in ("reward_model", self._key):
            if column not in row:
                raise KeyError(f"veRL's scoring needs the column {column!r}; the row has {sorted(row)}")
        manager = get_reward_manager_cls(self._name)(
            tokenizer=tokenizer,
            num_examine=0,
            compute_score=self._score,
            reward_fn_key=self._key,
            **self._more,
        )
        result = manager(_batch(experiences, row, tokenizer), return_dict=True)
        rewards = result["reward_tensor"].sum(-1).tolist()
        extra = result.get("reward_extra_info", {})
        return [
            {**{name: values[i] for name, values in extra.items() if i < len(values)}, "reward": reward}
            for i, reward in enumerate(rewards)
        ]


def _scoring(custom: Custom, sandbox: Sandbox) -> Score:
    """Choose as veRL does: the custom function, else default_compute_score, with a sandbox if set."""
    if custom.get("path"):
        path = str(custom["path"])
        name = str(custom.get("name") or "compute_score")
        spec = importlib.util.spec_from_file_location("verl_custom_reward", path)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"custom_reward_function.path: {path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function: Score | None = getattr(module, name, None)
        if function is None:
            raise AttributeError(f"custom_reward_function: {path} has no function {name}")
        return functools.partial(function, **dict(custom.get("reward_kwargs") or {}))
    from verl.utils.reward_score import default_compute_score

    if not sandbox.get("url"):
        return default_compute_score
    import threading

    return functools.partial(
        default_compute_score,
        sandbox_fusion_url=sandbox["url"],
        concurrent_semaphore=threading.Semaphore(int(sandbox.get("max_concurrent", 64))),
        memory_limit_mb=int(sandbox.get("memory_limit_mb", 1024)),
    )


def _batch(experiences: Sequence[Experience], row: Row, tokenizer: PreTrainedTokenizerBase) -> DataProto:
    """Convert a group to the input of veRL's reward managers.

    prompts (n, p) as they are, responses (n, longest) padded on the right, attention_mask (n, p + longest).
    """
    import numpy as np
    import torch
    from verl import DataProto

    prompts = torch.stack([e.tokens[: e.prompt_length] for e in experiences]).long()
    answers = [e.tokens[e.prompt_length :].long() for e in experiences]
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    responses = torch.nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(answer) for answer in answers]).unsqueeze(1)
    answered = torch.arange(responses.shape[1]).unsqueeze(0) < lengths
    mask = torch.cat([torch.ones_like(prompts), answered.long()], dim=1)
    rows: dict[str, np.ndarray] = {
        name: np.empty(len(answers), dtype=object) for name in {**row, "extra_info": None}
    }
    for name, column in rows.items():
        for i in range(len(answers)):  # managers write into extra_info: one copy each
            value = row.get(name)
            column[i] = dict(value if isinstance(value, Mapping) else {}) if name == "extra_info" else value
    return DataProto.from_dict(
        tensors={"prompts": prompts, "responses": responses, "attention_mask": mask}, non_tensors=rows
    )


class VerlWorkflow(Workflow):
    """Sends a row's chat to the model unchanged and scores the answers as veRL does."""

    can_reset = True
    can_repeat = True
    is_async = True

    def __init__(
        self, *, task: Task, model: ModelWrapper, auxiliary_models: list[ModelWrapper] | None = None
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.repeat_times = task.repeat_times or 1
        self.reset(task)

    def reset(self, task: Task) -> None:
        """Prepare for a task."""
        self.task = task
        self._row = dict(task.raw_task or {})
        row = self._row
        key = task.format_args.prompt_key
        if key not in row:
            raise KeyError(f"format.prompt_key: the row has no column {key!r}, only {sorted(row)}")
        messages = row[key]
        if (
            isinstance(messages, str)
            or not isinstance(messages, Iterable)
            or not all(isinstance(message, Mapping) for message in messages)
        ):
            raise TypeError(
                f"column {key!r} holds {type(messages).__name__}, veRL's rows hold a list of chat messages"
            )
        if any(row.get(column) for column in ("images", "videos", "audios")):
            raise NotImplementedError("verl_workflow takes text; the row has images, videos or audio")
        self._messages = [dict(message) for message in messages]
        reward = task.reward_fn or VerlReward
        if not issubclass(reward, VerlReward):
            raise TypeError(f"verl_workflow scores with verl_reward, not with {reward.__name__}")
        self._reward = reward(**task.reward_fn_args)

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Set the number of answers and the first run's number."""
        self.repeat_times = repeat_times
        self.run_id_base = run_id_base

    async def run_async(self) -> list[Experience]:
        """Generate and score the answers."""
        arguments = {**asdict(self.task.rollout_args), "n": self.repeat_times}
        experiences = list(await self.model.chat_async(self._messages, **arguments))
        # In a thread: some of veRL's managers run an event loop of their own.
        path = self.task.workflow_args.get("tokenizer") or self.model.model_path
        tokenizer = _load_tokenizer(path, bool(self.task.workflow_args.get("trust_remote_code")))
        scores = await asyncio.to_thread(self._reward.score, experiences, self._row, tokenizer)
        for i, (experience, score) in enumerate(zip(experiences, scores, strict=True)):
            experience.reward = float(score["reward"])
            experience.eid.run = i + self.run_id_base
            numbers = {name: float(value) for name, value in score.items() if isinstance(value, (int, float))}
            experience.metrics = {**(experience.metrics or {}), **numbers}
        return experiences


@functools.lru_cache(maxsize=4)
def _load_tokenizer(path: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    from verl.utils import hf_tokenizer

    return hf_tokenizer(path, trust_remote_code=trust_remote_code)


def rows_of(config: TasksetConfig) -> Dataset:
    """Read the rows of a taskset as veRL's dataset reads and filters them (a datasets.Dataset)."""
    from verl.utils.dataset.rl_dataset import RLHFDataset

    arguments = dict(config.workflow_args)
    filtering = bool(arguments.get("filter_overlong_prompts", False))
    tokenizer = None
    if filtering:
        if not arguments.get("tokenizer"):
            raise ValueError("filter_overlong_prompts needs workflow_args.tokenizer: the model's path")
        tokenizer = _load_tokenizer(arguments["tokenizer"], bool(arguments.get("trust_remote_code")))
    names = ("max_prompt_length", "truncation", "apply_chat_template_kwargs")
    settings = {name: arguments[name] for name in names if arguments.get(name) is not None}
    return RLHFDataset(
        data_files=list(arguments.get("files") or [config.path]),
        tokenizer=tokenizer,
        config=OmegaConf.create(
            {**settings, "prompt_key": config.format.prompt_key, "filter_overlong_prompts": filtering}
        ),
        max_samples=int(arguments.get("max_samples", -1)),
    ).dataframe


class VerlTaskReader(file_reader.TaskFileReader):
    """Upstream's reader of task files, which also reads the files that a veRL launch names.

    Upstream hands ``path`` to ``datasets.load_dataset``: a folder, of which every file with the split in
    its name is read. Replaces trinity.buffer.reader.file_reader.TaskFileReader (0.4.1, 0.6.0): both call
    that module's load_dataset once, while they are made. Tasksets that name no files, or another
    workflow, go to upstream's own code.
    """

    def __init__(self, config: TasksetConfig) -> None:
        suffixes = (".parquet", ".json", ".jsonl")
        names_files = bool(config.workflow_args.get("files")) or str(config.path).endswith(suffixes)
        if config.default_workflow_type == "verl_workflow" and names_files:
            rows = rows_of(config)
            with mock.patch.object(file_reader, "load_dataset", lambda *args, **kwargs: rows):
                super().__init__(config)
        else:
            super().__init__(config)


WORKFLOWS.register_module("verl_workflow", VerlWorkflow, force=True)
REWARD_FUNCTIONS.register_module("verl_reward", VerlReward, force=True)
file_reader.TaskFileReader = VerlTaskReader
