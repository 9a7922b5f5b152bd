"""How many steps veRL's loop is given where Trinity's tasksets are trained on."""

import pytest
from omegaconf import OmegaConf


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "said", "steps", "loop"),
    [
        (18, 256, 15, None, 1, (1, 1)),  # all epochs together are one batch
        (300, 256, 15, None, 17, (17, 1)),
        (512, 256, 3, None, 6, (3, 2)),
        (512, 256, 3, 7, 7, (4, 2)),  # a number of steps stands, whatever the epochs are
        (18, 256, 1, 4, 4, (4, 1)),
    ],
)
def test_all_whole_batches_of_all_epochs_are_steps(rows, batch, epochs, said, steps, loop):
    from trinity_compat.trainer.step_count import placeholder_dataset

    trainer = {"total_epochs": epochs, "total_training_steps": said}
    config = OmegaConf.create({"data": {"train_batch_size": batch}, "trainer": trainer})
    OmegaConf.set_struct(config, True)
    places = placeholder_dataset(config, rows)
    assert config.trainer.total_training_steps == steps
    assert (config.trainer.total_epochs, len(places) // batch) == loop
    assert loop[0] * loop[1] >= steps


@pytest.mark.parametrize(("use_v1", "epochs"), [(False, 2), (True, 3)])
def test_an_epoch_has_as_many_steps_as_its_trainer_counts(use_v1, epochs):
    """v0 counts by its loader, whose batch a filter may draw; v1 by the train batch."""
    from trinity_compat.trainer.step_count import placeholder_dataset

    trainer = {"total_epochs": 3, "total_training_steps": None, "use_v1": use_v1}
    data = {"train_batch_size": 4, "gen_batch_size": 2}
    config = OmegaConf.create({"data": data, "trainer": trainer})
    rows = len(placeholder_dataset(config, 8))
    assert config.trainer.total_training_steps == 6
    assert config.trainer.total_epochs == epochs
    assert config.trainer.total_epochs * (rows // (4 if use_v1 else 2)) >= 6


@pytest.mark.parametrize(("said", "every"), [("after_each_epoch", 4), (3, 3), (-1, -1)])
def test_an_sft_launch_may_test_after_each_epoch(said, every):
    """veRL's SFT trainers take the word; its PPO trainer, which trains them here, compares it with 0."""
    from trinity_compat.trainer.step_count import set_length

    config = OmegaConf.create({"trainer": {"total_training_steps": None, "test_freq": said}})
    set_length(config, steps=8, steps_of_epoch=4)
    assert config.trainer.test_freq == every
