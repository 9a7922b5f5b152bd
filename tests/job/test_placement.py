"""Engines leave the trainer whole machines, and what can't be placed is said with numbers."""

import time

import pytest
from simulated_cluster import simulated_cluster

from trinity_compat.job import placement
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.supervise import cluster


@pytest.mark.parametrize(
    ("gpus", "trainer", "engines", "width", "nodes"),
    [
        ({"a": 4, "b": 8, "c": 4}, (1, 8), 4, 2, ["a", "a", "c", "c"]),
        ({"a": 8, "b": 8}, (1, 4), 8, 1, ["a"] * 4 + ["b"] * 4),
        ({"a": 8, "b": 8}, (2, 4), 2, 4, ["a", "b"]),  # two nodes of the trainer's are two machines
        ({"a": 8, "b": 2}, (0, 0), 1, 2, ["b"]),  # the least room that is enough
        ({"a": 8}, (1, 8), 1, 1, None),
        ({"a": 1, "b": 1}, (0, 0), 1, 2, None),  # an engine lies on one machine
    ],
)
def test_a_machine_for_each_engine_beside_the_trainer_s(gpus, trainer, engines, width, nodes):
    assert placement.engine_nodes(gpus, trainer, engines, width) == nodes


def test_one_machine_is_shared_by_both_sides():
    assert placement.engine_nodes({"a": 8}, (1, 4), 4, 1) == ["a"] * 4


def spec(device, gpus):
    return RunSpec("", "", {"trainer": {"nnodes": 1, "n_gpus_per_node": gpus}}, 1, None, SyncSpec(), device)


def test_a_ray_of_our_own_has_the_cpus_that_verl_s_groups_want():
    asked = cluster._init_arguments({}, None, None, placement.cpus_for(spec("cuda", 8)))
    assert asked["num_cpus"] >= 8 * 3
    assert cluster._init_arguments({"num_cpus": 5}, None, None, 32)["num_cpus"] == 5


def test_no_worker_starts_that_nobody_asked_for_unless_the_launch_says_so():
    assert cluster._init_arguments({}, None, 0)["_system_config"] == {"prestart_worker_first_driver": False}
    given = {"_system_config": {"prestart_worker_first_driver": True}}
    assert cluster._init_arguments(given, None, 0)["_system_config"] == given["_system_config"]


def test_ray_is_bound_to_this_machine():
    assert cluster._init_arguments({}, None, 0)["_node_ip_address"] == "127.0.0.1"


@pytest.fixture(scope="module")
def three_machines():
    import ray

    made = simulated_cluster(num_cpus=8, num_gpus=4)
    for gpus in (4, 8):
        made.add_node(num_cpus=30, num_gpus=gpus)
    ray.init(address=made.address, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def trainer_group(name):
    from ray.util import placement_group

    bundles = [{"CPU": placement.CPUS_PER_GPU, "GPU": 1}] * 8
    return placement_group(bundles, strategy="STRICT_PACK", name=f"{name}{placement.TRAINER}_8:0")


@pytest.mark.runtime
def test_the_trainer_s_group_fits_after_the_engines_and_a_second_is_told_of(three_machines, monkeypatch):
    import ray

    monkeypatch.setattr(placement, "_SETTLE_S", 300)
    room, placed = placement.gpus_by_node()
    assert (sorted(room.values()), placed) == ([4, 4, 8], False)
    engines = [placement.place_engine(2, node) for node in placement.engine_nodes(room, (1, 8), 4, 2)]
    assert all(group.wait(300) for group in engines)
    assert trainer_group("first").wait(300)
    room, placed = placement.gpus_by_node()
    assert (sorted(room.values()), placed) == ([0, 4, 4], True)
    second, told = trainer_group("second"), []
    with placement.report_when_pending(placement.TRAINER, told.append, after_s=0.5):
        until = time.monotonic() + 300
        while not told and time.monotonic() < until:
            time.sleep(0.1)
        ray.util.remove_placement_group(second)
        while len(told) < 2 and time.monotonic() < until:
            time.sleep(0.1)
    assert "waits for Ray to place 1 × (8 × 3 CPU + 1 GPU on one machine); free: " in told[0]
    assert "0 of 8 GPU, 6 of 30 CPU" in told[0]
    assert told[1:] == [""]
