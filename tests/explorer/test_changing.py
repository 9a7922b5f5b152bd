"""Tasks of a dataset whose ``on_batch_end`` changes it: those that veRL's loop and loader would draw."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from explorer_job import BATCH, FakeMaker, job, publish
from omegaconf import OmegaConf
from test_loop import Run, ready

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.batch_codec import encode
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.data.dynamic_dataset import ChangingStream, followed
from trinity_compat.explorer.data.tasks import TaskOrder, TaskStream, draws_of
from trinity_compat.job.dynamic_dataset import Replayed
from trinity_compat.job.run_spec import SyncSpec


class Growing:
    """Each batch changes all rows and adds as many as its number says (or takes them away)."""

    def __init__(self, rows=7, by=(3, 0, -2, 1)):
        self.names, self.by, self.seen = [f"{i}" for i in range(rows)], by, []

    def __len__(self):
        return len(self.names)

    def __getitem__(self, item):
        return {"name": self.names[item]}

    def on_batch_end(self, batch):
        step = int(batch.batch["step"][0])
        self.seen.append(step)
        self.names = [f"{name}.{step}" for name in self.names]
        more = self.by[(step - 1) % len(self.by)]
        self.names = self.names[:more] if more < 0 else [*self.names, *(f"new{step}{i}" for i in range(more))]


def batch_of(step):
    from verl import DataProto

    names = np.array(["a", "b"], dtype=object)
    tensors = {"step": torch.tensor([step, step])}
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": names})


def verl_tasks(make, size, *, workers, epochs, steps, seed=3, shuffle=True):
    """The rows of each step as veRL's ``fit`` goes through them (trainer/ppo/ray_trainer.py, 0.9.1)."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.utils import create_rl_sampler

    data = make()
    sampler = create_rl_sampler(OmegaConf.create({"shuffle": shuffle, "seed": seed}), data)
    loader = StatefulDataLoader(
        data, batch_size=size, num_workers=workers, drop_last=True, sampler=sampler, collate_fn=list
    )
    made = []
    for _ in range(epochs):
        for rows in loader:
            made.append([row["name"] for row in rows])
            if len(made) == steps:
                return made
            data.on_batch_end(batch=batch_of(len(made)))
    return made


@pytest.fixture
def buffer(tmp_path):
    found = open_buffer(f"sqlite:///{tmp_path}/x.db")
    yield found
    found.close()


def stream_of(make, buffer, size, *, workers=0, epochs=4, seed=3, shuffle=True, sync=None):
    spec = SimpleNamespace(verl={"trainer": {"total_epochs": epochs}}, sync=sync or SyncSpec())
    data = make()
    order = TaskOrder(len(data), size, shuffle, seed, draws_of({"dataloader_num_workers": workers}))
    return ChangingStream(order, Replayed(data, make, buffer), spec)


def tasks_of(stream, step):
    size = stream.order.batch_size
    return [stream.task(no)["name"] for no in range((step - 1) * size, step * size)]


def shrinking():
    return Growing(9, (-1, 0, -1))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("make", "workers"), [(Growing, 0), (Growing, 2), (shrinking, 2)], ids=["alone", "workers", "shrinks"]
)
def test_the_tasks_are_verls_over_several_epochs(buffer, make, workers, shuffle):
    steps = 14
    expected = verl_tasks(make, 2, workers=workers, epochs=4, steps=steps, shuffle=shuffle)
    stream = stream_of(make, buffer, 2, workers=workers, shuffle=shuffle)
    for step, names in enumerate(expected, 1):
        assert stream.has(step)
        assert tasks_of(stream, step) == names, step
        buffer.keep_batch(step, encode(batch_of(step))[0])
    if len(expected) < steps:
        assert not stream.has(len(expected) + 1)


def test_a_batch_that_is_not_there_is_waited_for_and_none_is_skipped(buffer):
    stream = stream_of(Growing, buffer, 2)
    assert stream.has(1)
    assert not stream.has(2)
    buffer.keep_batch(2, encode(batch_of(2))[0])
    assert not stream.has(3)
    buffer.keep_batch(1, encode(batch_of(1))[0])
    assert stream.has(3)
    assert stream.task(4)["name"].endswith((".1.2", "new10.2", "new11.2", "new12.2"))


def test_a_batch_that_is_damaged_is_named_with_its_step(buffer):
    stream = stream_of(Growing, buffer, 2)
    buffer.keep_batch(1, encode(batch_of(1))[0])
    buffer.keep_batch(2, encode(batch_of(2))[0][:-9])
    with pytest.raises(RunError, match=r"the buffer's batch of step 2, .* is damaged \(BadZipFile") as e:
        stream.has(3)
    assert "before step 2" in e.value.hint


def test_an_earlier_step_is_made_again_of_the_data_that_it_saw(buffer):
    stream = stream_of(Growing, buffer, 2)
    first = {}
    for step in range(1, 8):
        assert stream.has(step)
        first[step] = tasks_of(stream, step)
        buffer.keep_batch(step, encode(batch_of(step))[0])
    for step in (2, 7, 5):
        assert stream.has(step)
        assert tasks_of(stream, step) == first[step]
    anew = stream_of(Growing, buffer, 2)
    assert anew.has(6)
    assert tasks_of(anew, 6) == first[6]


def test_batches_that_a_resume_took_back_do_not_count(buffer):
    stream = stream_of(Growing, buffer, 2)
    for step in (1, 2, 3):
        buffer.keep_batch(step, encode(batch_of(step))[0])
    assert stream.has(4)
    buffer.reconcile(step=1)
    assert stream.has(2)
    assert not stream.has(3)
    buffer.keep_batch(2, encode(batch_of(9))[0])  # another than before
    assert stream.has(3)
    assert stream._data.dataset.seen == [1, 9]
    buffer.keep_batch(3, encode(batch_of(8))[0])
    assert stream.has(4)
    buffer.reconcile(step=2)
    buffer.keep_batch(3, encode(batch_of(7))[0])  # while this explorer did not look
    assert stream.has(4)
    assert stream._data.dataset.seen == [1, 9, 7]


def test_ahead_of_the_trainer_the_data_are_those_of_the_weights(buffer):
    stream = stream_of(Growing, buffer, 2, sync=SyncSpec(interval=2, offset=1))
    seen = {}
    for step in range(1, 6):
        assert stream.has(step)
        seen[step] = (tasks_of(stream, step), list(stream._data.dataset.seen))[1]
        buffer.keep_batch(step, encode(batch_of(step))[0])
    assert seen == {1: [], 2: [], 3: [], 4: [1, 2], 5: [1, 2]}


def test_a_row_that_is_gone_is_named(buffer):
    stream = stream_of(lambda: Growing(6, (-5,)), buffer, 2, shuffle=False)
    buffer.keep_batch(1, encode(batch_of(1))[0])
    assert stream.has(2)
    with pytest.raises(UserError, match=r"step 2 reads row 2; on_batch_end has left 1 rows") as caught:
        stream.task(2)
    assert "dataloader_num_workers=1" in caught.value.hint


def test_a_dataset_that_does_not_change_is_left_alone(buffer):
    train = TaskStream([{"name": "a"}], TaskOrder(1, 1, False, None))
    assert followed(train, SimpleNamespace(), buffer, list) is train


def test_where_the_run_cannot_follow_it_is_refused(buffer):
    train = TaskStream(Growing(), TaskOrder(7, 2, False, None))
    spec = SimpleNamespace(sync=SyncSpec(style="fully_async"), verl={}, replay=None)
    with pytest.raises(UserError, match=r"name=Growing: its on_batch_end .* under sync_style fully_async"):
        followed(train, spec, buffer, Growing)


@pytest.mark.parametrize("explorers", [1, 2])
def test_the_explorer_makes_each_step_of_what_the_batches_before_left(tmp_path, toy, explorers, monkeypatch):
    """A class whose rows say which batches they have seen; the maker stands for trainer and engines. A second
    explorer is not there; that of its tasks the first takes is test_sharing's."""
    (tmp_path / "mine.py").write_text(MINE)
    words = (f"data.custom_cls.path={tmp_path}/mine.py", "data.custom_cls.name=Mine")
    spec, buffer = job(tmp_path / "job", toy, *words, steps=3, explorers=explorers)
    publish(spec, buffer, toy, 0, 1, 2)

    def trained(work):
        buffer.keep_batch(work.step, encode(batch_of(work.step))[0])

    looks, look = [], buffer.batch_history
    monkeypatch.setattr(buffer, "batch_history", lambda step: looks.append(step) or look(step))
    run = Run(spec, buffer, FakeMaker(before=trained)).until(ready(buffer, 3 * BATCH))
    assert 0 < len(looks) <= 3 * 3, "as often as steps are begun, not as there are tasks"
    seen = [(group.explorer_step, group.task["extra_info"]["seen"]) for group in run.groups()]
    assert seen == [(step, list(range(1, step))) for step in (1, 2, 3) for _ in range(BATCH)]


MINE = """
from verl.utils.dataset.rl_dataset import RLHFDataset


class Mine(RLHFDataset):
    seen = ()

    def __getitem__(self, item):
        row = super().__getitem__(item)
        return {**row, "extra_info": {**row["extra_info"], "seen": list(self.seen)}}

    def on_batch_end(self, batch):
        self.seen = (*self.seen, int(batch.batch["step"][0]))
"""
