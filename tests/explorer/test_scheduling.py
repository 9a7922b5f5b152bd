"""The explorer's pool over simulated engines, in virtual time: what is begun when, what is stored when, and
that whatever ends it, each task is made and stored once."""

import asyncio
from collections import Counter

import pytest
import simulation as sim
from hypothesis import given, settings
from hypothesis import strategies as st

from trinity_compat.buffer.model import EvalRequest
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.scheduling import commit_queue
from trinity_compat.explorer.scheduling.loop import BUSY_S, Explorer
from trinity_compat.explorer.scheduling.scheduler import LOOK_S, Scheduler
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.synchronizer.policy import required_version

BATCH, N, STEP_S = 4, 2, 0.01  # a decoding step takes 10 ms, whatever the batch


class World:
    """One explorer (``index``) over a buffer, with the engines of its own."""

    def __init__(self, style="fully_async", *, buffer=None, steps=4, index=0, slots=8, engines=1, **more):
        own = more.pop("explorer_interval", None)
        sync = SyncSpec(style, more.pop("interval", 1), more.pop("offset", 0), explorer_interval=own)
        length = more.pop("length", lambda job, place: 100)
        score = more.pop("score", lambda job: None)
        validation = sim.Stream(3) if more.pop("validates", False) else None
        spec = sim.make_spec(BATCH, N, steps, sync, **more)
        self.buffer = buffer or sim.MemoryBuffer(BATCH)
        if not self.buffer.versions:
            self.buffer.publish_version(sim.version_of(0))
        self.engines = sim.Engines(
            engines, length, by_load=style != "fixed", slots=slots, step_s=lambda batch: STEP_S
        )
        self.scheduler, self.silent = (
            Scheduler(spec, self.buffer, sim.Stream(BATCH), validation, index=index),
            sim.Silent(),
        )
        self.maker = sim.Maker(self.engines, score)
        self.explorer = Explorer(self.buffer, self.scheduler, self.maker, self.silent, self.silent)

    async def for_(self, seconds):
        """Explore so long, then be ended as by Ctrl-C."""
        exploring = asyncio.ensure_future(self.explorer.explore())
        await asyncio.wait({exploring}, timeout=seconds)
        self.made = self.engines.tokens()
        if exploring.done():
            return exploring.result()
        exploring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exploring
        return None


async def train(buffer, steps, *, train_s=0.5, limit=None, interval=1):
    for step in range(buffer.versions[-1].version + 1, steps + 1):
        while buffer.claim(step, limit) is None:
            await asyncio.sleep(0.05)
        await asyncio.sleep(train_s)
        if step % interval == 0:
            buffer.publish_version(sim.version_of(step))


def explore(world, seconds=1000.0, *beside):
    async def main():
        others = [asyncio.ensure_future(other()) for other in beside]
        try:
            await world.for_(seconds)
        finally:
            for other in others:
                other.cancel()

    sim.run(main)
    return world


def lengths(*tokens):
    """By task, both answers alike; the last for all that follow."""
    return lambda job, place: tokens[min(job.task_no, len(tokens) - 1)]


@pytest.mark.parametrize(
    ("style", "more", "version", "begun"),
    [
        ("fixed", {}, 0, 1),
        ("fixed", {"interval": 4}, 0, 4),
        ("fixed", {"interval": 4}, 4, 4),
        ("fixed", {"offset": 2}, 0, 3),
        ("fixed", {"offset": 2}, 1, 1),
        ("fixed", {"interval": 2, "offset": 1}, 0, 3),
        ("trainer_driven", {}, 0, 2),
        ("trainer_driven", {"max_staleness": 3}, 0, 4),
        ("fully_async", {"max_staleness": 0}, 0, 1),
        ("fully_async", {"max_staleness": 2}, 0, 3),
        ("fully_async", {"offset": 1}, 0, 3),
        ("explorer_driven", {"interval": 2}, 0, 2),
    ],
)
def test_steps_that_may_use_the_weights_in_place_are_all_begun(style, more, version, begun):
    sync = SyncSpec(style, more.get("interval", 1), more.get("offset", 0))
    first = next(e for e in range(1, 20) if style != "fixed" or required_version(sync, e) == version)
    buffer = sim.MemoryBuffer(BATCH, stored=dict.fromkeys(range((first - 1) * BATCH)))
    buffer.publish_version(sim.version_of(version))
    world = explore(World(style, buffer=buffer, steps=20, slots=1000, **more), 0.5)
    assert world.engines.begun == list(range((first - 1) * BATCH, (first - 1 + begun) * BATCH))


@pytest.mark.parametrize("explorers", [1, 2])
@pytest.mark.parametrize(("interval", "threshold", "ahead"), [(1, 0.0, 4), (1, 0.5, 6), (2, 0.25, 10)])
def test_staleness_in_samples_bounds_what_is_begun_on_a_version(interval, threshold, ahead, explorers):
    buffer = sim.MemoryBuffer(BATCH, stored=dict.fromkeys(range(2 * BATCH)))
    buffer.publish_version(sim.version_of(2))
    more = {"interval": interval, "staleness_threshold": threshold, "explorers": explorers}
    world = explore(World(buffer=buffer, steps=20, slots=1000, **more), 0.5)
    assert sorted(world.engines.begun) == list(range(2 * BATCH, 2 * BATCH + ahead))


def test_under_fixed_what_shares_weights_is_given_to_the_engines_in_one_call():
    world, calls = World("fixed", interval=2, engines=2), []
    run = world.engines.run
    world.engines.run = lambda jobs: calls.append([job.task_no for job in jobs]) or run(jobs)
    explore(world, 0.5)
    assert calls == [list(range(2 * BATCH))]


def test_the_pool_begins_what_there_is_room_for_and_is_refilled_as_answers_end():
    length = lambda job, place: {1: 300, 0: 20}.get(job.task_no, 100) if place else 20  # noqa: E731
    world = World(length=length, slots=4, max_staleness=3)
    assert explore(world, 0.1).engines.begun == [0, 1, 2]  # two places for each; the third queues in part
    world = World(length=length, slots=4, max_staleness=3)
    assert explore(world, 0.1 + 0.2 + BUSY_S).engines.begun == [0, 1, 2, 3]  # the first has ended
    world = World(length=length, slots=4, max_staleness=3)
    assert explore(world, 100.0).engines.begun == list(range(4 * BATCH))


def test_no_place_in_the_batch_is_empty_while_there_are_tasks():
    length = lambda job, place: 50 + 37 * (job.task_no * N + place) % 400  # noqa: E731
    world = explore(World(length=length, steps=100, max_staleness=99), 20.0)
    assert world.made / (20.0 * 8 / STEP_S) > 0.98


def test_a_finished_group_is_stored_within_the_batching_delay():
    world = World(length=lengths(1000, 100, 100, 200))
    explore(world, 1.0 + commit_queue.LINGER_S + BUSY_S)
    assert world.buffer.commits == [[1, 2]]
    world = explore(World(length=lengths(1000, 100, 100, 200)), 2.0 + commit_queue.LINGER_S + BUSY_S)
    assert world.buffer.commits[:2] == [[1, 2], [3]]
    assert 0 not in world.buffer.stored


def test_a_dropped_group_s_task_is_sampled_before_later_ones():
    world = World(max_staleness=1)

    async def drop():
        await asyncio.sleep(10.0)
        assert sorted(world.buffer.stored) == list(range(2 * BATCH))  # the third step waits for version 1
        for number in (1, 2):
            world.buffer.drop(number)

    explore(world, 30.0, drop)
    assert sorted(world.buffer.stored) == list(range(2 * BATCH))


def test_a_transaction_has_a_bound(monkeypatch):
    monkeypatch.setattr(commit_queue, "BATCH", 3)
    world = explore(World(max_staleness=1, slots=100), 1.0 + commit_queue.LINGER_S + BUSY_S)
    assert world.buffer.commits == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_weights_never_go_back_while_answers_are_under_way():
    loaded, world = [], World(explorer_interval=4, steps=9, max_staleness=6, length=lengths(100, 700, 50))
    load = world.engines.load
    world.engines.load = lambda version: loaded.append(version.version) or load(version)
    explore(world, 100.0, lambda: train(world.buffer, 9))
    assert sorted(world.buffer.trained) == list(range(9 * BATCH))
    assert loaded == sorted(set(loaded)) and len(loaded) > 3


def test_under_fixed_steps_commit_whole_and_in_order():
    world = World("fixed", interval=2, length=lengths(500, *[100] * 7))
    assert explore(world, 4.0).buffer.commits == []  # the second step has ended, the first has not
    world = explore(World("fixed", interval=2, length=lengths(500, *[100] * 7)), 6.0)
    assert world.buffer.commits == [list(range(BATCH)), list(range(BATCH, 2 * BATCH))]
    assert world.silent.steps == [1, 2]


@pytest.mark.parametrize("style", ["fixed", "fully_async"])
def test_after_a_kill_exactly_the_holes_are_made(style):
    buffer = sim.MemoryBuffer(BATCH, stored=dict.fromkeys((0, 1, 5)))
    buffer.publish_version(sim.version_of(0))
    world = explore(World(style, buffer=buffer, interval=2, steps=2), 30.0)
    assert sorted(world.engines.begun) == [2, 3, 4, 6, 7]
    assert sorted(buffer.stored) == list(range(8))


@pytest.mark.parametrize("style", ["fixed", "fully_async"])
def test_a_dead_engine_ends_the_explorer_and_stores_no_partial_group(style):
    world = World(style, engines=2, length=lambda job, place: 100 + 200 * place, steps=1)

    async def main():
        asyncio.get_running_loop().call_later(2.0, world.engines.all[1].die, RunError("the engine failed"))
        await world.explorer.explore()

    with pytest.raises(RunError, match="the engine failed"):
        sim.run(main)
    assert world.buffer.stored == {}
    explore(World(style, buffer=world.buffer, steps=1), 30.0)
    assert sorted(world.buffer.stored) == list(range(BATCH))


def test_a_reward_that_raises_ends_the_explorer_at_once():
    def score(job):
        if job.task_no == 1:
            raise RunError("no ground truth")

    world = World(length=lengths(5000, 100, 5000), score=score)

    async def main():
        with pytest.raises(RunError, match="no ground truth"):
            await world.explorer.explore()
        return asyncio.get_running_loop().time()

    assert sim.run(main) == pytest.approx(100 * STEP_S)


def test_ctrl_c_leaves_nothing_running_and_stores_no_group_of_later():
    world = World(length=lengths(100, 1000))

    async def main():
        await world.for_(5.0)
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(50.0)

    sim.run(main)
    assert sorted(world.buffer.stored) == [0]


def test_a_resume_meanwhile_voids_what_is_under_way_and_it_is_made_again():
    world = World(length=lengths(100, 300))

    async def main():
        def resume():
            world.buffer.generation = 2
            world.buffer.stored.clear()

        asyncio.get_running_loop().call_later(2.0, resume)
        await world.for_(30.0)

    sim.run(main)
    assert {group.key.split("/")[0] for group in world.buffer.stored.values()} == {"h2"}
    assert sorted(world.buffer.stored) == list(range(2 * BATCH))


def evaluating(style, *, every, steps=8, **more):
    """(world, groups a second that the trainer's ``steps`` steps left in the buffer) with an evaluation after
    every so many steps."""
    world = World(style, steps=50, validates=True, slots=16, **more)

    async def main():
        exploring = asyncio.ensure_future(world.explorer.explore())
        for step in range(1, steps + 1):
            await train(world.buffer, step)
            if step % every == 0:
                request = EvalRequest(step, step, step)
                world.buffer.evaluations.append(request)
                while request.request_id not in world.buffer.done:
                    await asyncio.sleep(0.05)
        exploring.cancel()
        return len(world.buffer.stored) / asyncio.get_running_loop().time()

    return world, sim.run(main)


@pytest.mark.parametrize("style", ["fixed", "trainer_driven", "fully_async"])
def test_an_evaluation_is_of_its_version_and_complete(style):
    world, _ = evaluating(style, every=2)
    groups = world.buffer.evaluated[2]
    assert [group.task_no for group in groups] == [0, 1, 2]
    versions = {(part.min_model_version, part.max_model_version) for g in groups for part in g.experiences}
    assert versions == {(2, 2)}


def test_newer_weights_wait_for_the_end_of_an_evaluation():
    world = World(validates=True, max_staleness=4, length=lengths(300))

    async def ask():
        await asyncio.sleep(0.5)
        world.buffer.evaluations.append(EvalRequest(1, 0, 0))
        await asyncio.sleep(0.5)
        assert not world.buffer.evaluated
        world.buffer.publish_version(sim.version_of(1))
        await asyncio.sleep(20.0)
        assert world.engines.version == 1

    explore(world, 30.0, ask)
    parts = [part for group in world.buffer.evaluated[1] for part in group.experiences]
    assert {part.max_model_version for part in parts} == {0}


def test_it_ends_with_the_training_whatever_is_under_way():
    world = World(length=lengths(100, 10_000))

    async def main():
        asyncio.get_running_loop().call_later(3.0, world.buffer.set_state, "finished", True)
        await world.explorer.explore()
        return asyncio.get_running_loop().time()

    assert sim.run(main) == pytest.approx(3.0, abs=2 * BUSY_S)
    assert sorted(world.buffer.stored) == [0]


def test_generation_goes_on_beside_evaluations():
    length = lambda job, place: 300 + 40 * (job.task_no % 7)  # noqa: E731
    (world, rate), (_, without) = (
        evaluating("fully_async", every=every, max_staleness=8, length=length) for every in (4, 100)
    )
    assert world.buffer.done == {4, 8}
    assert rate > 0.9 * without


def test_under_fixed_an_evaluation_has_the_engines_to_itself():
    world = World("fixed", validates=True, interval=2)
    world.buffer.evaluations.append(EvalRequest(1, 0, 0))
    begun = []
    run = world.engines.run

    def noted(jobs):
        begun.append((jobs[0].validate, len(world.buffer.evaluated), len(world.buffer.stored)))
        return run(jobs)

    async def ask():
        await asyncio.sleep(2.5)  # in the middle of the first two steps
        assert [validates for validates, *_ in begun] == [True, False]
        world.buffer.evaluations.append(EvalRequest(2, 0, 0))

    world.engines.run = noted
    explore(world, 30.0, ask)
    assert begun == [(True, 0, 0), (False, 1, 0), (True, 1, 2 * BATCH)]


@pytest.mark.parametrize("explorers", [1, 2])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_nothing_is_made_in_vain_under_a_limit_to_staleness(explorers, data):
    limit = data.draw(st.integers(0, 3))
    tokens = data.draw(st.lists(st.integers(1, 1000), min_size=1, max_size=24))
    train_s = data.draw(st.sampled_from([0.0, 0.3, 3.0]))
    buffer = sim.MemoryBuffer(BATCH)

    async def main():
        worlds = [
            World(
                buffer=buffer,
                steps=6,
                index=index,
                explorers=explorers,
                max_staleness=limit,
                length=lambda job, place: tokens[(job.task_no * N + place) % len(tokens)],
            )
            for index in range(explorers)
        ]
        exploring = [asyncio.ensure_future(world.explorer.explore()) for world in worlds]
        async with asyncio.timeout(1000.0):
            await train(buffer, 6, train_s=train_s, limit=limit)
        for one in exploring:
            one.cancel()

    sim.run(main)
    assert buffer.stale == 0
    assert sorted(buffer.trained) == list(range(6 * BATCH))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_ends_it_and_whenever_each_task_is_stored_once(data):
    style = data.draw(st.sampled_from(["fixed", "trainer_driven", "fully_async"]))
    interval, limit = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([None, 1, 2]))
    tokens = data.draw(st.lists(st.integers(1, 600), min_size=1, max_size=16))
    kills = [*data.draw(st.lists(st.floats(0.0, 12.0), max_size=4)), 400.0]
    buffer = sim.MemoryBuffer(BATCH)

    def world():
        return World(
            style,
            buffer=buffer,
            steps=4,
            interval=interval,
            max_staleness=None if style == "fixed" or limit is None else max(limit, interval),
            length=lambda job, place: tokens[(job.task_no * N + place) % len(tokens)],
        )

    async def main():
        training = asyncio.ensure_future(train(buffer, 4, interval=interval))
        for seconds in kills:
            await world().for_(seconds)
        training.cancel()

    sim.run(main)
    stored = [number for commit in buffer.commits for number in commit]
    assert sorted(stored) == list(range(4 * BATCH))
    assert set(buffer.trained) == set(stored)
    if style == "fixed":
        assert stored == sorted(stored)
        assert all(step == number // BATCH + 1 for number, step in buffer.trained.items())


# -- stragglers --------------------------------------------------------------------------------------


def test_the_last_of_a_step_are_ended_and_made_later_once():
    world = World(over_sample_rate=0.25, length=lengths(2000, 100), max_staleness=3, slots=100)
    world.explorer._report = told = Told()
    explore(world, 100.0)
    assert world.engines.begun.count(0) == 2
    assert sorted(world.buffer.stored) == list(range(4 * BATCH))
    assert [number for commit in world.buffer.commits for number in commit][-1] == 0
    assert told.extra[1]["rollout/ended_groups"] == 1.0
    assert told.groups[1] == list(range(BATCH)), "one report tells of all groups of its step"


class Told(sim.Silent):
    """What was reported by step."""

    def __init__(self):
        super().__init__()
        self.extra, self.groups = {}, {}

    def step(self, step, version, groups, times, extra):
        self.extra[step], self.groups[step] = extra, [group.task_no for group in groups]


def test_what_was_made_of_a_step_is_reported_when_the_run_ends_before_the_rest():
    """The rest waits for weights that will not come: the bound of what may be ahead is inside the step."""
    world = World(explorers=2, staleness_threshold=0.5, slots=100)
    world.explorer._report = told = Told()

    async def finish():
        await asyncio.sleep(20.0)
        assert sorted(told.groups) == [1]
        world.buffer.set_state("finished", True)

    explore(world, 100.0, finish)
    assert told.groups == {1: list(range(BATCH)), 2: list(range(BATCH, BATCH * 3 // 2))}


def test_cancelled_groups_free_their_slots_and_restart_with_new_weights():
    world = World(over_sample_rate=0.25, length=lengths(3000, 100), slots=8, max_staleness=9)
    explore(world, 60.0, lambda: train(world.buffer, 4))
    parts = world.buffer.stored[0].experiences
    assert parts[0].min_model_version > 0
    assert sorted(world.buffer.stored) == list(range(4 * BATCH))


def test_a_group_that_takes_too_long_is_ended_once():
    world = World(group_timeout_s=5.0, length=lengths(2000, 100), max_staleness=3, slots=4)
    explore(world, 4.9)
    assert world.engines.begun.count(0) == 1
    world = World(group_timeout_s=5.0, length=lengths(2000, 100), max_staleness=3, slots=4)
    explore(world, 100.0)
    assert world.engines.begun.count(0) == 2
    assert sorted(world.buffer.stored) == list(range(4 * BATCH))


@pytest.mark.parametrize("style", ["fixed", "fully_async"])
def test_without_being_asked_nothing_is_ended(style):
    more = {"over_sample_rate": 0.25, "group_timeout_s": 5.0} if style == "fixed" else {}
    world = World(style, length=lengths(2000, 100), steps=1, **more)
    explore(world, 100.0)
    assert world.engines.begun.count(0) == 1


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_whatever_is_ended_is_made_later(data):
    explorers = data.draw(st.integers(1, 2))
    tokens = data.draw(st.lists(st.integers(1, 1500), min_size=1, max_size=16))
    more = {
        "over_sample_rate": data.draw(st.sampled_from([0.0, 0.3, 0.6])),
        "group_timeout_s": data.draw(st.sampled_from([None, 2.0])),
        "max_staleness": data.draw(st.sampled_from([None, 1, 3])),
        "length": lambda job, place: tokens[(job.task_no * N + place) % len(tokens)],
    }
    buffer = sim.MemoryBuffer(BATCH)

    async def main():
        worlds = [World(buffer=buffer, index=i, explorers=explorers, **more) for i in range(explorers)]
        exploring = [asyncio.ensure_future(world.explorer.explore()) for world in worlds]
        async with asyncio.timeout(1000.0):
            await train(buffer, 4, limit=more["max_staleness"])
        for one in exploring:
            one.cancel()
        return worlds

    worlds = sim.run(main)
    assert sorted(buffer.trained) == list(range(4 * BATCH))
    begun = [number for world in worlds for number in world.engines.begun]
    assert all(begun.count(number) <= 2 for number in begun)


# -- what it asks of the database --------------------------------------------------------------------


class Counted:
    """A buffer, and how often each of its methods was called."""

    def __init__(self, buffer):
        self._buffer, self.calls = buffer, Counter()

    def __getattr__(self, name):
        found = getattr(self._buffer, name)
        if not callable(found):
            return found
        self.calls[name] += 1
        return found


@pytest.mark.parametrize("style", ["fixed", "trainer_driven", "fully_async"])
def test_a_round_reads_the_database_once(style):
    world = World(style, steps=30, slots=16, length=lambda job, place: 60 + 13 * (job.task_no % 7))
    counted = Counted(world.buffer)
    world.scheduler = Scheduler(world.scheduler._spec, counted, sim.Stream(BATCH), None)
    rest = world.explorer._rest
    explorer = Explorer(counted, world.scheduler, world.maker, world.silent, world.silent)
    world.explorer, rounds, rest = explorer, [], explorer._rest
    explorer._rest = lambda history: rounds.append(1) or rest(history)
    explore(world, 100.0, lambda: train(world.buffer, 30, train_s=0.2))
    assert len(world.buffer.stored) == 30 * BATCH
    calls = counted.calls
    begun = len(world.engines.begun)
    assert calls["glance"] <= len(rounds) + calls["put_groups"] + begun
    often = {"glance", "put_groups", "missing_tasks", "latest_version", "get_version", "participants"}
    assert calls["participants"] <= 100, "whether the trainer works: once a second"
    assert set(calls) <= often, "nothing else is read in a round"
    # Weights that a step waits for are looked up apart under fixed: an older version may be the right one.
    assert style == "fixed" or not calls["latest_version"]
    assert calls["missing_tasks"] <= begun + 100.0 / LOOK_S
