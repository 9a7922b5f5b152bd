"""algorithm.filter_groups over a real buffer: which tasks of the stream reach the trainer, and where."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from explorer_job import BATCH, FakeMaker, job, publish
from test_loop import Run, ready

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.scheduling.filtering import GroupFilter

FILTER = (
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.metric=reward",
    "data.gen_batch_size=6",
)


class Maker(FakeMaker):
    """Groups of tasks whose place in the stream is even differ in reward; the others don't."""

    def __init__(self, differs=lambda number: number % 2 == 0, **more):
        super().__init__(**more)
        self.differs = differs

    async def groups(self, work, version, history):
        async for group in super().groups(work, version, history):
            same = tuple(replace(part, reward=1.0, info={"acc": part.run}) for part in group.experiences)
            yield group if self.differs(group.task_no) else replace(group, experiences=same)


@pytest.fixture
def make(tmp_path, toy):
    """A run with weights for all of its steps: (run, indices of its stream's tasks)."""

    def start(*overrides, maker=None, name="job", steps=2, versions=(0, 1)):
        spec, buffer = job(tmp_path / name, toy, *FILTER, *overrides, steps=steps)
        publish(spec, buffer, toy, *versions)
        return again(spec, maker)

    return start


def again(spec, maker=None, index=0):
    """The explorer as a new process finds the buffer."""
    run = Run(spec, open_buffer(spec.database_url), maker or Maker(), index)
    run.spec = spec
    return run


def finish(run, steps=2):
    return run.until(ready(run.buffer, steps * BATCH))


def indices(run, numbers):
    return [run.train.task(number)["index"] for number in numbers]


def stored(run):
    """The tasks that the trainer gets, by their index in the dataset, in the order of training."""
    groups = run.groups()
    assert [group.task_no for group in groups] == list(range(len(groups)))
    return [group.task["index"] for group in groups]


def test_filtered_groups_are_not_trained_and_draws_continue_after_the_last(make):
    run = finish(make())
    assert stored(run) == indices(run, [0, 2, 4, 6, 12, 14, 16, 18])
    assert [group.explorer_step for group in run.groups()] == [1] * BATCH + [2] * BATCH
    draws = [values["train/num_gen_batches"] for _, values in run.buffer.read_metrics("explorer")]
    assert draws == [2.0, 2.0]


def together(spec, makers, steps=2):
    """Explorers of one run, until its steps are stored; the drawings are of those that one alone makes."""
    runs = [Run(spec, open_buffer(spec.database_url), maker, index) for index, maker in enumerate(makers)]

    async def explore():
        exploring = [asyncio.ensure_future(run.explorer.explore()) for run in runs]
        async with asyncio.timeout(300):
            while runs[0].buffer.depth()["ready"] < steps * BATCH:
                await asyncio.sleep(0.01)
                for one in exploring:
                    if one.done():
                        one.result()
        for one in exploring:
            one.cancel()

    asyncio.run(explore())
    return runs


def test_several_explorers_share_each_draw_and_keep_what_one_alone_would(make, tmp_path, toy):
    alone = stored(finish(make()))
    spec, buffer = job(tmp_path / "two", toy, *FILTER, steps=2, explorers=2)
    publish(spec, buffer, toy, 0, 1)
    made = [[], []]
    runs = together(spec, [Maker(before=recorded(numbers)) for numbers in made])
    assert stored(runs[0]) == alone
    assert [sorted(numbers) for numbers in made] == [[*range(0, 24, 2)], [*range(1, 24, 2)]]
    draws = [step for role in ("explorer",) for step, _ in runs[0].buffer.read_metrics(role)]
    assert draws == [1, 2]


def test_what_is_under_way_of_a_draw_is_not_begun_again(tmp_path, toy):
    spec, buffer = job(tmp_path / "two", toy, *FILTER, steps=2, explorers=2)
    publish(spec, buffer, toy, 0, 1)
    now = buffer.history()
    one, other = (again(spec, index=index).scheduler for index in (0, 1))
    for scheduler in (one, other):
        scheduler.reset()
    assert one._shared_draws.take(1, 0, now) == [0, 2, 4]
    assert one._shared_draws.take(1, 0, now) == []  # answered, and not stored yet
    assert not one._shared_draws.needs(1, now) and other._shared_draws.needs(1, now)
    one.reset()  # as a successor does
    assert one._shared_draws.take(1, 0, now) == [0, 2, 4]


def recorded(numbers):
    return lambda work: numbers.extend(job.task_no for job in work.jobs)


def test_a_draw_whose_explorer_is_gone_is_finished_by_the_other(make, tmp_path, toy):
    alone = stored(finish(make()))
    spec, buffer = job(tmp_path / "two", toy, *FILTER, steps=2, explorers=2)
    publish(spec, buffer, toy, 0, 1)
    gone = again(spec, index=1)
    first = again(spec)
    first.until(lambda: buffer.depth("draw:1")["ready"] >= 3)
    with pytest.raises(AssertionError, match="never got there"):
        first.until(ready(buffer, 1), limit_s=0.7)
    assert buffer.depth("draw:1")["ready"] == 3
    buffer.leave(gone.scheduler.holder)
    assert stored(finish(first)) == alone


def test_without_gen_batch_size_a_draw_is_a_train_batch(make):
    run = finish(make("data.gen_batch_size=null"))
    assert stored(run) == indices(run, [0, 2, 4, 6, 8, 10, 12, 14])


def test_a_restarted_explorer_goes_on_where_the_other_ended(make):
    first = finish(make(), steps=1)
    assert stored(finish(again(first.spec))) == indices(first, [0, 2, 4, 6, 12, 14, 16, 18])


def test_a_crash_before_the_groups_are_stored_changes_nothing(make, monkeypatch):
    run = make()
    with monkeypatch.context() as patch:
        patch.setattr(run.buffer, "put_groups", lambda *a, **k: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            finish(run)
    assert run.groups() == []
    assert stored(finish(again(run.spec))) == indices(run, [0, 2, 4, 6, 12, 14, 16, 18])


def test_a_step_made_again_after_a_resume_begins_at_its_own_place(make, toy):
    run = finish(make(steps=3, versions=(0, 1, 2)), steps=3)
    run.buffer.reconcile(step=1)
    publish(run.spec, run.buffer, toy, 1, 2)
    later = again(run.spec, Maker(differs=lambda number: number % 2 == 1))
    later.until(ready(later.buffer, 3 * BATCH))
    assert stored(later) == indices(run, [0, 2, 4, 6, 12, 14, 16, 18, 25, 27, 29, 31])


def test_too_many_draws_end_the_run_with_the_reason(make):
    run = make("algorithm.filter_groups.max_num_gen_batches=3", maker=Maker(lambda number: number < 2))
    with pytest.raises(RunError, match=r"step 1 has 2 of 4 groups that differ in reward after 3 draws of 6"):
        finish(run)
    assert run.groups() == []


def test_a_field_of_the_reward_function_is_the_metric(make):
    run = finish(make("algorithm.filter_groups.metric=acc", maker=Maker(lambda number: False)))
    assert stored(run) == indices(run, [0, 1, 2, 3, 6, 7, 8, 9])


def test_a_metric_that_nobody_returned_is_named(make):
    run = make("algorithm.filter_groups.metric=speed", maker=Maker(lambda number: False))
    with pytest.raises(RunError, match=r"metric=speed is not a finite number .* it returned acc"):
        finish(run)


@pytest.mark.parametrize("odd", [math.nan, -math.inf, 10**400])
def test_a_metric_that_is_no_finite_number_is_named(odd):
    """No order knows NaN: such groups would be kept or dropped by chance."""
    ids, ones = np.array([1], np.int32), np.ones(1, np.uint8)
    part = Experience(0, ids, ids, ones, np.zeros(1, np.float32), 1.0, 0, 0, info={"acc": odd})
    group = Group("g", 0, {}, 1, (part, replace(part, run=1, info={"acc": 1.0})))
    with pytest.raises(RunError, match="metric=acc is not a finite number"):
        GroupFilter("acc", 1, 1).differs(group)
