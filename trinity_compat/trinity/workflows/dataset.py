"""A run's tasksets as veRL's dataset: ``data.custom_cls`` of a run whose YAML names a workflow."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import Dataset

from trinity_compat.common.errors import UserError
from trinity_compat.common.paths import from_home
from trinity_compat.trinity.workflows.conversation import rendered
from trinity_compat.trinity.workflows.prompts import Prompt, Row
from trinity_compat.trinity.workflows.registry import WANTS_NO_TRUTH, check_reward, check_workflow
from trinity_compat.trinity.workflows.tasksets import AGENT, PLUGIN, Taskset, referred

_log = logging.getLogger(__name__)

_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}


class TasksetRows(Dataset[dict[str, Any]]):
    """Rows of all tasksets, one after the other, with veRL's fields.

    These are raw_prompt, prompt_text, data_source, reward_model and extra_info.
    """

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any,
        config: Any,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        """Open the tasksets, with the arguments of veRL's ``create_rl_dataset``.

        Raises UserError for files, columns and rows without a prompt.
        """
        names = [data_files] if isinstance(data_files, str) else list(data_files)
        section = _plain(config["workflows"])
        limit = int(config["max_prompt_length"])
        parts = [list(_rows(name, referred(name, section), tokenizer, limit)) for name in names]
        if max_samples >= 0:  # the first ones of all tasksets together
            begins = accumulate((len(part) for part in parts), initial=0)
            parts = [part[: max(0, max_samples - begin)] for part, begin in zip(parts, begins, strict=False)]
        self.sizes = [len(part) for part in parts]  # rows of each taskset
        # By them training draws the rows (translate/hand_written_yaml.py).
        drawn = config.get("tasksets") or {}
        selectors = {name: _plain(each).get("selector", {}) for name, each in drawn.items()}
        self.columns = [
            _columns(selectors.get(name, {}), referred(name, section), part)
            for name, part in zip(names, parts, strict=True)
        ]
        self._rows = [row for part in parts for row in part]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # veRL batches tensors: an empty one replaces them, as in its own dataset.
        return {**self._rows[index], "dummy_tensor": torch.tensor([0], dtype=torch.uint8)}


def _columns(
    selector: Mapping[str, Any], taskset: Taskset, part: Sequence[Mapping[str, Any]]
) -> dict[str, list[Any]]:
    """Values of the remaining rows ``part`` of a taskset that its selector reads."""
    if not selector.get("feature_keys"):
        return {}
    from trinity_compat.trinity.selectors import columns_of

    found = columns_of(selector, opened(taskset), taskset.path)
    return {key: [values[row["index"]] for row in part] for key, values in found.items()}


def _for_plugin(name: str, taskset: Taskset) -> Iterator[dict[str, Any]]:
    """Rows unchanged, for a workflow class that reads what it needs."""
    for index, row in enumerate(opened(taskset)):
        question, truth = row.get(taskset.prompt_key), row.get(taskset.response_key)
        yield {
            "raw_prompt": [{"role": "user", "content": str(question or "")}],
            "raw_task": dict(row),
            "taskset": name,
            "agent_name": PLUGIN,
            "data_source": taskset.name,
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"index": index},
            "index": index,
        }


def _rows(name: str, taskset: Taskset, tokenizer: Any, limit: int) -> Iterator[dict[str, Any]]:
    """Rows whose prompt has at most ``limit`` tokens; all, where the taskset keeps long ones."""
    if taskset.plugin:
        yield from _for_plugin(name, taskset)
        return
    dropped = 0
    for index, row in enumerate(opened(taskset)):
        prompt, truth = prompt_of(taskset, row)
        text = prompt.text
        if text is None:
            text = rendered(tokenizer, prompt.messages, taskset.chat_template, taskset.enable_thinking)
        if taskset.drop_overlong and len(tokenizer(text).input_ids) > limit:
            dropped += 1
            continue
        reward = {"name": prompt.reward, "args": dict(taskset.reward_fn_args), "about": dict(prompt.about)}
        yield {
            "raw_prompt": prompt.messages,
            "prompt_text": text,
            "agent_name": AGENT,
            "data_source": taskset.name,
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"index": index, "reward_fn": reward},
            "index": index,
        }
    if dropped:
        name = taskset.name
        _log.warning("%s: %d prompts of more than %d tokens are left out", name, dropped, limit)


def prompt_of(taskset: Taskset, row: Row) -> tuple[Prompt, str]:
    """Prompt of a row, and its truth. Raises UserError with the column at fault."""
    ask = check_workflow(_named(taskset, row, "workflow_key") or taskset.workflow, taskset.place)
    reward = _named(taskset, row, "reward_fn_key") or taskset.reward
    prompt = ask(taskset, _text(taskset, row, taskset.prompt_key, "prompt_key"), reward)
    check_reward(prompt.reward, taskset.place)
    if prompt.reward in WANTS_NO_TRUTH:
        return prompt, str(row.get(taskset.response_key) or "")
    return prompt, _text(taskset, row, taskset.response_key, "response_key")


def _named(taskset: Taskset, row: Row, key: str) -> str | None:
    """A row may name its own workflow or reward."""
    column = taskset.text(key)
    found = row.get(column) if column else None
    return str(found) if found else None


def _text(taskset: Taskset, row: Row, column: str, key: str) -> str:
    found = row.get(column)
    if isinstance(found, str):
        return found
    where = f"{taskset.place}: the column {column!r} (format.{key})"
    if column not in row:
        raise UserError(f"{where} is not in {taskset.path}; it has {', '.join(row)}")
    hint = "name a column of texts" if key == "response_key" else None
    if key == "prompt_key":
        hint = "veRL's rows, whose prompt is a chat, are read with default_workflow_type: verl_workflow"
    raise UserError(f"{where} of {taskset.path} holds a {type(found).__name__}, not a text", hint=hint)


def opened(taskset: Taskset) -> Any:
    """Rows as dicts, of a file, or of a folder or hub name as upstream passes it to datasets.

    Raises UserError.
    """
    import datasets

    if taskset.storage == "sql":
        from trinity_compat.trinity.task_tables import table_rows

        return table_rows(taskset.path, taskset.name, taskset.place)
    path = from_home(taskset.path)
    try:
        if kind := _FORMATS.get(path.suffix):
            return datasets.load_dataset(kind, data_files=str(path), split="train")
        name = str(path) if path.exists() else taskset.path
        return datasets.load_dataset(name, name=taskset.subset, split=taskset.split)
    except (OSError, ValueError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{taskset.place}.path={taskset.path} cannot be read: {text}") from error


def _plain(section: Any) -> Mapping[str, Any]:
    from omegaconf import OmegaConf

    found = OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section
    return dict(found)
