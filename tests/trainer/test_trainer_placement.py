"""In turns on several machines the trainer has its places before its first turn, and starts in them."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
from toy_job import HERE

from trinity_compat.job import placement
from trinity_compat.job.run_spec import RunSpec, SyncSpec

pytestmark = pytest.mark.verl


def spec(nodes, *, mode="colocate", device="cuda"):
    verl = {"trainer": {"nnodes": nodes, "use_v1": False}, "algorithm": {}}
    return RunSpec("/jobs/one", "", verl, 1, None, SyncSpec(), device, mode)


@pytest.fixture
def order(monkeypatch):
    """What the trainer did, in order."""
    from trinity_compat.trainer import main

    done = []

    class Exchange:
        def __init__(self, *_, **__):
            pass

        def wait_for_device(self):
            done.append("turn")

        def release(self):
            pass

    def built(config, exchange, datasets, device, kind, pool, told):
        done.append(f"built in {pool}")
        return SimpleNamespace(fit=lambda: None)

    @contextmanager
    def nothing(*_):
        yield

    monkeypatch.setattr(main, "Datasets", lambda _: SimpleNamespace(tokenizer=None, train=[], val=[]))
    monkeypatch.setattr(main, "BufferExchange", Exchange)
    monkeypatch.setattr(main, "_ray", nothing)
    monkeypatch.setattr(main, "RetentionThread", nothing)
    monkeypatch.setattr(main.placement, "report_when_pending", lambda *_: nullcontext())
    monkeypatch.setattr(main, "reserve_pool", lambda _, tag: done.append("placed") or f"pool of {tag}")
    monkeypatch.setattr(main, "build", built)
    return done


def trained(given):
    from omegaconf import OmegaConf

    from trinity_compat.trainer import main

    rest = {"data": {"train_batch_size": 4}, "actor_rollout_ref": {"rollout": {"n": 2}}}
    config = OmegaConf.create({"trainer": given.verl["trainer"], **rest})
    main._train_on_answers(given, config, None, SimpleNamespace(note=None, record_call=None))


@pytest.mark.parametrize(("nodes", "users"), [(2, False), (1, True)])
def test_places_come_before_the_turn_and_the_trainer_is_built_in_them(order, monkeypatch, nodes, users):
    if users:
        monkeypatch.setenv(placement.USERS_RAY, "1")
    trained(spec(nodes))
    assert order == ["placed", "turn", f"built in pool of {placement.tag_of('/jobs/one')}"]


@pytest.mark.parametrize(("nodes", "fields"), [(1, {}), (2, {"mode": "both"}), (2, {"device": "cpu"})])
def test_elsewhere_verl_takes_its_places_itself(order, nodes, fields):
    trained(spec(nodes, **fields))
    assert order == ["turn", "built in None"]


def test_verl_s_roles_are_given_the_places_and_take_no_others():
    from pathlib import Path

    from omegaconf import OmegaConf
    from toy_job import verl_config
    from verl.trainer.ppo.utils import Role

    from trinity_compat.trainer.verl_v0.adapter import _Roles

    config = OmegaConf.create(verl_config(Path("/nowhere/toy"), HERE))
    pool = object()
    _, pools, _ = _Roles().build(config, "cuda", pool)
    pools.create_resource_pool()  # veRL's init_workers calls it; without Ray another's would fail
    assert pools.get_resource_pool(Role.ActorRollout) is pool
    assert set(pools.resource_pool_spec) == {"global_pool"}
