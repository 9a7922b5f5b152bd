"""Engines whose machine vanishes, on a Ray of machines that pretend to have a GPU each."""

import asyncio
import os
import signal
import time

import pytest
from simulated_cluster import simulated_cluster

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.rollout import worker_group
from trinity_compat.job import machines

pytestmark = pytest.mark.runtime


def answering(folder):
    """Return a class of actors that answer with their machine once there is a file ``go``.

    It is local, so that Ray sends it to its workers by value.
    """
    from trinity_compat.common.hung_process import identity
    from trinity_compat.explorer.engine.trajectory import RolloutResult

    class Engine:
        def __init__(self, verl, device, index, **_):
            self.index, self.version = index, None

        def node(self):
            import ray

            return ray.get_runtime_context().get_node_id()

        async def identity(self):
            return {**identity(), "node": self.node(), "host": "another"}

        async def start(self):
            pass

        async def set_auxiliary_models(self, auxiliary):
            pass

        async def load(self, file, version):
            self.version = version

        async def ended(self):
            return
            yield

        async def progress(self):
            return
            yield

        async def run(self, jobs, name):
            (folder / f"works{self.index}").touch()
            while not (folder / "go").exists():
                await asyncio.sleep(0.05)
            for job in jobs:
                yield RolloutResult(job.task_no, (), f"{self.node()} {self.version}")

    return Engine


@pytest.fixture
def cluster():
    import ray

    made = simulated_cluster(num_cpus=4, num_gpus=0, include_dashboard=False)
    nodes = {each.node_id: each for each in (made.add_node(num_cpus=1, num_gpus=1) for _ in range(2))}
    ray.init(address=made.address, logging_level="ERROR")
    yield made, nodes
    ray.shutdown()
    made.shutdown()


async def until(condition):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 300
        await asyncio.sleep(0.05)


def test_they_are_started_on_a_machine_that_comes_and_answer_what_they_owe(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_group, "RolloutWorker", answering(tmp_path))
    (made, nodes), notes, answers = cluster, [], {}
    verl = {
        "actor_rollout_ref": {"rollout": {"nnodes": 1, "n_gpus_per_node": 2, "tensor_model_parallel_size": 1}}
    }
    workers = worker_group.RolloutWorkers(verl, "cuda", {}, note=notes.append)

    async def go():
        await workers.start()
        await workers.load(WeightVersion(3, str(tmp_path), "", 0))
        first, second = (workers._nodes[index] for index in (0, 1))
        assert {first, second} == {*nodes}

        async def collect():
            async for answer in workers.run([RolloutTask(task, {}, 1, {}) for task in range(4)]):
                answers[answer.task_no] = answer.error

        asking = asyncio.ensure_future(collect())
        await until(lambda: {"works0", "works1"} <= {path.name for path in tmp_path.iterdir()})
        os.kill(nodes[first].all_processes["raylet"][0].process.pid, signal.SIGKILL)
        await until(lambda: notes)
        third = made.add_node(num_cpus=1, num_gpus=1)  # Ray sets a handler of signals in it
        (tmp_path / "go").touch()
        await asking
        assert answers == {task: f"{third.node_id if task % 2 == 0 else second} 3" for task in range(4)}
        workers.close()

    asyncio.run(go())
    (note,) = (note for note in notes if "died" in note)
    assert note.startswith("Ray has lost the machine ") and note.endswith("; started again elsewhere")


def test_a_fault_on_a_machine_that_lives_is_no_loss_of_it(cluster, monkeypatch):
    import ray

    monkeypatch.setattr(machines, "_KNOWN_S", 0.0)
    monkeypatch.setattr(machines, "_UNKNOWN_S", 0.0)

    @ray.remote(max_retries=0)
    def fails():
        raise ValueError("a fault of the program")

    for error in (ray.exceptions.RayTaskError, RunError):
        with pytest.raises(error), machines.watched():
            if error is RunError:
                raise RunError("none of Ray's")
            ray.get(fails.remote())
