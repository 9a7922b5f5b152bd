"""Two vLLM workers behind a queue each, as MultiprocExecutor has them: whatever a rank says of one load, the
next call gets its own answers."""

import asyncio
from collections import deque
from types import SimpleNamespace

import pytest
import torch

from trinity_compat.errors import RunError
from trinity_compat.explorer.engine import AsyncEngine
from trinity_compat.plugins.vllm_weights import WeightReceiver
from trinity_compat.synchronizer.files import WeightFile, WeightsDamaged, write_file

MODEL = SimpleNamespace(dtype=torch.float32, quantization=None)
CONFIG = SimpleNamespace(quant_config=None, speculative_config=None, model_config=MODEL)


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

    async def reset_encoder_cache(self):
        self.done.append("forget images")

    async def pause_generation(self, mode, clear_cache):
        self.done.append("pause")

    async def reset_prefix_cache(self, reset_running_requests):
        self.done.append("reset")

    async def resume_generation(self):
        self.done.append("resume")


def engine(*workers):
    made = AsyncEngine(None)
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
    with pytest.raises(RuntimeError, match="EngineCore died"):
        load(made, good)
    assert made._engine.done == ["pause", "resume"]
