"""A Ray with too few GPUs is an error that says so, not an actor that waits for ever."""

import asyncio
import os
import sys
from types import SimpleNamespace

import pytest
import ray.util.scheduling_strategies  # noqa: F401  found still where a test puts something in ray's place

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.network import LOOPBACK
from trinity_compat.explorer import main
from trinity_compat.explorer.rollout import worker_group
from trinity_compat.job.gpus import check_gpus
from trinity_compat.job.run_spec import RunSpec, SyncSpec


def spec(mode="both", *, trainer=(1, 1), rollout=(0, 8, 1), device="cuda", **fields):
    """``trainer``: nnodes, n_gpus_per_node; ``rollout``: these and the tensor parallel size."""
    nodes, places, width = rollout
    verl = {
        "trainer": {"nnodes": trainer[0], "n_gpus_per_node": trainer[1]},
        "actor_rollout_ref": {
            "rollout": {"nnodes": nodes, "n_gpus_per_node": places, "tensor_model_parallel_size": width}
        },
    }
    return RunSpec("", "", verl, 1, None, SyncSpec(), device=device, mode=mode, **fields)


def refused(given, side, have):
    with pytest.raises(UserError) as error:
        check_gpus(given, side, have)
    return str(error.value)


@pytest.mark.parametrize("side", ["trainer", "explorer"])
def test_both_sides_on_one_gpu_are_refused_by_each(side):
    assert refused(spec(), side, 1.0) == (
        "the run wants 2 GPUs, and Ray has 1: 1 for the trainer (trainer.n_gpus_per_node=1) + 1 for the"
        " explorer (1 engine × actor_rollout_ref.rollout.tensor_model_parallel_size=1)\n"
        "  hint: --mode colocate lets both sides use one GPU in turns; --set"
        " explorer.rollout_model.engine_num=N changes the number of engines; RAY_ADDRESS names a larger"
        " cluster"
    )


def test_a_number_that_an_option_gives_is_not_ray_s():
    with pytest.raises(UserError, match="the run wants 32 GPUs, and --gpus gives 8: ") as error:
        check_gpus(spec("colocate", trainer=(4, 8)), "trainer", 8, option="--gpus")
    assert error.value.hint == "--set trainer.n_gpus_per_node=2 fits; --gpus 32"


def test_engines_explorers_and_nodes_are_counted():
    given = spec(trainer=(2, 8), rollout=(1, 4, 2), explorers=2)  # 16 + 2 × 2 × 2
    message = refused(given, "explorer", 16.0)
    assert "the run wants 24 GPUs, and Ray has 16" in message
    assert "16 for the trainer (trainer.n_gpus_per_node=8 × trainer.nnodes=2)" in message
    assert "8 for the explorer (--explorers 2 × 2 engines ×" in message
    assert "--set trainer.n_gpus_per_node=4 fits" in message
    check_gpus(given, "explorer", 24.0)


@pytest.mark.parametrize(
    ("mode", "side", "wants"),
    [
        ("train", "trainer", 4),
        ("explore", "explorer", 2),  # another's engines may lie on another's Ray
        ("bench", "explorer", 2),
        ("colocate", "trainer", 4),
        ("colocate", "explorer", 4),
    ],
)
def test_a_command_of_its_own_needs_its_own_part(mode, side, wants):
    given = spec(mode, trainer=(1, 4), rollout=(0, 8, 2), explorers=1 if mode == "colocate" else 3)
    check_gpus(given, side, float(wants))
    assert f"the run wants {wants} GPUs, and Ray has {wants - 1}" in refused(given, side, wants - 1.0)


def test_a_ray_that_sees_none_is_another_matter():
    assert "CUDA_VISIBLE_DEVICES" in refused(spec(), "trainer", 0.0)


def test_without_gpus_none_are_counted():
    check_gpus(spec(device="cpu"), "trainer", 0.0)


class FakeRay:
    """A cluster with one GPU, on which the second engine's actor waits for its place."""

    def __init__(self, monkeypatch):
        self.actors, self.joined = [], []
        resources = {"cluster_resources": lambda: {"GPU": 1.0}, "available_resources": dict}
        module = SimpleNamespace(init=self._init, remote=lambda _: self, kill=None, **resources)
        module.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "a")
        monkeypatch.setitem(sys.modules, "ray", module)
        monkeypatch.setenv("RAY_ADDRESS", "somewhere")
        for name, answer in (
            ("gpus_by_node", ({"a": 1.0}, False)),
            ("place_engine", "group"),
            ("waiting", "waits for Ray to place 1 × (1 GPU)"),
        ):
            monkeypatch.setattr(worker_group.placement, name, lambda *_, answer=answer: answer)

    def options(self, **_):
        return self

    def remote(self, *_, **__):
        start = SimpleNamespace(remote=self._answer(len(self.actors)))
        self.actors.append(SimpleNamespace(start=start, identity=SimpleNamespace(remote=self._identity)))
        return self.actors[-1]

    def _init(self, **words):
        self.joined.append((words["address"], words.get("_node_ip_address")))

    async def _identity(self):
        return {"pid": os.getpid(), "started": 0.0, "node": "b", "host": "node7"}

    def _answer(self, index):
        def start():
            future = asyncio.get_running_loop().create_future()
            if index == 0:
                future.set_result(None)
            return future

        return start


def test_the_explorer_looks_when_it_has_joined_ray(monkeypatch):
    FakeRay(monkeypatch)
    with pytest.raises(UserError, match="the run wants 2 GPUs, and Ray has 1"):
        main._join_ray(spec())
    main._join_ray(spec("explore"))


def test_the_explorer_joins_the_ray_that_is_named_else_starts_one_for_this_machine_alone(
    monkeypatch, tmp_path
):
    fake, kept = FakeRay(monkeypatch), []
    monkeypatch.setattr(main.file_modes, "ray_folder", lambda: tmp_path)
    monkeypatch.setattr(main, "keep_ray_here", lambda: kept.append(len(fake.joined)))
    main._join_ray(spec("explore"))
    monkeypatch.delenv("RAY_ADDRESS")
    main._join_ray(spec("explore"))
    assert fake.joined == [("somewhere", None), ("local", LOOPBACK)]
    assert kept == [1]  # before the second alone


@pytest.mark.verl
def test_the_trainer_looks_when_it_has_joined_ray(monkeypatch):
    from trinity_compat.trainer import main as trainer

    ended = []
    monkeypatch.setenv("RAY_ADDRESS", "somewhere")
    monkeypatch.setattr(trainer, "get_ppo_ray_runtime_env", lambda _: {})
    fake = SimpleNamespace(
        init=lambda **_: None, cluster_resources=lambda: {"GPU": 1.0}, shutdown=lambda: ended.append(1)
    )
    monkeypatch.setattr(trainer, "ray", fake)
    with pytest.raises(UserError, match="the run wants 2 GPUs, and Ray has 1"), trainer._ray(spec(), None):
        raise AssertionError("it went on")
    assert ended


def start(given, check=lambda: None):
    made = worker_group.RolloutWorkers(given.verl, given.device, {})
    asyncio.run(made.start(check, timeout_s=0.0))


def test_engines_that_find_no_place_are_an_error_in_time(monkeypatch):
    FakeRay(monkeypatch)
    monkeypatch.setattr(worker_group, "START_S", 0.0)
    with pytest.raises(
        RunError,
        match=r"not started in 0 s \(engine 1, pid \d+ on node7\): they need 2 GPUs, and 0 of.*place 1",
    ):
        start(spec("explore", rollout=(1, 2, 1)))


def test_an_explorer_notices_while_its_engines_start_that_the_trainer_is_gone(monkeypatch):
    FakeRay(monkeypatch)

    def check():
        raise RuntimeError("the trainer failed")

    with pytest.raises(RuntimeError, match="the trainer failed"):
        start(spec("explore", rollout=(1, 2, 1)), check)


def test_engines_that_start_are_awaited_and_no_more(monkeypatch):
    FakeRay(monkeypatch)
    start(spec("explore"))


@pytest.mark.parametrize(
    ("visible", "index", "width", "seen"),
    [
        (None, 0, 1, "0"),
        (None, 0, 2, "0,1"),
        (None, 1, 2, "2,3"),
        ("4,5,6,7", 0, 2, "4,5"),
        ("4,5,6,7", 1, 2, "6,7"),
        ("GPU-a,GPU-b", 0, 1, "GPU-a"),
    ],
)
def test_an_engine_on_shared_devices_sees_as_many_as_it_is_wide(monkeypatch, visible, index, width, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert worker_group._shared_env(index, width)["CUDA_VISIBLE_DEVICES"] == seen
