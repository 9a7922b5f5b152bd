"""Mode colocate on a machine of four GPUs, as far as that goes without one: a Ray that pretends to have them,
all of them veRL's trainer's, and engines that note what they are told and which devices they see."""

import asyncio
import os

import pytest
from noting_engine import noting_engine

from trinity_compat.buffer import open_buffer
from trinity_compat.explorer.engine.weights import SharedDevice
from trinity_compat.explorer.rollout import worker_group
from trinity_compat.job import placement
from trinity_compat.synchronizer.device_turns import DeviceTurn

pytestmark = pytest.mark.runtime

GPUS = 4


@pytest.fixture(scope="module")
def trainer():
    """All GPUs of a Ray that this process has joined, taken as veRL's trainer takes them on GPUs: a place of
    one GPU for each of its processes, all on one machine."""
    import ray
    from ray.util import placement_group

    ray.init(
        address="local", num_cpus=4 * GPUS, num_gpus=GPUS, include_dashboard=False, logging_level="ERROR"
    )
    try:
        bundles = [{"CPU": placement.CPUS_PER_GPU, "GPU": 1}] * GPUS
        group = placement_group(bundles, strategy="STRICT_PACK", name=f"{placement.TRAINER}_4:0")
        assert group.wait(300)
        yield group
    finally:
        ray.shutdown()


def noting(folder):
    return noting_engine(folder, lambda shared: f"shared {shared}, sees {os.environ['CUDA_VISIBLE_DEVICES']}")


def started(folder, monkeypatch, width):
    monkeypatch.setattr(worker_group, "RolloutWorker", noting(folder))
    rollout = {"nnodes": 1, "n_gpus_per_node": GPUS, "tensor_model_parallel_size": width}
    return worker_group.RolloutWorkers({"actor_rollout_ref": {"rollout": rollout}}, "cuda", {}, shared=True)


def noted(folder):
    return [path.read_text().splitlines() for path in sorted(folder.iterdir())]


@pytest.mark.parametrize(
    ("visible", "width", "seen"),
    [
        (None, 1, ["0", "1", "2", "3"]),
        (None, 2, ["0,1", "2,3"]),
        (None, 4, ["0,1,2,3"]),
        ("4,5,6,7", 2, ["4,5", "6,7"]),
    ],
)
def test_engines_start_on_the_trainer_s_gpus_each_on_its_own(
    trainer, tmp_path, monkeypatch, visible, width, seen
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    made = started(tmp_path, monkeypatch, width)

    async def go():
        await made.start()
        made.close()

    asyncio.run(go())
    assert noted(tmp_path) == [[f"shared True, sees {devices}", "start"] for devices in seen]


def test_all_engines_sleep_before_the_trainer_s_turn_and_wake_in_their_own(trainer, tmp_path, monkeypatch):
    buffer = open_buffer(f"sqlite:///{tmp_path}/b.db")
    folder = tmp_path / "engines"
    folder.mkdir()
    made = started(folder, monkeypatch, 2)
    explorer, other = DeviceTurn(buffer, "explorer"), DeviceTurn(buffer, "trainer")
    device = SharedDevice(explorer, made)

    async def go():
        await made.start()
        for turn in range(3):
            await device.use()
            await device.leave()
            assert other.is_mine() and [lines[-1] for lines in noted(folder)] == ["sleep", "sleep"], turn
            await device.leave()  # no turn of its own: nothing happens
            other.give()
        made.close()

    asyncio.run(go())
    for lines in noted(folder):
        assert lines[1:] == ["start", "sleep", "wake", "sleep", "wake", "sleep"]
