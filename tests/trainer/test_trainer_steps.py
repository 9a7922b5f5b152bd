"""How many places for steps veRL's loop finds in the dataloader, from where it stands."""

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
