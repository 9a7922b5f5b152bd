"""Engines that hang, on a clock that tests turn: what is judged, who is named, and what is left alone."""

import asyncio
import contextlib
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.common.hung_process import HungProcess
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.explorer import main
from trinity_compat.explorer.engine.inflight_requests import InflightRequests
from trinity_compat.explorer.engine.trajectory import RolloutResult, RolloutTask
from trinity_compat.explorer.engine.vllm import AsyncEngine, EngineConfig, GenerationRequest, InProcessEngine
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.rollout import nccl_receiver, worker
from trinity_compat.explorer.rollout.worker import RolloutWorker
from trinity_compat.explorer.rollout.worker_group import RolloutWorkers
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.synchronizer.transports.nccl import Rendezvous


class Remote:
    """A method of an actor; ``streams``: it yields references."""

    def __init__(self, function, streams=False):
        self.function, self.streams = function, streams

    def options(self, **_):
        return self

    def remote(self, *args):
        if not self.streams:
            return asyncio.ensure_future(self.function(*args))
        return self._references(*args)

    async def _references(self, *args):
        async for item in self.function(*args):
            future = asyncio.get_running_loop().create_future()
            future.set_result(item)
            yield future


class Actor:
    """An engine that answers a job, and a request of any kind, when ``go`` is set."""

    def __init__(self, index):
        self.index, self.go, self.tokens = index, asyncio.Event(), asyncio.Queue()
        for name in ("load", "score", "sleep", "wake", "set_auxiliary_models", "receive", "write"):
            setattr(self, name, Remote(self.answer))
        self.dtypes = Remote(self.told)
        self.run, self.progress = Remote(self.rollouts, True), Remote(self.ticks, True)
        self.abort = SimpleNamespace(remote=lambda name: None)

    async def answer(self, *_):
        await self.go.wait()
        return []

    async def told(self):
        await self.go.wait()
        return {}

    async def rollouts(self, jobs, name):
        await self.go.wait()
        for job in jobs:
            yield RolloutResult(job.task_no, ())

    async def ticks(self):
        while True:
            yield await self.tokens.get()


class Engines:
    """Two of them under a watchdog with a limit of 60 s."""

    def __init__(self):
        self.now = 0.0
        self.watchdog = Watchdog(60.0, clock=lambda: self.now)
        given = {"nnodes": 1, "n_gpus_per_node": 2, "tensor_model_parallel_size": 1}
        self.workers = RolloutWorkers(
            {"actor_rollout_ref": {"rollout": given}}, "cuda", {}, watchdog=self.watchdog
        )
        self.actors = self.workers._actors = [Actor(index) for index in range(2)]
        self.workers._processes = {
            index: HungProcess(f"engine {index}", 1, host="here") for index in range(2)
        }
        self.follows = [asyncio.ensure_future(self.workers._follow(*pair)) for pair in enumerate(self.actors)]

    async def passes(self, seconds, *gives_tokens):
        """In ticks of a second; engines that give tokens tell of them."""
        for _ in range(seconds):
            for index in gives_tokens:
                self.actors[index].tokens.put_nowait(1)
            for _ in range(5):
                await asyncio.sleep(0)
            self.now += 1
            self.watchdog.tick()
        return self.watchdog.look()


def with_engines(test):
    async def go():
        engines = Engines()
        try:
            await test(engines)
        finally:
            for task in [*engines.follows]:
                task.cancel()

    asyncio.run(asyncio.wait_for(go(), 60))


def jobs(*numbers):
    return [RolloutTask(number, {"raw_prompt": "x"}, 4, {}) for number in numbers]


async def collected(stream):
    return [each async for each in stream]


def test_an_engine_that_gives_no_token_while_it_owes_answers_is_named():
    async def test(engines):
        running = asyncio.ensure_future(collected(engines.workers.run(jobs(0, 1, 2))))
        assert await engines.passes(200, 0, 1) is None, "however long answers take"
        assert await engines.passes(59, 1) is None
        found = await engines.passes(2, 1)
        assert found.what == "engine 0 has 8 answers to make and returns no token"
        assert [each.name for each in found.suspects] == ["engine 0"]
        for actor in engines.actors:
            actor.go.set()
        assert len(await running) == 3
        assert await engines.passes(500) is None, "nothing is asked of it any more"

    with_engines(test)


def test_many_groups_of_one_engine_are_judged_by_its_progress_and_not_by_theirs():
    """Streaming styles ask for each group by itself; some are finished while others wait."""

    async def test(engines):
        first = asyncio.ensure_future(collected(engines.workers.run(jobs(0))))
        await engines.passes(50, 0)
        second = asyncio.ensure_future(collected(engines.workers.run(jobs(1))))
        await engines.passes(1, 0)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        assert await engines.passes(59) is None
        assert (await engines.passes(2)).what == "engine 0 has 4 answers to make and returns no token"
        second.cancel()

    with_engines(test)


@pytest.mark.parametrize(
    ("method", "arguments", "what"),
    [
        ("sleep", (), "taking the engines off the device"),
        ("wake", (), "bringing the engines back to the device"),
        ("score", ([1, 2],), "scoring an answer by the engines"),
        ("dtypes", (), "asking the engines for their dtypes"),
        ("set_auxiliary_models", (["host:1"],), "sending the engines the other models' addresses"),
    ],
)
def test_whatever_is_asked_of_all_engines_has_a_limit(method, arguments, what):
    async def test(engines):
        asking = asyncio.ensure_future(getattr(engines.workers, method)(*arguments))
        engines.actors[0].go.set()
        assert await engines.passes(60) is None
        found = await engines.passes(2)
        assert (found.what, [each.name for each in found.suspects]) == (what, ["engine 1"])
        engines.actors[1].go.set()
        await asking
        assert await engines.passes(500) is None

    with_engines(test)


def test_weights_have_longer_the_more_they_are():
    async def test(engines):
        version = WeightVersion(3, "/weights", "", nbytes=10_000_000_000)
        loading = asyncio.ensure_future(engines.workers.load(version))
        engines.actors[1].go.set()
        assert await engines.passes(160) is None
        found = await engines.passes(2)
        assert found.what == "loading version 3 of the weights"
        assert [each.name for each in found.suspects] == ["engine 0"]
        loading.cancel()

    with_engines(test)


def test_a_client_of_an_endpoint_is_no_other_case():
    async def test(engines):
        asking = asyncio.ensure_future(engines.workers.write([1], {}))
        assert (await engines.passes(62)).what == "engine 0 has 1 answers to make and returns no token"
        asking.cancel()

    with_engines(test)


class Steps:
    """An engine as its worker sees it."""

    def __init__(self):
        self.owed = self.steps = 0

    async def submit(self, requests):
        return []

    async def sleep(self):
        pass


def test_a_worker_reports_progress_while_busy_while_idle_and_while_it_sleeps(monkeypatch):
    async def go():
        passed = asyncio.Queue()
        real = asyncio.sleep
        monkeypatch.setattr(worker.asyncio, "sleep", lambda _: passed.get())
        made = object.__new__(RolloutWorker)
        made._engine = Steps()
        made._requests_in_flight = InflightRequests(made._engine)
        told, stream = [], made.progress()

        async def follow():
            async for count in stream:
                told.append(count)

        following = asyncio.ensure_future(follow())

        async def look():
            passed.put_nowait(None)
            for _ in range(5):
                await real(0)
            return told[-1]

        assert [await look() for _ in range(2)] == [2, 3]  # an agent waits for its tool
        made._engine.owed = 4
        assert [await look() for _ in range(3)] == [3, 3, 3]
        made._engine.steps += 7
        assert [await look() for _ in range(2)] == [4, 4]
        async with made._requests_in_flight.changing():
            assert [await look() for _ in range(2)] == [5, 6]  # a load has a limit of its own
        assert await look() == 6
        await made.sleep()  # it owes answers, which go on after the next load
        asked = asyncio.ensure_future(made._requests_in_flight.submit([]))
        assert [await look() for _ in range(2)] == [7, 8] and not asked.done()
        async with made._requests_in_flight.changing():
            pass
        assert (await asked, await look()) == ([], 8)
        following.cancel()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_steps_of_vllm_s_own_processes_are_seen_as_they_pass_by():
    seen = []
    outputs = SimpleNamespace(
        process_outputs=lambda found, when, stats=None: seen.append((found, when, stats))
    )
    engine = AsyncEngine(EngineConfig({}, 9))
    engine._count_steps(outputs)
    outputs.process_outputs(["a", "b"], 1.0, stats="s")
    outputs.process_outputs([], 2.0)
    assert engine.steps == 1
    assert seen == [(["a", "b"], 1.0, "s"), ([], 2.0, None)]


def test_an_engine_in_process_counts_its_steps_and_what_it_owes():
    class Vllm:
        """Answers after three steps."""

        def __init__(self):
            self.left = 3

        def add_request(self, *_, **__):
            pass

        def step(self):
            self.left -= 1
            part = SimpleNamespace(
                token_ids=[5],
                index=0,
                finish_reason="stop",
                logprobs=SimpleNamespace(logprobs=[0.0], start_indices=[0]),
            )
            done = SimpleNamespace(request_id="r", finished=True, outputs=[part], prompt_logprobs=None)
            return [] if self.left else [done]

    async def go():
        engine = InProcessEngine(EngineConfig({}, 9))
        engine._engine = Vllm()
        engine._admit = lambda requests: None
        (answer,) = await engine.submit([GenerationRequest("r", [1], {})])
        assert engine.owed == 1
        await answer
        await asyncio.sleep(0)
        assert (engine.steps, engine.owed) == (3, 0)
        await engine.close()

    asyncio.run(go())


# -- a handover by a collective --------------------------------------------------------------------


class Hanging:
    """Engines that don't come back from a handover."""

    ranks, restarts_an_engine = 1, False

    async def receive(self, meeting, first_rank):
        await asyncio.Event().wait()

    def late(self):
        return [HungProcess("engine 0", 1, host="node7", kill=lambda: self.killed.append(1))]

    killed = ()


class Given:
    """An offer with its meeting, until ``over``."""

    def __init__(self):
        self.over = False

    def look(self):
        return None if self.over else "offer"

    def accept(self, offer):
        pass

    def meeting(self, offer):
        return Rendezvous("h", "g", "localhost", 1, 2, version=3, timeout_s=5.0), 1


@pytest.mark.parametrize(("over", "waits_s"), [(True, 5.0 + nccl_receiver.ENDS_S), (False, 5.0 + 3600 + 60)])
def test_engines_that_hang_in_a_handover_are_given_up_when_the_trainer_has(monkeypatch, over, waits_s):
    """Else they would be waited for as long as a whole handover may take."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(nccl_receiver, "time", clock)
    from trinity_compat.explorer import await_with_checks

    monkeypatch.setattr(await_with_checks, "time", clock)
    monkeypatch.setattr(await_with_checks, "LOOK_S", 0.0)
    engines, offered = Hanging(), Given()
    engines.killed = []

    def check():
        now[0] += 1.0
        offered.over = over

    receiver = nccl_receiver.Receiver(offered, engines, check)
    with pytest.raises(RunError, match=r"hang in the transfer of version 3: engine 0, pid 1 on node7"):
        asyncio.run(asyncio.wait_for(receiver.take("offer"), 60))
    assert abs(now[0] - waits_s) < 4
    assert engines.killed == [1]


# -- the explorer's process --------------------------------------------------------------------------


@pytest.fixture
def heart(tmp_path):
    url = f"sqlite:///{tmp_path}/b.db"
    open_buffer(url).close()
    return Heartbeat(lambda: open_buffer(url), "explorer", limit_s=60.0, period_s=0.02)


def spec(tmp_path):
    return RunSpec("", f"sqlite:///{tmp_path}/b.db", {}, 1, None, SyncSpec(directory=str(tmp_path)))


def test_the_reason_of_an_explorer_is_what_hung_and_not_what_was_killed(tmp_path, heart, monkeypatch, capsys):
    class Found:
        def __init__(self, own, *others, last_word):
            assert (own, others) == (heart.watchdog, (heart.engines,))
            self.reason = None

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.reason = "no progress for 61 s: engine 0"

    async def work():
        raise RunError("the actor died")

    monkeypatch.setattr(main, "WatchdogThread", Found)
    assert main._run_to_end(spec(tmp_path), heart, work) == main.FAILED
    with contextlib.closing(open_buffer(f"sqlite:///{tmp_path}/b.db")) as buffer:
        (explorer,) = buffer.participants()
    assert (explorer.state, explorer.detail["reason"]) == ("failed", "no progress for 61 s: engine 0")
    assert "error: no progress for 61 s: engine 0" in capsys.readouterr().err


def test_the_run_s_limit_is_that_of_its_watchdogs(tmp_path):
    rollout = {"nnodes": 1, "n_gpus_per_node": 1, "tensor_model_parallel_size": 1}
    verl = {"actor_rollout_ref": {"rollout": rollout}, "trainer": {"nnodes": 1, "n_gpus_per_node": 1}}
    given = replace(spec(tmp_path), stall_timeout_s=45.0, verl=verl)
    heart = main._heartbeat(given, "explorer", "explorer")
    assert (heart.watchdog.limit_s, heart.engines.limit_s) == (45.0, 45.0)
    assert main._workers(given, 0, heart, SimpleNamespace(arrived=print))._watchdog is heart.engines


def test_an_explorer_starts_dead_engines_as_often_as_it_would_be_started_and_tells_of_it(
    tmp_path, monkeypatch
):
    rollout = {"nnodes": 1, "n_gpus_per_node": 1, "tensor_model_parallel_size": 1}
    verl = {"actor_rollout_ref": {"rollout": rollout}, "trainer": {"nnodes": 1, "n_gpus_per_node": 1}}
    given = replace(spec(tmp_path), verl=verl)
    heart = main._heartbeat(given, "explorer", "explorer")
    assert main._workers(given, 0, heart, SimpleNamespace(arrived=print))._restarts == 0
    monkeypatch.setenv("TRINITY_COMPAT_RESTARTS", "2")
    made = main._workers(given, 0, heart, SimpleNamespace(arrived=print))
    made._note("engine 0 died")
    assert (made._restarts, heart.detail["note"]) == (2, "engine 0 died")


def test_time_passes_for_engines_while_the_event_loop_goes_round(tmp_path, heart, monkeypatch):
    monkeypatch.setattr(main, "TICK_S", 0.0)
    passed = []
    heart.engines.tick = lambda: passed.append(1)

    async def work():
        before = heart.watchdog.count
        await asyncio.sleep(0.01)
        assert heart.watchdog.count > before and passed
        told = len(passed)
        time.sleep(0.05)  # the loop stands still
        assert len(passed) == told

    asyncio.run(main._with_ticks(work(), heart))


def test_an_explorer_reports_its_work_and_not_its_idle_loop(heart):
    heart.main.progress()
    assert heart.progress() == (0, ["starts"])
    heart.state = "running"
    with heart.engines.doing("engine 0 owes 8 answers"):
        assert heart.progress() == (1, ["engine 0 owes 8 answers"])
    assert heart.progress() == (2, [])
