"""An engine that dies under an explorer: the next one has its weights and its jobs, and the others go on.

Real actors of Ray in place of engines, which answer, die and hang as files of a folder tell them."""

import asyncio
import re
import time

import pytest

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.rollout import worker_group
from trinity_compat.synchronizer.transports.nccl import Rendezvous

pytestmark = pytest.mark.runtime

LIMIT_S = 120


def engines_of(folder):
    """Return a class of actors. It is local, so that Ray sends it to its workers by value."""
    import os

    from trinity_compat.common.hung_process import identity
    from trinity_compat.explorer.engine.trajectory import RolloutResult
    from trinity_compat.explorer.engine.vllm import EngineDied

    class Engine:
        def __init__(self, verl, device, index, **_):
            self.index, self.version, self.count, self.names = index, 0, 0, set()
            self.now("made")

        def now(self, what):
            """Note it; die if a file says so. Such a file is for one death."""
            with (folder / f"engine{self.index}").open("a") as out:
                out.write(f"{what}\n")
            if (order := folder / f"die{self.index} {what}").exists():
                order.unlink()
                os._exit(1)

        async def identity(self):
            import ray

            return {**identity(), "node": ray.get_runtime_context().get_node_id(), "host": ""}

        async def start(self):
            self.now("start")
            while (folder / f"holds{self.index}").exists():
                await asyncio.sleep(0.02)

        async def set_auxiliary_models(self, auxiliary):
            self.now(f"models {auxiliary}")

        async def load(self, file, version):
            self.now(f"load {version} of {os.path.basename(file.path)}")
            if not os.path.exists(file.path):
                raise RuntimeError(f"no file {file.path}")
            self.version = version

        async def sleep(self):
            self.now("sleep")

        async def wake(self):
            self.now("wake")

        async def score(self, token_ids):
            self.now("score")
            return [self.index]

        async def receive(self, meeting, first_rank):
            self.now("receive")
            return [{"digest": "", "nbytes": 0}]

        async def ended(self):
            told = 0
            while True:
                if told != self.count:
                    told = self.count
                    yield told
                await asyncio.sleep(0.01)

        async def progress(self):
            return
            yield

        async def run(self, jobs, name):
            """Answer each job when its file is there, by an error that says who answers."""
            self.now(f"run {[job.task_no for job in jobs]}")
            left = list(jobs)
            while left:
                self.now("step")
                if (folder / f"stops{self.index}").exists():
                    raise EngineDied("vLLM: its core has died")
                if (folder / f"raises{self.index}").exists():
                    raise ValueError("a fault of the request")
                for job in [job for job in left if (folder / f"go{job.task_no}").exists()]:
                    left.remove(job)
                    self.count += job.answers
                    yield RolloutResult(job.task_no, (), f"engine {self.index}, version {self.version}")
                await asyncio.sleep(0.02)

        async def abort(self, name):
            self.now("abort")

    return Engine


@pytest.fixture(scope="module")
def cluster():
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


class Explorer:
    """Two engines, and the answers that it has got of them."""

    def __init__(self, folder, restarts):
        self.folder, self.notes, self.answers = folder, [], []
        rollout = {"nnodes": 1, "n_gpus_per_node": 2, "tensor_model_parallel_size": 1, "max_num_seqs": 16}
        verl = {"actor_rollout_ref": {"rollout": rollout}}
        self.workers = worker_group.RolloutWorkers(verl, "cpu", {}, restarts=restarts, note=self.notes.append)

    def version(self, number):
        (self.folder / f"v{number}").touch()
        return WeightVersion(number, str(self.folder / f"v{number}"), "", 0)

    def order(self, *names):
        for name in names:
            (self.folder / name).touch()

    def asks(self, *tasks):
        """Ask for groups of 4 answers; the even tasks go to engine 0."""

        async def collect():
            async for answer in self.workers.run([RolloutTask(task, {}, 4, {}) for task in tasks]):
                self.answers.append((answer.task_no, answer.error))

        return asyncio.ensure_future(collect())

    def told(self, index):
        """Return the calls that an engine got, without those of its steps."""
        return [line for line in (self.folder / f"engine{index}").read_text().splitlines() if line != "step"]

    async def until(self, condition):
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until, (self.answers, self.notes, self.told(0), self.told(1))
            await asyncio.sleep(0.02)


@pytest.fixture
def explore(cluster, tmp_path, monkeypatch):
    """Runs a test with an explorer of two engines that have version 3."""
    monkeypatch.setattr(worker_group, "RolloutWorker", engines_of(tmp_path))

    def go(test, restarts=1):
        async def started():
            explorer = Explorer(tmp_path, restarts)
            try:
                await explorer.workers.start()
                await explorer.workers.set_auxiliary_models(["host:1"])
                await explorer.workers.load(explorer.version(3))
                await test(explorer)
            finally:
                explorer.workers.close()

        asyncio.run(asyncio.wait_for(started(), 2 * LIMIT_S))

    return go


def kill_the_actor(explorer):
    import ray
    from ray.exceptions import RayActorError

    actor = explorer.workers._actors[0]
    ray.kill(actor)
    with pytest.raises(RayActorError):
        while True:  # Ray kills it some time after the call has returned
            ray.get(actor.__ray_ready__.remote())


DEATHS = {
    "its process exits": lambda explorer: explorer.order("die0 step"),
    "its actor is killed": kill_the_actor,
    "vLLM's own process below it dies": lambda explorer: explorer.order("stops0"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_the_next_one_gets_the_version_in_place_and_the_unanswered_jobs_and_the_others_go_on(explore, death):
    async def test(explorer):
        await explorer.workers.load(explorer.version(4))
        asking = explorer.asks(0, 1, 2, 3, 4, 5)
        explorer.order("go0")
        await explorer.until(lambda: explorer.answers == [(0, "engine 0, version 4")])
        explorer.order("holds0")
        DEATHS[death](explorer)
        await explorer.until(lambda: explorer.notes)
        (explorer.folder / "stops0").unlink(missing_ok=True)
        later = explorer.asks(6, 7)  # begun while one is away
        explorer.order("go1", "go3", "go5", "go7")
        await explorer.until(lambda: len(explorer.answers) == 5)
        assert all(answer == "engine 1, version 4" for _, answer in explorer.answers[1:])
        (explorer.folder / "holds0").unlink()
        await explorer.until(lambda: {"run [2, 4]", "run [6]"} <= {*explorer.told(0)})
        await explorer.until(lambda: explorer.workers.room() == 2 * 17 - 3 * 4)
        explorer.order("go2", "go4", "go6")
        await asyncio.gather(asking, later)

        assert sorted(explorer.answers) == [(task, f"engine {task % 2}, version 4") for task in range(8)]
        files = [f"load {number} of v{number}" for number in (3, 4)]
        told, start = explorer.told(0), ["made", "start", "models ['host:1']"]
        begun = told.index("made", 1)
        assert told[:begun] == [*start, *files, "run [0, 2, 4]"]
        assert told[begun : begun + 4] == [*start, files[1]]
        assert sorted(told[begun + 4 :]) == ["run [2, 4]", "run [6]"]
        assert explorer.told(1)[-2:] == ["run [1, 3, 5]", "run [7]"]
        (note,) = explorer.notes
        again = r"engine 0 \(pid \d+\) died; started again \(0 restarts of an engine left\)"
        assert re.fullmatch(again, note)
        await explorer.until(lambda: explorer.workers.room() == 2 * 17)

    explore(test)


def test_the_others_answer_before_the_next_one_has_started(explore):
    """It starts when the explorer has its turn; until then nothing waits for it but its own jobs."""

    async def test(explorer):
        await explorer.workers.sleep()
        explorer.order("die0 step")
        asking = explorer.asks(0, 1)
        await explorer.until(lambda: explorer.notes)
        explorer.order("go0", "go1")
        await explorer.until(lambda: explorer.answers == [(1, "engine 1, version 3")])
        assert explorer.told(0).count("made") == 1, "the device is the trainer's"
        await explorer.workers.wake()
        await explorer.workers.load(explorer.version(5))
        await asking
        assert explorer.answers[1:] == [(0, "engine 0, version 5")]
        assert explorer.told(0).count("wake") == 0 and explorer.told(1).count("wake") == 1

    explore(test)


def test_one_that_dies_asleep_without_a_job_is_missed_when_it_should_wake(explore):
    async def test(explorer):
        await explorer.workers.sleep()
        kill_the_actor(explorer)
        await explorer.workers.wake()
        assert len(explorer.notes) == 1
        await explorer.workers.load(explorer.version(5))
        assert await explorer.workers.score([1]) == [[0], [1]]
        assert explorer.told(0)[-2:] == ["load 5 of v5", "score"]
        await explorer.workers.sleep()
        assert explorer.told(0)[-1] == "sleep"

    explore(test)


def test_a_turn_ends_when_one_that_starts_again_sleeps_too(explore):
    async def test(explorer):
        explorer.order("die0 sleep")
        await explorer.workers.sleep()
        assert explorer.told(0)[-1] == "sleep" and explorer.told(0).count("made") == 2
        assert explorer.told(1).count("sleep") == 1

    explore(test)


def test_a_death_in_a_load_and_the_next_one_has_what_the_others_have_by_then(explore):
    async def test(explorer):
        new, newest = explorer.version(4), explorer.version(5)
        explorer.order("die0 load 4 of v4")
        await explorer.workers.load(new)
        await explorer.workers.load(newest)
        (explorer.folder / "v4").unlink()
        asking = explorer.asks(0, 1)
        explorer.order("go0", "go1")
        await asking
        assert sorted(explorer.answers) == [(0, "engine 0, version 5"), (1, "engine 1, version 5")]

    explore(test)


def test_a_load_that_failed_leaves_the_next_one_the_version_before(explore):
    async def test(explorer):
        missing = WeightVersion(4, "/nowhere", "", 0)
        with pytest.raises(RunError, match="no file /nowhere"):
            await explorer.workers.load(missing)
        kill_the_actor(explorer)
        explorer.order("go0")
        await explorer.asks(0)
        assert explorer.answers == [(0, "engine 0, version 3")]

    explore(test)


def test_without_a_restart_left_the_explorer_fails(explore):
    async def test(explorer):
        for task in (0, 2):
            asking = explorer.asks(task)
            kill_the_actor(explorer)
            explorer.order(f"go{task}")
            if task == 0:
                await asking
        with pytest.raises(RunError, match="the explorer's engine failed: "):
            await asking
        assert len(explorer.notes) == 1 and explorer.told(0).count("made") == 2

    explore(test)


def test_one_that_dies_as_it_starts_again_is_not_started_for_ever(explore):
    async def test(explorer):
        explorer.order("die0 start")
        kill_the_actor(explorer)
        with pytest.raises(RunError, match="the explorer's engine failed: "):
            await explorer.asks(0)
        with pytest.raises(RunError, match="the explorer's engine failed: "):
            await explorer.workers.score([1])
        assert explorer.told(0).count("made") == 2

    explore(test, restarts=9)


def test_one_that_dies_in_the_first_start_ends_it(explore, tmp_path):
    (tmp_path / "die1 start").touch()

    async def test(explorer):
        pytest.fail("it started")

    with pytest.raises(RunError, match="the explorer's engine failed: "):
        explore(test, restarts=9)
    assert (tmp_path / "engine1").read_text().splitlines() == ["made", "start"]


def test_an_error_of_a_living_engine_is_raised(explore):
    async def test(explorer):
        explorer.order("raises0")
        with pytest.raises(RunError, match=r"the explorer's engine failed: .*a fault of the request"):
            await explorer.asks(0, 1)
        assert explorer.notes == [] and explorer.told(0).count("made") == 1

    explore(test)


def test_weights_without_a_file_are_not_to_be_had_again(explore):
    """sync_method nccl; before its first transfer all engines have the model's own."""
    meeting = Rendezvous("1", "1", "127.0.0.1", 1, world_size=3, version=4, timeout_s=60.0)

    async def test(explorer):
        await explorer.workers.receive(meeting, 1)
        kill_the_actor(explorer)
        with pytest.raises(RunError, match="the explorer's engine failed: "):
            await explorer.asks(0, 1)
        (note,) = explorer.notes
        assert note.endswith("not started again, since sync_method nccl keeps no file of the weights")
        assert explorer.told(0).count("made") == 1

    explore(test)


def test_what_the_watchdog_has_killed_ends_the_explorer(explore):
    async def test(explorer):
        explorer.workers._watchdog.found_a_stall = True
        kill_the_actor(explorer)
        with pytest.raises(RunError, match="the explorer's engine failed: "):
            await explorer.asks(0, 1)
        assert explorer.notes == []

    explore(test)
