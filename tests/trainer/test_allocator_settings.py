"""CUDA's allocator around a handover of weights, in the order of stock's handover to its own rollout."""

import asyncio
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.verl


@pytest.fixture
def calls(monkeypatch):
    """The calls of a platform, of an engine and of a receiver of weights, in one order."""
    import torch
    from verl.plugin.platform import platform_manager

    found = []
    device = SimpleNamespace(
        synchronize=lambda: found.append("synchronize"), empty_cache=lambda: found.append("empty the cache")
    )
    platform = SimpleNamespace(device_module=device, set_allocator_settings=found.append)
    monkeypatch.setattr(platform_manager, "_current_platform", platform)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    monkeypatch.setattr("verl.workers.engine_workers.log_gpu_memory_usage", lambda *_, **__: None)
    return found


def worker_of(kind, calls, *, fails=False):
    worker = object.__new__(kind)

    async def taken(*_, **__):
        calls.append("hand over")
        if fails:
            raise OSError("no space")
        return {}

    async def nothing(*_, **__):
        pass

    rollout = {"name": "vllm", "free_cache_engine": False, "checkpoint_engine": {"backend": "trinity_file"}}
    worker.config = OmegaConf.create({"model": {"path": "m"}, "rollout": rollout})
    worker.layered_summon, worker.peft_merge, worker.base_sync_done = False, False, True
    worker.rollout = SimpleNamespace(update_weights=taken, resume=nothing)
    worker.checkpoint_engine = SimpleNamespace(send_weights=taken)
    engine = SimpleNamespace(
        is_param_offload_enabled=True,
        get_per_tensor_param=lambda **_: (iter(()), None),
        to=lambda *_, **__: calls.append("offload"),
    )
    worker.actor = SimpleNamespace(engine=engine)
    return worker


STOCK = [
    "expandable_segments:False",
    "empty the cache",
    "hand over",
    "offload",
    "synchronize",
    "empty the cache",
    "expandable_segments:True",
]


def test_stock_verl_turns_expandable_segments_on_after_its_first_handover(calls):
    from verl.workers.engine_workers import ActorRolloutRefWorker

    asyncio.run(worker_of(ActorRolloutRefWorker, calls).update_weights(1, mode="naive"))
    assert calls == STOCK


@pytest.mark.parametrize("fails", [False, True])
def test_so_does_a_handover_to_the_explorer_s_engines(calls, fails):
    from trinity_compat.trainer.training_processes import TrainingOnlyWorker

    worker = worker_of(TrainingOnlyWorker, calls, fails=fails)
    if fails:
        with pytest.raises(OSError, match="no space"):
            asyncio.run(worker.update_weights(1))
    else:
        asyncio.run(worker.update_weights(1))
    assert calls == STOCK
