"""The explorer's loop over a real buffer: which tasks, which weights, when it ends."""

import asyncio
import contextlib
import shutil
import sqlite3
import time
from types import SimpleNamespace

import pytest
from explorer_job import BATCH, FakeMaker, job, publish
from omegaconf import OmegaConf

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.heartbeat_thread import SilenceDetector
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.data.tasks import eval_stream, train_stream
from trinity_compat.explorer.engine.weights import INITIAL
from trinity_compat.explorer.heartbeat import Heartbeat, TrainerGone, trainer_trouble
from trinity_compat.explorer.scheduling import loop as loop_module
from trinity_compat.explorer.scheduling import scheduler as scheduler_module
from trinity_compat.explorer.scheduling import version_selector
from trinity_compat.explorer.scheduling.loop import Explorer
from trinity_compat.explorer.scheduling.report import StepReporter
from trinity_compat.explorer.scheduling.scheduler import Scheduler
from trinity_compat.explorer.scheduling.step_work import StepWork
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.run.toy import make_tokenizer
from trinity_compat.synchronizer.versions import SyncTimeout


class Run:
    """An explorer with a fake maker, in a thread-free loop that the test steers."""

    def __init__(self, spec, buffer, maker, index=0, test=None):
        config, tokenizer = OmegaConf.create(spec.verl), make_tokenizer()
        train, evaluation = train_stream(config, tokenizer, None), eval_stream(config, tokenizer, None)
        self.buffer, self.maker, self.steps = buffer, maker, spec.total_steps
        self.heart = Heartbeat(lambda: open_buffer(spec.database_url), "explorer")
        self.train = train
        self.scheduler = Scheduler(spec, buffer, train, evaluation, index=index)
        report = StepReporter(buffer, "explorer")
        self.explorer = Explorer(buffer, self.scheduler, maker, report, self.heart, sync_check=test)

    def until(self, condition, limit_s=120):
        async def watch():
            exploring = asyncio.ensure_future(self.explorer.explore())
            begin = time.monotonic()
            while not condition() and not exploring.done():
                assert time.monotonic() - begin < limit_s, "the explorer never got there"
                await asyncio.sleep(0.01)
            if exploring.done():
                return exploring.result()
            exploring.cancel()
            return None

        asyncio.run(watch())
        return self

    def groups(self):
        return self.buffer.groups("train")


def ready(buffer, count):
    return lambda: buffer.depth()["ready"] >= count


@pytest.mark.parametrize(
    ("interval", "offset", "versions"),
    [(1, 0, [0, 1, 2, 3]), (1, 1, [0, 0, 1, 2]), (2, 0, [0, 0, 2, 2]), (2, 1, [0, 0, 0, 2])],
)
def test_each_step_uses_the_version_that_the_policy_names(tmp_path, toy, interval, offset, versions):
    sync = SyncSpec(interval=interval, offset=offset, directory=str(tmp_path / "w"))
    spec, buffer = job(tmp_path, toy, steps=4, sync=sync)
    publish(spec, buffer, toy, *range(4))
    run = Run(spec, buffer, FakeMaker()).until(ready(buffer, 4 * BATCH))
    used = [(g.explorer_step, g.experiences[0].max_model_version) for g in run.groups()]
    assert used == [(step + 1, versions[step]) for step in range(4) for _ in range(BATCH)]


def test_it_waits_for_weights_that_are_not_there(tmp_path, toy):
    spec, buffer = job(tmp_path, toy)
    publish(spec, buffer, toy, 0)
    run = Run(spec, buffer, FakeMaker()).until(lambda: run_state(buffer) == BATCH)
    with pytest.raises(AssertionError, match="never got there"):
        run.until(ready(buffer, BATCH + 1), limit_s=0.5)
    publish(spec, buffer, toy, 1)
    run.until(ready(buffer, 2 * BATCH))


def run_state(buffer):
    return buffer.depth()["ready"]


def test_waiting_too_long_is_an_error(tmp_path, toy):
    sync = SyncSpec(timeout_s=0.2, directory=str(tmp_path / "w"))
    spec, buffer = job(tmp_path, toy, sync=sync)
    publish(spec, buffer, toy, 0)
    with pytest.raises(SyncTimeout, match="explorer step 2 waited"):
        Run(spec, buffer, FakeMaker()).until(lambda: False)


def test_weights_on_another_machine_are_an_error_that_says_so(tmp_path, toy, monkeypatch):
    monkeypatch.setattr(version_selector, "ELSEWHERE_S", 0.2)
    spec, buffer = job(tmp_path, toy)
    publish(spec, buffer, toy, 0)
    shutil.rmtree(buffer.get_version(0).path)
    run = Run(spec, buffer, FakeMaker())
    with pytest.raises(AssertionError, match="never got there"):  # a trainer may publish it again
        run.until(lambda: False, limit_s=0.5)
    buffer.beat("trainer", "t", state="waiting")
    with pytest.raises(SyncTimeout, match=r"version 0 .* published as .*, which is not on this machine"):
        run.until(lambda: False)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass for the explorer only when a test says so: ``clock[0] += 60``."""
    now = [1000.0]
    for module in (loop_module, scheduler_module, version_selector):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_published_file_gets_time_to_become_visible(tmp_path, toy, clock):
    spec, buffer = job(tmp_path, toy, sync=SyncSpec(directory=str(tmp_path / "w")))
    scheduler = Run(spec, buffer, FakeMaker()).scheduler
    publish(spec, buffer, toy, 0)
    shutil.rmtree(buffer.get_version(0).path)
    buffer.beat("trainer", "t", state="waiting")
    scheduler.versions.check_wait(2, 400.0)
    clock[0] += version_selector.ELSEWHERE_S + 1
    with pytest.raises(SyncTimeout, match="version 0"):
        scheduler.versions.check_wait(2, 400.0)


@pytest.mark.parametrize(("stall_timeout_s", "is_late"), [(600.0, False), (None, True)])
def test_a_trainer_that_reports_work_may_take_longer_than_sync_timeout(
    tmp_path, toy, clock, stall_timeout_s, is_late
):
    """Its own watchdog ends it if it hangs, unless that is off. Once it waits itself, the time counts."""
    sync = SyncSpec(timeout_s=60.0, directory=str(tmp_path / "w"))
    spec, buffer = job(tmp_path, toy, sync=sync, stall_timeout_s=stall_timeout_s)
    publish(spec, buffer, toy, 0)
    versions = Run(spec, buffer, FakeMaker()).scheduler.versions
    buffer.beat("trainer", "t", state="running")
    since, late = clock[0], pytest.raises(SyncTimeout, match="explorer step 2 waited")
    clock[0] += 3600.0
    with late if is_late else contextlib.nullcontext():
        versions.check_wait(2, since)
    buffer.beat("trainer", "t", state="waiting")
    clock[0] += 59.0
    with late if is_late else contextlib.nullcontext():
        versions.check_wait(2, since)
    clock[0] += 2.0
    with late:
        versions.check_wait(2, since)


def test_the_model_path_is_not_reloaded_after_an_evaluation(tmp_path, toy):
    sync = SyncSpec(style="explorer_driven", offset=1, directory=str(tmp_path / "w"))
    spec, buffer = job(tmp_path, toy, sync=sync)
    scheduler = Run(spec, buffer, FakeMaker()).scheduler
    assert not scheduler.is_finished()
    assert scheduler.versions.version_for(StepWork(1, "train", ()), INITIAL) is INITIAL
    publish(spec, buffer, toy, 0)
    zero = buffer.get_version(0)
    assert not scheduler.is_finished()
    assert scheduler.versions.version_for(StepWork(2, "train", ()), zero) == zero


def test_an_explorer_may_be_as_far_ahead_as_the_trainer_s_own_interval_makes_it(tmp_path, toy):
    sync = SyncSpec(style="trainer_driven", trainer_interval=3, directory=str(tmp_path / "w"))
    spec, buffer = job(tmp_path, toy, steps=9, sync=sync)
    scheduler = Run(spec, buffer, FakeMaker()).scheduler
    publish(spec, buffer, toy, 0)
    zero = buffer.get_version(0)
    assert not scheduler.is_finished()
    found = [scheduler.versions.version_for(StepWork(step, "train", ()), zero) for step in (1, 2, 3, 4, 5)]
    assert found == [zero, zero, zero, zero, None]


def test_time_without_work_is_not_time_waited_for_weights(tmp_path, toy, clock):
    spec, buffer = job(tmp_path, toy, steps=2)
    publish(spec, buffer, toy, 0, 1)
    run, pauses = Run(spec, buffer, FakeMaker()), []
    run.scheduler.versions.request_if_missed = pauses.append
    run.until(ready(buffer, 2 * BATCH))
    clock[0] += 10 * spec.sync.timeout_s
    pauses.clear()
    run.until(lambda: len(pauses) > 1)
    for version in (0, 1):
        shutil.rmtree(buffer.get_version(version).path)
    buffer.claim_groups(1, owner="t", step=9, min_version=2)  # all are stale: to be made again
    pauses.clear()
    run.until(lambda: len(pauses) > 2)


def test_a_trainer_that_dies_ends_answers_that_take_long(tmp_path, toy):
    class Endless(FakeMaker):
        async def groups(self, work, version, history):
            self.before(work)
            await asyncio.Event().wait()
            yield

    spec, buffer = job(tmp_path, toy)
    maker = Endless(before=lambda _work: setattr(run.heart, "_trouble", TrainerGone("it is gone")))
    run = Run(spec, buffer, maker)
    with pytest.raises(TrainerGone, match="it is gone"):
        run.until(lambda: False)


class OvertakenMaker(FakeMaker):
    """While it loads one of ``late``, the trainer publishes two more and deletes that one."""

    def __init__(self, spec, buffer, toy, *late, **more):
        super().__init__(**more)
        self.late, self.publish = list(late), lambda *versions: publish(spec, buffer, toy, *versions)
        self.buffer = buffer

    async def load(self, version):
        if version.version in self.late:
            self.late.remove(version.version)
            self.publish(version.version + 1, version.version + 2)
            shutil.rmtree(version.path)
            raise RunError("weights can't be read")
        await super().load(version)


def test_weights_that_were_overtaken_while_they_were_read_give_way_to_the_newest(tmp_path, toy):
    sync = SyncSpec(style="trainer_driven", directory=str(tmp_path / "w"))
    spec, buffer = job(tmp_path, toy, steps=1, sync=sync)
    publish(spec, buffer, toy, 0)
    run = Run(spec, buffer, OvertakenMaker(spec, buffer, toy, 0)).until(ready(buffer, BATCH))
    assert run.maker.loaded == [2]


def test_so_do_weights_that_come_in_the_middle_of_a_step(tmp_path, toy):
    class Slow(OvertakenMaker):
        async def groups(self, work, version, history):
            async for group in super().groups(work, version, history):
                if self.loaded[-1] == 0:
                    self.publish(1)
                while self.loaded[-1] == 0:
                    await asyncio.sleep(0)
                yield group

    sync = SyncSpec(style="fully_async", directory=str(tmp_path / "w"))
    spec, buffer = job(tmp_path, toy, steps=1, sync=sync)
    publish(spec, buffer, toy, 0)
    run = Run(spec, buffer, Slow(spec, buffer, toy, 1)).until(ready(buffer, BATCH))
    assert run.maker.loaded == [0, 3]


def test_weights_that_are_there_and_cannot_be_read_end_the_run(tmp_path, toy):
    class Broken(FakeMaker):
        async def load(self, version):
            raise RunError("weights are not what was published")

    spec, buffer = job(tmp_path, toy)
    publish(spec, buffer, toy, 0)
    with pytest.raises(RunError, match="not what was published"):
        Run(spec, buffer, Broken()).until(lambda: False)


def test_a_new_run_begins_with_the_model_path_itself(tmp_path, toy):
    spec, buffer = job(tmp_path, toy)
    run = Run(spec, buffer, FakeMaker()).until(ready(buffer, BATCH))
    assert run.maker.loaded == []
    assert {g.experiences[0].max_model_version for g in run.groups()} == {0}


def test_tasks_stand_in_the_buffer_in_order(tmp_path, toy):
    spec, buffer = job(tmp_path, toy)
    publish(spec, buffer, toy, 0, 1, 2)
    Run(spec, buffer, FakeMaker()).until(ready(buffer, 3 * BATCH))
    order = sqlite3.connect(tmp_path / "experiences.db").execute(
        "SELECT task_no FROM task_groups ORDER BY id"
    )
    assert [number for (number,) in order] == list(range(3 * BATCH))


def test_after_a_resume_exactly_the_lost_tasks_are_made_again(tmp_path, toy):
    spec, buffer = job(tmp_path, toy, steps=3)
    publish(spec, buffer, toy, 0, 1, 2)
    Run(spec, buffer, FakeMaker()).until(ready(buffer, 3 * BATCH))
    buffer.reconcile(step=1)  # what version 2 made is lost: the third batch
    publish(spec, buffer, toy, 1, 2)
    again = []
    Run(spec, buffer, FakeMaker(before=lambda work: again.append([j.task_no for j in work.jobs]))).until(
        ready(buffer, 3 * BATCH)
    )
    assert again == [list(range(2 * BATCH, 3 * BATCH))]


def test_groups_of_an_ended_history_are_not_stored(tmp_path, toy):
    spec, buffer = job(tmp_path, toy)
    publish(spec, buffer, toy, 0)
    resumed = []

    def resume_meanwhile(_work):
        if not resumed:
            resumed.append(buffer.reconcile(step=0))
            publish(spec, buffer, toy, 0)

    run = Run(spec, buffer, FakeMaker(before=resume_meanwhile)).until(ready(buffer, BATCH))
    assert {g.key.split("/")[0] for g in run.groups()} == {"h2"}
    assert run.maker.loaded == [0, 0], "the weights must be loaded anew"


def test_evaluation_uses_the_requested_weights_and_all_rows(tmp_path, toy):
    spec, buffer = job(tmp_path, toy, steps=3)
    publish(spec, buffer, toy, 0, 1, 2)
    request = buffer.request_eval(step=2, version=2)
    run = Run(spec, buffer, FakeMaker()).until(ready(buffer, 3 * BATCH))
    assert buffer.eval_done(request)
    groups = buffer.groups(f"eval:{request.request_id}")
    assert [g.task_no for g in groups] == list(range(6))
    assert {g.experiences[0].max_model_version for g in groups} == {2}
    assert run.maker.loaded == [2, 0, 1, 2], "training goes on with its own version afterwards"


def test_explorers_share_each_batch(tmp_path, toy):
    spec, buffer = job(tmp_path, toy, steps=1, explorers=2)
    publish(spec, buffer, toy, 0)
    made = [[], []]
    runs = [Run(spec, buffer, recording(numbers), index) for index, numbers in enumerate(made)]
    for index, run in enumerate(runs):
        run.until(ready(buffer, BATCH // 2 * (index + 1)))
    assert made == [[0, 2], [1, 3]]


def test_an_explorer_that_is_gone_leaves_its_tasks_to_the_others(tmp_path, toy):
    spec, buffer = job(tmp_path, toy, steps=1, explorers=3)
    publish(spec, buffer, toy, 0)
    made = [[], [], []]
    runs = [Run(spec, buffer, recording(numbers), index) for index, numbers in enumerate(made)]
    buffer.leave(runs[1].scheduler.holder)
    runs[0].until(ready(buffer, 3))
    runs[2].until(ready(buffer, BATCH))
    assert made == [[0, 1, 3], [], [2]]


@pytest.mark.parametrize("explorers", [2, 3])
def test_several_explorers_at_once_make_every_task_once(tmp_path, toy, explorers):
    spec, buffer = job(tmp_path, toy, steps=4, explorers=explorers)
    publish(spec, buffer, toy, 0, 1, 2, 3)
    made = [[] for _ in range(explorers)]
    runs = [
        Run(spec, open_buffer(spec.database_url), recording(numbers), index)
        for index, numbers in enumerate(made)
    ]

    async def explore():
        exploring = [asyncio.ensure_future(run.explorer.explore()) for run in runs]
        async with asyncio.timeout(300):
            while buffer.depth()["ready"] < 4 * BATCH:
                await asyncio.sleep(0.01)
            buffer.set_state("finished", True)
            await asyncio.gather(*exploring)

    asyncio.run(explore())
    assert sorted(number for numbers in made for number in numbers) == list(range(4 * BATCH))
    assert all({number % explorers for number in numbers} == {index} for index, numbers in enumerate(made))
    used = [(g.explorer_step, g.experiences[0].max_model_version) for g in buffer.groups("train")]
    assert used == [(step + 1, step) for step in range(4) for _ in range(BATCH)]


def recording(numbers):
    return FakeMaker(before=lambda work: numbers.extend(job.task_no for job in work.jobs))


def test_it_ends_when_the_trainer_has_finished(tmp_path, toy):
    spec, buffer = job(tmp_path, toy)
    publish(spec, buffer, toy, 0, 1, 2)
    maker = FakeMaker(before=lambda work: work.step == 3 and buffer.set_state("finished", True))
    Run(spec, buffer, maker).until(lambda: False)
    assert run_state(buffer) == 3 * BATCH


def test_the_mark_of_an_earlier_run_does_not_end_this_one(tmp_path, toy, monkeypatch):
    spec, buffer = job(tmp_path, toy)
    publish(spec, buffer, toy, 0, 1, 2)
    buffer.set_state("finished", True)
    run = Run(spec, buffer, FakeMaker()).until(ready(buffer, 3 * BATCH))
    monkeypatch.setattr(scheduler_module, "FINISH_GRACE_S", 0.0)
    run.until(lambda: False)  # nobody takes it down: it does count in the end


def test_a_heartbeat_left_by_an_earlier_run_ages_from_the_first_look(tmp_path, toy, clock):
    ended = scheduler_module.TrainerFinished()
    clock[0] += 2 * scheduler_module.FINISH_GRACE_S
    assert not ended.is_confirmed(True)
    clock[0] += 2 * scheduler_module.FINISH_GRACE_S
    assert ended.is_confirmed(True)


def test_a_trainer_that_ends_while_the_engines_start_has_ended_this_run(tmp_path, toy):
    assert not scheduler_module.TrainerFinished().is_confirmed(True)
    assert scheduler_module.TrainerFinished(fresh=True).is_confirmed(True)


def test_an_explorer_that_has_seen_a_trainer_is_not_alone_while_that_one_is_hidden(tmp_path, toy):
    spec, buffer = job(tmp_path, toy, steps=1, mode="explore")
    publish(spec, buffer, toy, 0)
    buffer.beat("trainer", "t", state="running")
    run = Run(spec, buffer, FakeMaker()).until(ready(buffer, BATCH))
    assert not run.scheduler.is_finished()
    buffer.reconcile(step=0)
    assert not buffer.participants()
    assert not run.scheduler.is_finished()


def test_exploring_alone_ends_with_the_tasks(tmp_path, toy):
    spec, buffer = job(tmp_path, toy, steps=1, mode="explore")
    Run(spec, buffer, FakeMaker()).until(lambda: False)
    assert run_state(buffer) == BATCH


@pytest.mark.parametrize("style", ["trainer_driven", "fully_async"])
def test_free_styles_take_the_newest_and_stay_near_it(tmp_path, toy, style):
    sync = SyncSpec(style=style, interval=1, directory=str(tmp_path / "w"))
    spec, buffer = job(tmp_path, toy, steps=8, sync=sync, max_staleness=2)
    publish(spec, buffer, toy, 0)
    run = Run(spec, buffer, FakeMaker()).until(ready(buffer, 3 * BATCH))
    with pytest.raises(AssertionError, match="never got there"):
        run.until(ready(buffer, 3 * BATCH + 1), limit_s=0.3)
    publish(spec, buffer, toy, 4)
    run.until(ready(buffer, 7 * BATCH))
    assert {g.explorer_step: g.experiences[0].max_model_version for g in run.groups()} == {
        1: 0, 2: 0, 3: 0, 4: 4, 5: 4, 6: 4, 7: 4
    }  # fmt: skip


@pytest.mark.parametrize(("told", "detail"), [("2", {"restarts": 2}), ("0", {}), (None, {})])
def test_it_says_with_each_beat_whether_it_would_be_started_again(tmp_path, toy, monkeypatch, told, detail):
    if told is not None:
        monkeypatch.setenv("TRINITY_COMPAT_RESTARTS", told)
    spec, buffer = job(tmp_path, toy)
    heart = Heartbeat(lambda: open_buffer(spec.database_url), "explorer")
    heart.start()
    heart.stop("done")
    (row,) = buffer.participants()
    assert {name: value for name, value in row.detail.items() if name != "progress"} == detail


def test_a_silent_trainer_ends_the_exploring(tmp_path, toy):
    now = [100.0]
    spec, _ = job(tmp_path, toy)
    buffer = open_buffer(spec.database_url, clock=lambda: now[0])
    buffer.beat("trainer", "trainer", state="running")
    now[0] += 11
    seen = [0.0]
    heart = Heartbeat(lambda: buffer, "explorer", silence_s=0.5)
    heart._detector = SilenceDetector(clock=lambda: seen[0])
    heart.after_beat(buffer)
    heart.check()  # the database was in sight for too short a time to judge by
    seen[0] = 0.6
    heart.after_beat(buffer)
    with pytest.raises(TrainerGone, match="silent for 11 s"):
        heart.check()


@pytest.mark.parametrize(
    ("state", "age", "gone"),
    [("done", 60, False), ("running", 5, False), ("failed", 1, True), ("stopped", 1, True)],
)
def test_when_a_trainer_counts_as_gone(tmp_path, toy, state, age, gone):
    now = [100.0]
    spec, _ = job(tmp_path, toy)
    buffer = open_buffer(spec.database_url, clock=lambda: now[0])
    sight = SilenceDetector(gap_s=1000, clock=lambda: now[0])
    buffer.beat("trainer", "trainer", state=state, detail={"reason": "out of memory"})
    now[0] += age
    assert (trainer_trouble(buffer, sight) is not None) == gone


@pytest.mark.parametrize("state", ["failed", "running"])
def test_a_trainer_that_is_started_again_is_waited_for(tmp_path, toy, state):
    """Its successor may load its models for longer than that; then its own word counts."""
    now = [100.0]
    spec, _ = job(tmp_path, toy)
    buffer = open_buffer(spec.database_url, clock=lambda: now[0])
    sight = SilenceDetector(gap_s=1000, clock=lambda: now[0])
    buffer.beat("trainer", "first", state=state, detail={"reason": "killed", "restarts": 1})
    now[0] += 100
    assert trainer_trouble(buffer, sight) is None
    now[0] += 30
    assert "silent for 130 s" in trainer_trouble(buffer, sight)
    buffer.beat("trainer", "second", state="starting")
    assert trainer_trouble(buffer, sight) is None
    buffer.beat("trainer", "second", state=state, detail={"reason": "killed again"})
    now[0] += 11
    assert trainer_trouble(buffer, sight) is not None
