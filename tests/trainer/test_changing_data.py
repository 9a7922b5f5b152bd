"""The trainer's side of a dataset whose ``on_batch_end`` changes it."""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from trinity_compat.buffer import HistoryChanged, open_buffer
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import SyncSpec

pytestmark = pytest.mark.verl  # verl is imported along the way


class Growing(list):
    def on_batch_end(self, batch):
        self.extend(batch.batch["more"][:, 0].tolist())


def batch_of(*more):
    from verl import DataProto

    return DataProto.from_dict(tensors={"more": torch.tensor(more)[:, None]})


@pytest.fixture
def buffer(tmp_path):
    found = open_buffer(f"sqlite:///{tmp_path}/x.db")
    yield found
    found.close()


def data_of(buffer, rows, *, epochs=3):
    from trinity_compat.trainer import dynamic_dataset

    verl = {"trainer": {"total_epochs": epochs}, "data": {"train_batch_size": 2}}
    spec = SimpleNamespace(sync=SyncSpec(), verl=verl, replay=None)
    return dynamic_dataset.kept(rows, spec, buffer)


def walked(data, *, done=0, total=100, by=(1, 2)):
    """Steps as ``fit`` goes through them, by epoch. Each adds rows."""
    from trinity_compat.trainer.verl_v0.adapter import ChangingPlaces

    config = OmegaConf.create({"data": {"train_batch_size": 2}})
    trainer = SimpleNamespace(global_steps=done + 1, total_training_steps=total, config=config)
    places = ChangingPlaces(trainer, data)
    current = done // len(places)  # fit's own arithmetic
    found = []
    for _ in range(current, 3):
        found.append([])
        for _ in places:
            found[-1].append(trainer.global_steps)
            data.keep(batch_of(*by))
            trainer.global_steps += 1
            if trainer.global_steps > total:
                return found
            data.on_batch_end(batch=batch_of(*by))
    return found


def test_an_epoch_is_as_long_as_the_data_are_when_it_begins(buffer):
    data = data_of(buffer, Growing([0] * 5))
    assert walked(data, by=(1, 2)) == [[1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13, 14]]
    assert len(data) == 5 + 2 * 14
    assert data[-1] == 2


def test_a_run_ends_with_its_last_step_whatever_the_length(buffer):
    assert walked(data_of(buffer, Growing([0] * 5)), total=4) == [[1, 2], [3, 4]]


def test_one_that_goes_on_replays_what_was_kept(buffer):
    walked(data_of(buffer, Growing([0] * 5)), total=5)
    anew = data_of(buffer, Growing([0] * 5))
    anew.resumed(4)
    assert list(anew._data.dataset) == [0] * 5 + [1, 2] * 4
    assert walked(anew, done=4, total=8) == [[], [5, 6], [7, 8]]


def test_without_the_batches_it_does_not_go_on(buffer):
    data = data_of(buffer, Growing([0] * 5))
    data.begins(1)
    data.keep(batch_of(1))
    with pytest.raises(UserError, match="lacks the batch of step 2"):
        data_of(buffer, Growing([0] * 5)).resumed(3)


def test_a_trainer_that_another_has_taken_over_from_keeps_nothing(buffer):
    old, new = data_of(buffer, Growing([0])), data_of(buffer, Growing([0]))
    old.resumed(0)
    buffer.reconcile(step=0)
    new.resumed(0)
    for data in (new, old):
        data.begins(1)
    new.keep(batch_of(3))
    with pytest.raises(HistoryChanged, match="a resume has started history 2"):
        old.keep(batch_of(4))
    new.on_batch_end(batch=batch_of(3))
    assert list(new._data.dataset) == [0, 3]


def test_a_step_that_updated_nothing_is_kept_when_it_ends(buffer):
    data = data_of(buffer, Growing([0] * 5))
    data.begins(1)
    data.on_batch_end(batch=batch_of(4, 5))
    assert list(data._data.dataset) == [0] * 5 + [4, 5]
    assert buffer.kept_batch(1)


def test_other_data_stay_as_they_are(buffer):
    rows = [1, 2]
    assert data_of(buffer, rows) is rows


def test_the_batch_is_kept_with_the_update_and_a_warm_up_s_with_the_critic_s(monkeypatch):
    from trinity_compat.trainer.verl_v0 import adapter

    stock = adapter.ray_trainer.RayPPOTrainer
    done = []
    answer = SimpleNamespace(meta_info={"metrics": {}})
    monkeypatch.setattr(stock, "_update_actor", lambda self, batch: done.append("actor") or answer)
    monkeypatch.setattr(stock, "_update_critic", lambda self, batch: done.append("critic") or answer)
    monkeypatch.setattr(adapter, "with_advantages", lambda batch, config: (batch, {}))
    monkeypatch.setattr(adapter, "reads_entropy", lambda config: False)
    trainer = object.__new__(adapter.TrinityRayPPOTrainer)
    trainer.config = OmegaConf.create({"algorithm": {}, "trainer": {"critic_warmup": 2}})
    trainer.changing = SimpleNamespace(keep=done.append)
    for trainer.global_steps in (1, 2):
        trainer._update_critic("batch")
    trainer._update_actor("batch")
    assert done == ["critic", "batch", "critic", "actor", "batch"]
