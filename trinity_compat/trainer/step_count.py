"""Number of steps of a run whose steps may span two epochs; veRL counts each epoch by itself."""

from __future__ import annotations

from omegaconf import DictConfig, open_dict
from torch.utils.data import Dataset


class PlaceholderDataset(Dataset):
    """Dataset of empty rows, by which veRL's dataloader counts steps without the data."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, item: int) -> dict[str, object]:
        return {}


EACH_EPOCH = "after_each_epoch"  # veRL's word in its SFT trainers (trainer/sft_trainer.py, 0.9.1)


def set_length(config: DictConfig, steps: int, steps_of_epoch: int) -> None:
    """Set enough epochs for veRL's loop; a configured number of steps stays.

    A ``test_freq`` of an epoch becomes its steps: veRL's PPO trainer counts steps only.
    """
    with open_dict(config):
        if config.trainer.get("test_freq") == EACH_EPOCH:
            config.trainer.test_freq = steps_of_epoch
        config.trainer.total_training_steps = total = config.trainer.total_training_steps or steps
        config.trainer.total_epochs = -(-total // steps_of_epoch)


def placeholder_dataset(config: DictConfig, rows: int) -> PlaceholderDataset:
    """Replacement for the ``rows`` of Trinity's tasksets. Changes ``config``.

    Such a run has as many steps as all epochs together have whole batches (trinity-rft 0.6.0,
    buffer/task_scheduler.py).
    """
    batch = int(config.data.train_batch_size)
    # v0 counts an epoch's steps by its loader, v1 by the train batch (trainer_base.py: _init_dataloader).
    loaded = batch if config.trainer.get("use_v1") else int(config.data.get("gen_batch_size") or batch)
    set_length(config, rows * int(config.trainer.total_epochs) // batch, max(1, rows // loaded))
    return PlaceholderDataset(max(rows, loaded))
