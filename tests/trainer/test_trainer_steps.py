"""How many places for steps veRL's loop finds in the dataloader; in which order a checkpoint is written."""

import shutil
from types import SimpleNamespace

import pytest
from checkpoint_files import saved
from omegaconf import OmegaConf

from trinity_compat.common.errors import UserError
from trinity_compat.trainer.checkpoints import HeldMarker

pytestmark = pytest.mark.verl  # verl is imported along the way


@pytest.mark.parametrize(
    ("next_step", "total", "places"),
    [(1, 12, 5), (4, 12, 2), (6, 12, 5), (11, 12, 2), (12, 12, 1), (13, 12, 0), (14, 12, 0), (8, 100, 3)],
)
def test_an_epoch_of_five_steps_ends_with_the_run(next_step, total, places):
    """13 of 12: a run that was trained to its end is started again, and there is nothing left to do."""
    from trinity_compat.trainer.verl_v0.adapter import PlaceholderDataLoader

    config = OmegaConf.create({"data": {"train_batch_size": 2}})
    trainer = SimpleNamespace(global_steps=next_step, total_training_steps=total, config=config)
    assert len(list(PlaceholderDataLoader(trainer, 5))) == places


def adapters():
    """Each adapter's trainer and the trainer of veRL's under it."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from trinity_compat.trainer.verl_v0.adapter import TrinityRayPPOTrainer
    from trinity_compat.trainer.verl_v1.adapter import TrinityPPOTrainer

    return {"v0": (TrinityRayPPOTrainer, RayPPOTrainer), "v1": (TrinityPPOTrainer, PPOTrainerSync)}


@pytest.fixture(params=["v0", "v1"])
def ours_and_stock(request):
    return adapters()[request.param]


def saving(cls, tmp_path, step):
    """A trainer as far as saving looks at it; it has no model."""
    trainer = object.__new__(cls)
    trainer.config = OmegaConf.create({
        "trainer": {"default_local_dir": str(tmp_path), "default_hdfs_dir": None},
        "actor_rollout_ref": {"actor": {"checkpoint": {}}},
    })  # fmt: skip
    trainer.global_steps, trainer.use_critic = step, False
    trainer.actor_rollout_wg = SimpleNamespace(save_checkpoint=lambda *_, **__: None)
    trainer.train_dataloader = SimpleNamespace(state_dict=dict)
    trainer.trainer_mode, trainer.checkpoint_callback = "sync", SimpleNamespace(on_save=lambda **_: None)
    return trainer


def test_stock_verl_lets_a_checkpoint_count_before_its_metrics_are_logged(tmp_path, ours_and_stock):
    saving(ours_and_stock[1], tmp_path, 4)._save_checkpoint()
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "4"


def test_ledger_then_checkpoint_then_metrics_then_marker_then_the_older_ones_go(
    tmp_path, ours_and_stock, monkeypatch
):
    """The marker names no checkpoint that is being written over: here step 4, of a branch left."""
    monkeypatch.setattr("transfer_queue.kv_list", dict)  # v1 publishes only after an empty TransferQueue
    marker = tmp_path / "latest_checkpointed_iteration.txt"
    (tmp_path / "global_step_4").mkdir()
    marker.write_text("4")
    seen = []

    def see(what):
        seen.append((what, marker.read_text() if marker.exists() else None))

    trainer = saving(ours_and_stock[0], tmp_path, 4)
    trainer._directory, trainer._saved = tmp_path, 0
    trainer._marker = HeldMarker(tmp_path)
    trainer._retention = SimpleNamespace(prune=lambda directory, step: see(f"older than {step} go"))
    trainer.exchange = SimpleNamespace(
        commit=lambda step: see(f"ledger of {step}"),
        position=lambda step: {"below": step},
        log=lambda step, metrics: see(f"metrics of {step}"),
    )
    trainer._save_checkpoint()
    assert (tmp_path / "global_step_4" / "data.pt").exists()
    trainer._log(4, {})
    trainer._log(5, {})
    assert seen == [
        ("ledger of 4", "4"),
        ("metrics of 4", None),
        ("older than 4 go", "4"),
        ("metrics of 5", "4"),
    ]


class Planted:
    """Pickled, it runs code when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def loading(cls, tmp_path):
    """A trainer as far as loading looks at it, and a checkpoint of step 4 whose data.pt holds code."""
    import torch

    trainer = saving(cls, tmp_path, 4)
    trainer.config.trainer.update({"resume_mode": "auto", "del_local_ckpt_after_load": False})
    trainer.actor_rollout_wg = SimpleNamespace(load_checkpoint=lambda *_, **__: None)
    trainer.train_dataloader = type("Loader", (), {"__len__": lambda self: 100, "load_state_dict": None})()
    trainer.train_dataloader.load_state_dict = lambda state: None
    saved(tmp_path, 4)
    torch.save(Planted(tmp_path / "ran"), tmp_path / "global_step_4" / "data.pt")
    return trainer


def test_stock_verl_unpickles_whatever_lies_in_data_pt(tmp_path, ours_and_stock):
    loading(ours_and_stock[1], tmp_path)._load_checkpoint()
    assert (tmp_path / "ran").exists()


def test_a_resume_does_not_open_it(tmp_path, ours_and_stock):
    trainer, resumed = loading(ours_and_stock[0], tmp_path), []
    trainer._directory = tmp_path
    trainer.exchange = SimpleNamespace(resumed=lambda step, *_, **__: resumed.append(step))
    trainer._load_checkpoint()
    assert resumed == [4]
    assert not (tmp_path / "ran").exists()


def test_stock_verl_starts_from_step_0_over_older_checkpoints(tmp_path, ours_and_stock):
    trainer = loading(ours_and_stock[1], tmp_path)
    saved(tmp_path, 2, 6)
    shutil.rmtree(tmp_path / "global_step_6")
    trainer.actor_rollout_wg.load_checkpoint = lambda *_, **__: pytest.fail("a checkpoint is loaded")
    trainer._load_checkpoint()


@pytest.mark.parametrize("lost", ["global_step_6", "global_step_6/actor"])
def test_a_trainer_that_is_started_again_does_not(tmp_path, ours_and_stock, lost):
    trainer = loading(ours_and_stock[0], tmp_path)
    saved(tmp_path, 6)
    shutil.rmtree(tmp_path / lost)
    trainer._directory = tmp_path
    with pytest.raises(UserError, match=rf"{lost} is missing") as told:
        trainer._load_checkpoint()
    assert f"trainer.resume_from_path={tmp_path}/global_step_4" in told.value.hint
