"""Mode colocate on several machines, as far as that goes without one: a Ray of machines that pretend to have
GPUs, veRL's own pool taking some of them in a process of its own, and engines that note what they see."""

import asyncio
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from noting_engine import noting_engine
from simulated_cluster import simulated_cluster

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine import trainer_devices
from trinity_compat.explorer.engine.trainer_devices import Devices, engines_on
from trinity_compat.explorer.engine.weights import SharedDevice
from trinity_compat.explorer.rollout import worker_group
from trinity_compat.job import placement
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.synchronizer.device_turns import DeviceTurn

NODES, EACH = 2, 4
JOB = "/jobs/one"
TRAINER = """
import sys, ray
from omegaconf import OmegaConf
from trinity_compat.job import placement
from trinity_compat.trainer.training_processes import reserve_pool
ray.init(address=sys.argv[1], logging_level="ERROR")
sizes = {"nnodes": int(sys.argv[2]), "n_gpus_per_node": int(sys.argv[3]), "device": "cuda"}
reserve_pool(OmegaConf.create({"trainer": sizes}), placement.tag_of(sys.argv[4]))
print("placed", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("width", "numbers"),
    [
        (1, [("0",), ("1",), ("2",), ("3",)] * 2),
        (2, [("0", "1"), ("2", "3")] * 2),
        (4, [("0", "1", "2", "3")] * 2),
        (3, [("0", "1", "2")] * 2),  # never one of two machines
    ],
)
def test_engines_lie_on_one_machine_each(width, numbers):
    machines = [Devices(node, ("0", "1", "2", "3")) for node in "ab"]
    engines = engines_on(machines, width)
    assert [each.numbers for each in engines] == numbers
    assert [each.node for each in engines] == sorted("ab" * (len(numbers) // 2))


@pytest.fixture(scope="module")
def cluster():
    """A head without GPUs, two machines of four and one of eight; this process has joined it."""
    import ray

    made = simulated_cluster(num_cpus=8, num_gpus=0)
    for gpus in (EACH, EACH, 2 * EACH):
        made.add_node(num_cpus=3 * gpus, num_gpus=gpus)
    ray.init(address=made.address, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def trainers(cluster):
    """Starts veRL's pool as the trainer of a run takes it, in a job of its own."""
    started = []

    def start(nodes, each, job):
        words = [sys.executable, "-c", TRAINER, cluster.address, str(nodes), str(each), job]
        env = os.environ | {"VERL_PLATFORM": "nvidia"}
        made = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        started.append(made)
        for line in made.stdout:
            if line == "placed\n":
                return
        pytest.fail("no place for the trainer")

    yield start
    for made in started:
        made.communicate("")


def noting(folder):
    def placed(shared):
        import ray

        seen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        return json.dumps([shared, ray.get_runtime_context().get_node_id(), seen])

    return noting_engine(folder, placed)


def spec(width, *, job=JOB, nodes=NODES, each=EACH, **fields):
    rollout = {"nnodes": 1, "n_gpus_per_node": nodes * each, "tensor_model_parallel_size": width}
    verl = {
        "trainer": {"nnodes": nodes, "n_gpus_per_node": each},
        "actor_rollout_ref": {"rollout": rollout},
    }
    given = {"device": "cuda", "mode": "colocate", **fields}
    return RunSpec(job, "", verl, 1, None, SyncSpec(), **given)


def made_for(given):
    return worker_group.RolloutWorkers(
        given.verl, "cuda", {}, shared=True, place=worker_group.EnginePlacement.of(given, 0)
    )


def noted(folder):
    return [path.read_text().splitlines() for path in sorted(folder.iterdir())]


@pytest.mark.runtime
def test_engines_sleep_and_wake_on_every_gpu_that_ray_gave_the_trainer(
    cluster, trainers, tmp_path, monkeypatch
):
    trainers(1, EACH, "/jobs/another")
    trainers(NODES, EACH, JOB)
    folder = tmp_path / "engines"
    folder.mkdir()
    monkeypatch.setattr(worker_group, "RolloutWorker", noting(folder))
    made, buffer = made_for(spec(2)), open_buffer(f"sqlite:///{tmp_path}/b.db")
    other, device = DeviceTurn(buffer, "trainer"), SharedDevice(DeviceTurn(buffer, "explorer"), made)

    async def go():
        await made.start()
        for turn in range(3):
            await device.use()
            await device.leave()
            assert other.is_mine() and {lines[-1] for lines in noted(folder)} == {"sleep"}, turn
            other.give()
        made.close()

    asyncio.run(go())
    seen = [json.loads(lines[0]) for lines in noted(folder)]
    of_trainer = {
        node
        for group in placement.trainer_groups(placement.tag_of(JOB)).values()
        for node in group["bundles_to_node_id"].values()
    }
    assert len(seen) == NODES * EACH // 2 and all(shared for shared, _, _ in seen)
    assert {node for _, node, _ in seen} == of_trainer and len(of_trainer) == NODES
    taken = [(node, number) for _, node, numbers in seen for number in numbers]
    assert len(set(taken)) == NODES * EACH  # every GPU has one engine
    assert [lines[1:] for lines in noted(folder)] == [
        ["start", "sleep", "wake", "sleep", "wake", "sleep"]
    ] * len(seen)


@pytest.mark.runtime
def test_on_a_user_s_ray_engines_of_one_machine_follow_the_trainer_too(
    cluster, trainers, tmp_path, monkeypatch
):
    """Neighbours hold 12 of the 16 GPUs, and this process is on the head, which has none."""
    monkeypatch.setenv(placement.USERS_RAY, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    neighbours = [f"/jobs/neighbour{number}" for number in range(3)]
    for job in (*neighbours, "/jobs/small"):
        trainers(1, EACH, job)
    monkeypatch.setattr(worker_group, "RolloutWorker", noting(tmp_path))
    made = made_for(spec(2, job="/jobs/small", nodes=1))

    async def devices(job):
        tag = placement.tag_of(job)
        return await trainer_devices.wait_for_devices(tag, EACH, lambda: None, limit_s=300)

    async def go():
        await made.start()
        made.close()
        return [await devices(job) for job in (*neighbours, "/jobs/small")]

    *others, own = [
        {(each.node, number) for each in machine for number in each.numbers} for machine in asyncio.run(go())
    ]
    seen = [json.loads(lines[0]) for lines in noted(tmp_path)]
    assert {(node, number) for _, node, numbers in seen for number in numbers} == own and len(own) == EACH
    assert not own & set().union(*others)


@pytest.mark.runtime
def test_a_trainer_that_ray_cannot_place_is_waited_for_and_told_of(cluster, monkeypatch):
    monkeypatch.setattr(trainer_devices, "_POLL_S", 0.0)
    monkeypatch.setattr(worker_group, "START_S", 0.0)
    with pytest.raises(RunError, match=r"no place for all of its processes after 0 s: 0 of 8 are there"):
        asyncio.run(made_for(spec(2, job="/jobs/nobody")).start(timeout_s=0.0))

    def check():
        raise RuntimeError("the trainer failed")

    with pytest.raises(RuntimeError, match="the trainer failed"):
        asyncio.run(made_for(spec(2, job="/jobs/nobody")).start(check))


@pytest.mark.parametrize("fields", [{"nodes": 1}, {"device": "cpu"}, {"mode": "both"}, {"mode": "bench"}])
def test_elsewhere_nobody_looks_for_the_trainer_s_places(fields):
    assert not worker_group.EnginePlacement.of(spec(2, **fields), 0).tag


def test_on_a_user_s_ray_those_of_one_machine_are_looked_for(monkeypatch):
    monkeypatch.setenv(placement.USERS_RAY, "1")
    assert worker_group.EnginePlacement.of(spec(2, nodes=1), 0).tag == placement.tag_of(JOB)
    assert not worker_group.EnginePlacement.of(spec(2, nodes=1, device="cpu"), 0).tag


def test_a_place_is_told_by_its_machine_and_the_first_gpu_that_it_sees(monkeypatch):
    import ray

    seen = SimpleNamespace(get_node_id=lambda: "machine", get_accelerator_ids=lambda: {"GPU": [5, 6]})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: seen)
    assert trainer_devices._own_device() == ("machine", "5")
