"""Tokenizer and data of a trainer."""

from __future__ import annotations

from typing import Any, Protocol

from omegaconf import DictConfig
from torch.utils.data import Dataset
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.config import omega_conf_to_dataclass

from trinity_compat.trainer.step_count import placeholder_dataset

TASK_NO = "trinity_task_no"


class NumberedRows(Dataset):
    """Validation set with the position of each row, by which stored answers are found."""

    def __init__(self, rows: Dataset) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, item: int) -> dict[str, object]:
        return {**self._rows[item], TASK_NO: item}


class TrainerData(Protocol):
    """Data, tokenizer and processor of a trainer."""

    tokenizer: Any
    processor: Any
    train: Dataset
    val: Dataset


class Datasets:
    """Tokenizer, processor and data, opened as veRL's task runner does."""

    def __init__(self, config: DictConfig) -> None:
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self.tokenizer, self.processor = model.tokenizer, model.processor
        self.train = self._open(config, train=True)
        if config.data.get("tasksets"):
            self.train = placeholder_dataset(config, len(self.train))
        self.val = NumberedRows(self._open(config, train=False))

    def _open(self, config: DictConfig, *, train: bool) -> Dataset:
        name = "train" if train else "val"
        return create_rl_dataset(
            config.data[f"{name}_files"],
            config.data,
            self.tokenizer,
            self.processor,
            is_train=train,
            max_samples=config.data.get(f"{name}_max_samples", -1),
        )
