"""How many places for steps veRL's loop finds in the dataloader, and in which order a checkpoint is written."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.runtime  # verl is imported along the way


@pytest.mark.parametrize(
    ("next_step", "total", "places"),
    [(1, 12, 5), (4, 12, 2), (6, 12, 5), (11, 12, 2), (12, 12, 1), (13, 12, 0), (14, 12, 0), (8, 100, 3)],
)
def test_an_epoch_of_five_steps_ends_with_the_run(next_step, total, places):
    """13 of 12: a run that was trained to its end is started again, and there is nothing left to do."""
    from trinity_compat.trainer.verl_v0 import StepPlaces

    config = OmegaConf.create({"data": {"train_batch_size": 2}})
    trainer = SimpleNamespace(global_steps=next_step, total_training_steps=total, config=config)
    assert len(list(StepPlaces(trainer, 5))) == places


def test_the_ledger_comes_first_and_the_marker_names_no_checkpoint_that_is_being_written(
    tmp_path, monkeypatch
):
    from trinity_compat.trainer import verl_v0

    seen = []
    marker = tmp_path / "latest_checkpointed_iteration.txt"
    (tmp_path / "global_step_4").mkdir()
    marker.write_text("4")
    monkeypatch.setattr(
        verl_v0.ray_trainer.RayPPOTrainer, "_save_checkpoint", lambda _: seen.append(marker.exists())
    )
    trainer = object.__new__(verl_v0.TrinityRayPPOTrainer)
    trainer.exchange = SimpleNamespace(commit=seen.append, position=lambda step: {"below": step})
    trainer.global_steps, trainer._directory = 4, tmp_path
    trainer._retention = SimpleNamespace(prune=lambda directory, step: seen.append("pruned"))
    trainer._save_checkpoint()
    assert seen == [4, False, "pruned"]
