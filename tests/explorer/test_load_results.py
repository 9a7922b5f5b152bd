"""Two vLLM workers behind a queue each, as MultiprocExecutor has them: whatever a rank says of one load, the
next call gets its own answers."""

import asyncio
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine import vllm as engines
from trinity_compat.explorer.engine.vllm import AsyncEngine, EngineConfig, EngineDied, GenerationRequest
from trinity_compat.plugins import vllm_weights
from trinity_compat.plugins.vllm_weights import WeightReceiver, grouped_in_parts
from trinity_compat.synchronizer.transports.files import WeightFile, WeightsDamaged, write_file

MODEL = SimpleNamespace(dtype=torch.float32, quantization=None)
CONFIG = SimpleNamespace(quant_config=None, speculative_config=None, lora_config=None, model_config=MODEL)


class Model(torch.nn.Module):
    """As much of vLLM's as veRL's update looks at."""

    def __init__(self, lacks):
        super().__init__()
        self.got, self.lacks, self.model = {}, lacks, SimpleNamespace(layers=[])

    def load_weights(self, named):
        for name, tensor in named:
            if name in self.lacks:
                raise KeyError(name)
            self.got[name] = tensor


class Worker(WeightReceiver):
    def __new__(cls, *_, **__):
        return super().__new__(cls)

    def __init__(self, rank, lacks=()):
        self.rank, self.local_rank, self.device, model = rank, rank, torch.device("cpu"), Model(lacks)
        self.model_runner = SimpleNamespace(model=model, get_model=lambda: model, vllm_config=CONFIG)

    @property
    def got(self):
        return self.model_runner.model.got


class Executor:
    """vLLM's engine: the first rank's exception ends the call, and the others' answers stay queued
    (vllm 0.28, v1/executor/multiproc_executor.py, get_response)."""

    def __init__(self, *workers):
        self.workers, self.queues = workers, [deque() for _ in workers]
        self.done, self.dead = [], False

    async def collective_rpc(self, method, args=()):
        if self.dead:
            raise RuntimeError("EngineCore died")
        for worker, queue in zip(self.workers, self.queues, strict=True):
            try:
                queue.append((True, getattr(worker, method)(*args)))
            except Exception as error:
                queue.append((False, error))
        answers = []
        for queue in self.queues:
            good, answer = queue.popleft()
            if not good:
                raise RuntimeError(f"Worker failed with error '{answer}'")
            answers.append(answer)
        return answers

    @property
    def errored(self):
        return self.dead

    async def sleep(self, level, mode):
        await self.collective_rpc("sleep")

    async def wake_up(self, tags):
        await self.collective_rpc("wake_up")

    async def reset_encoder_cache(self):
        self.done.append("forget images")

    async def pause_generation(self, mode, clear_cache):
        self.done.append("pause")

    async def reset_prefix_cache(self, reset_running_requests):
        self.done.append("reset")

    async def resume_generation(self):
        self.done.append("resume")


def engine(*workers):
    made = AsyncEngine(EngineConfig({}, vocabulary=9))
    made._engine = Executor(*workers)
    return made


def load(engine, file):
    asyncio.run(engine.load(file))


@pytest.fixture
def good(tmp_path):
    return write_file(tmp_path, 1, [("w", torch.ones(3))])


def test_after_a_damaged_file_the_next_load_gets_its_own_answers(good):
    both = Worker(0), Worker(1)
    made = engine(*both)
    with pytest.raises(WeightsDamaged, match="not what was published"):
        load(made, WeightFile(good.path, "0" * 64, good.nbytes))
    load(made, good)
    assert all(torch.equal(worker.got["w"], torch.ones(3)) for worker in both)


def test_what_one_rank_cannot_load_is_said_and_stays_with_its_call(good, tmp_path):
    made = engine(Worker(0), Worker(1, lacks=("odd",)))
    odd = write_file(tmp_path, 2, [("odd", torch.ones(3))])
    with pytest.raises(RunError, match="vLLM could not load the weights: KeyError: 'odd'"):
        load(made, odd)
    load(made, good)


def test_generation_goes_on_whatever_becomes_of_a_load(good):
    made = engine(Worker(0))
    made._engine.dead = True
    with pytest.raises(EngineDied, match="EngineCore died"):
        load(made, good)
    assert made._engine.done == ["pause", "resume"]


@pytest.mark.parametrize("method", ["dtypes", "sleep", "wake"])
def test_whatever_finds_vllm_s_processes_dead_says_so(method):
    made = engine(Worker(0))
    made._config, made._engine.dead = EngineConfig({}, vocabulary=9), True
    with pytest.raises(EngineDied, match="EngineCore died"):
        asyncio.run(getattr(made, method)())


@pytest.fixture
def started(monkeypatch):
    """What vLLM's engine has been asked for when an engine with one argument has started."""
    from vllm.v1.engine.async_llm import AsyncLLM

    class Started(Executor):
        output_processor = SimpleNamespace(process_outputs=None)

        async def collective_rpc(self, method, args=()):
            self.done.append(method)
            return [{"failed": "no such file"}] if method == "receive_model" and self.dead else [{}]

    def of(load_format, *, dead=False, **more):
        inner = Started()
        inner.dead = dead
        monkeypatch.setattr(engines, "engine_args", lambda *_: None)
        monkeypatch.setattr(AsyncLLM, "from_engine_args", lambda _: inner)
        made = AsyncEngine(EngineConfig({"load_format": load_format, **more}, vocabulary=9))
        asyncio.run(made.start())
        return inner.done

    return of


def test_an_engine_that_begins_with_random_weights_is_given_the_model_s(started):
    assert started("auto") == ["mask_vocabulary"]
    handed = ["pause", "receive_model", "reset", "forget images", "resume"]
    assert started("dummy") == ["mask_vocabulary", *handed]
    with pytest.raises(RunError, match="vLLM could not load the weights: no such file"):
        started("dummy", dead=True)


def test_an_engine_for_adapters_begins_with_one_of_zeros(started):
    assert started("auto", enable_lora=True) == ["mask_vocabulary", "begin_unadapted"]


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ({}, 2),
        ({"load_format": "dummy"}, 2),
        ({"enable_lora": True}, 1),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, 1),
    ],
)
def test_weights_that_no_version_brings_are_kept_in_the_host_s_memory_and_others_dropped(arguments, level):
    slept, made = [], AsyncEngine(EngineConfig(arguments, vocabulary=9))

    async def sleep(level, mode):
        slept.append((level, mode))

    async def collective_rpc(method):
        slept.append(method)

    made._engine = SimpleNamespace(sleep=sleep, collective_rpc=collective_rpc)
    asyncio.run(made.sleep())
    assert slept == ["forget_held", (level, "keep")]


def test_every_request_names_the_adapter_where_there_is_one():
    named = {}

    async def generate(prompt, params, request_id, **more):
        named[request_id] = more.get("lora_request")
        yield SimpleNamespace(outputs=[], prompt_logprobs=None)

    async def ask(enabled):
        made = AsyncEngine(EngineConfig({"enable_lora": enabled}, vocabulary=9))
        made._engine = SimpleNamespace(generate=generate, errored=False)
        (answer,) = await made.submit([GenerationRequest(str(enabled), [1], {})])
        await answer

    for enabled in (True, False):
        asyncio.run(ask(enabled))
    assert named == {"True": vllm_weights.adapter_request(), "False": None}


class Copies(TorchDispatchMode):
    """Counts what goes from one device to another."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._to_copy.default
        return function(*args, **(kwargs or {}))


def test_banned_tokens_are_copied_to_the_device_once_and_not_at_every_token():
    """A copy to a GPU waits for what runs there, and vLLM prepares a step while the last one runs."""
    worker = Worker(0)
    model = worker.model_runner.model
    model.compute_logits = lambda count: torch.zeros(count, 6, device="meta")
    worker.mask_vocabulary(4, (1,))
    with Copies() as copies:
        for _ in range(3):
            model.compute_logits(2)
    assert copies.count == 1


@pytest.fixture
def quantizing(monkeypatch):
    """A worker whose layers are quantized as weights arrive, and what veRL's steps of that have seen."""
    from verl.utils.vllm import vllm_quant_utils
    from verl.workers.rollout.vllm_rollout import utils

    seen = []

    def load_quantized(named, _runner):
        seen.extend((name, tensor.device.type) for name, tensor in named)
        return [name for name, _ in named]

    monkeypatch.setattr(utils, "is_quantized_model", lambda _: True)
    monkeypatch.setattr(utils, "load_quanted_weights", load_quantized)
    for step in ("prepare", "process"):
        name = {
            "prepare": "prepare_quanted_weights_for_loading",
            "process": "process_quanted_weights_after_loading",
        }
        monkeypatch.setattr(vllm_quant_utils, name[step], lambda *_, step=step: seen.append(step))
    worker = Worker(0)
    worker._is_qat_model = worker._is_modelopt_qat = False
    worker.device = torch.device("meta")  # stands for a GPU
    return worker, seen


def test_what_is_quantized_lies_on_the_device_that_quantizes_it(quantizing, good):
    worker, seen = quantizing
    answer = worker.receive_file(good.path, good.digest, good.nbytes)
    assert (answer["tensors"], answer["digest"], answer["proof"]) == (1, good.digest, "recorded")
    assert seen == ["prepare", ("w", "meta"), "process"]


def test_the_model_s_own_files_arrive_as_a_version_does(quantizing, monkeypatch):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    monkeypatch.setattr(
        DefaultModelLoader, "get_all_weights", lambda *_: iter([(f"w{i}", torch.ones(2)) for i in range(3)])
    )
    monkeypatch.setattr(vllm_weights, "PART_BYTES", 16)
    worker, seen = quantizing
    assert worker.receive_model() == {"tensors": 3}
    assert seen == ["prepare", *((f"w{i}", "meta") for i in range(3)), "process"]


def test_files_that_cannot_be_read_are_the_answer_of_their_rank(quantizing, monkeypatch):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    def missing(*_):
        raise RuntimeError("Cannot find any model weights with `/m`")
        yield

    monkeypatch.setattr(DefaultModelLoader, "get_all_weights", missing)
    failed = "RuntimeError: Cannot find any model weights with `/m`"
    assert quantizing[0].receive_model() == {"failed": failed}


def test_weights_go_in_parts_of_some_size(monkeypatch):
    monkeypatch.setattr(vllm_weights, "PART_BYTES", 16)
    named = [(str(size), torch.ones(size)) for size in (2, 2, 9, 1)]
    assert [[name for name, _ in part] for part in grouped_in_parts(named)] == [["2", "2"], ["9"], ["1"]]
    assert not list(grouped_in_parts([]))
