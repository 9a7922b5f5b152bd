"""Contracts of the runtime with vLLM and NCCL, over engines that start once and serve row after row.

``Bench`` holds the engines. After a contract that fails they are ended, and the next one starts its own.
``contracts.py MODEL DEVICE`` is a trainer's rank 0: each line that it reads is an order to send weights
(``_send_orders``), each that it prints what was sent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import jobs
import models
from jobs import Failed

if TYPE_CHECKING:
    import torch

    from trinity_compat.explorer.engine.vllm import Completion
    from trinity_compat.explorer.rollout.worker import RolloutWorker
    from trinity_compat.synchronizer.transports.files import WeightFile
    from trinity_compat.synchronizer.transports.nccl import Rendezvous

    Weights = Mapping[str, torch.Tensor]

Figures = Mapping[str, Any]
_T = TypeVar("_T")
# NCCL refuses two ranks on one device of one host. It tells hosts apart by NCCL_HOSTID (utils.cc,
# getHostHash); processes of two hosts talk through sockets.
APART = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
}
ENGINE_HOST, SENDER_HOST = {**APART, "NCCL_HOSTID": "engine"}, {**APART, "NCCL_HOSTID": "sender"}
_BOUND = {"cuda": 0.05, "cpu": 1e-3}  # nats between vLLM's log-probabilities and transformers'
_BUCKET = {"cuda": 128 << 20, "cpu": 1 << 16}  # bytes


@dataclass(slots=True)
class Bench:
    """The engines that run, by shape of their model, and their event loop."""

    device: str
    folder: Path
    loop: asyncio.Runner = field(default_factory=asyncio.Runner)
    workers: dict[str, RolloutWorker] = field(default_factory=dict)
    versions: int = 0
    memory: TemporaryDirectory[str] = field(default_factory=lambda: TemporaryDirectory(dir="/dev/shm"))

    @property
    def tokens(self) -> int:
        """Tokens of an answer."""
        return 400 if self.device == "cuda" else 120

    def run(self, limit_s: float, what: Callable[[], Awaitable[_T]]) -> _T:
        """Run ``what`` on the engines' event loop; a failure ends all engines. Raises Failed."""

        async def within() -> _T:
            return await asyncio.wait_for(what(), limit_s)

        try:
            return self.loop.run(within())
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise Failed(f"not done in {limit_s:.0f} s") from error
            raise

    async def engine(self, shape: str, *, share: float = 0.25, slots: int = 1024) -> RolloutWorker:
        """Return the shape's engine, which starts with the model's own weights.

        It takes ``share`` of the device's memory, and ``slots`` answers at a time of up to ``self.tokens``.
        """
        if shape not in self.workers:
            self.workers[shape] = worker = _worker(self.model(shape), self.device, self.tokens, share, slots)
            await worker.start()
        return self.workers[shape]

    def model(self, shape: str) -> Path:
        """Return the folder of the shape's model, which is made once."""
        return models.random_model(self.folder / "models" / shape, shape, limit_s=300)

    def publish(self, weights: Weights) -> tuple[WeightFile, int]:
        """Write ``weights`` as the next version, into memory as a run does. The one before it stays."""
        from trinity_compat.synchronizer.transports.files import prune, write_file

        self.versions += 1
        prune(self.memory.name, before=self.versions - 1)
        return write_file(self.memory.name, self.versions, weights.items()), self.versions

    def close(self) -> None:
        """End all engines."""
        for worker in self.workers.values():
            worker._engine._engine.shutdown()
        self.workers.clear()


def _worker(model: Path, device: str, answer: int, share: float, slots: int) -> RolloutWorker:
    """The explorer's own worker, in this process; on a CPU with the engine that GPUs have."""
    from trinity_compat.explorer.engine.vllm import AsyncEngine
    from trinity_compat.explorer.rollout import worker
    from trinity_compat.launch import read_argv
    from trinity_compat.run.plan.profiles import as_overrides, load
    from trinity_compat.verl_config import as_tree, effective_config

    words = [
        *(as_overrides(load("cpu"), "decoupled") if device == "cpu" else ()),
        *(f"data.{name}_files={model}" for name in ("train", "val")),
        f"actor_rollout_ref.model.path={model}",
        "data.max_prompt_length=64",
        f"data.max_response_length={answer}",
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.rollout.gpu_memory_utilization={share}",
        f"actor_rollout_ref.rollout.max_num_seqs={slots}",
        "actor_rollout_ref.rollout.cudagraph_capture_sizes=[1,8,64,256]",
    ]
    launch = read_argv(["python3", "-m", "verl.trainer.main_ppo", *words]).launches[0]
    config = as_tree(effective_config(launch, fork_config=False))
    os.environ.update(ENGINE_HOST)
    if device == "cpu":
        os.environ.update({"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"})
        worker.InProcessEngine = AsyncEngine  # type: ignore[misc,assignment]
    return worker.RolloutWorker(config, device, shared=device != "cpu")


# -- answers, and what transformers thinks of them --------------------------------------------------------


async def _submit(
    worker: RolloutWorker, count: int, tokens: int, **sampling: Any
) -> tuple[list[list[int]], list[asyncio.Future[list[Completion]]]]:
    """Ask for ``count`` answers of ``tokens`` tokens each."""
    from trinity_compat.explorer.engine.vllm import GenerationRequest

    values = {"n": 1, "temperature": 1.0, "max_tokens": tokens, "ignore_eos": True, **sampling}
    prompts = [[5 + (i + j) % 200 for j in range(32)] for i in range(count)]
    name = f"{time.monotonic_ns()}"
    requests = [GenerationRequest(f"{name}-{i}", prompt, values) for i, prompt in enumerate(prompts)]
    return prompts, await worker._requests_in_flight.submit(requests)


async def _greedy(worker: RolloutWorker) -> list[list[int]]:
    _, answers = await _submit(worker, 8, 24, temperature=0.0)
    return [(await answer)[0].token_ids for answer in answers]


def _own_weights(model: Path) -> Weights:
    from safetensors.torch import load_file

    return {name: tensor for file in model.glob("*.safetensors") for name, tensor in load_file(file).items()}


def _other_weights(weights: Weights, seed: int) -> Weights:
    """Draw random matrices of the same shapes: log-probabilities under them differ clearly."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def drawn(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator).mul_(0.03).to(tensor.dtype)

    return {name: drawn(each) if each.ndim > 1 else each for name, each in weights.items()}


def _apart(
    model: Path, weights: Weights, device: str, pairs: Sequence[tuple[list[int], Completion]]
) -> list[list[float]]:
    """By answer and token, the distance between its log-probability and transformers' with ``weights``."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval().to(device)
    reference.load_state_dict(dict(weights), strict=False)
    reference.tie_weights()
    found = []
    with torch.no_grad():
        for prompt, part in pairs:
            ids = torch.tensor([prompt + part.token_ids], device=device)
            logits = reference(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            own = logits.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
            found.append((own - torch.tensor(part.logprobs)).abs().tolist())
    return found


def _switch(old: Sequence[float], new: Sequence[float]) -> tuple[int, float]:
    """The token from which an answer is the new weights', and the largest distance that is then left."""
    places = range(len(old) + 1)
    worst = [max((*old[:place], *new[place:]), default=0.0) for place in places]
    return min(zip(places, worst, strict=True), key=lambda found: found[1])


# -- contracts ------------------------------------------------------------------------------------------


def mid_answer(bench: Bench, shapes: Sequence[str], limit_s: float) -> Figures:
    """Load weights while answers are drawn, into one engine for each of vLLM's model runners.

    No token is missing, and each one's log-probability is that of the weights that were in place.
    """
    count, tokens = 64 if bench.device == "cuda" else 8, bench.tokens
    found: dict[str, Any] = {}
    for shape in shapes:

        async def change(shape: str = shape) -> tuple[list[tuple[list[int], Completion]], float, float]:
            began = time.monotonic()
            worker = await bench.engine(shape)
            own, started = _own_weights(bench.model(shape)), time.monotonic()
            await worker.load(*bench.publish(own))
            file, version = bench.publish(_other_weights(own, 1))
            begun = worker._engine.steps
            prompts, answers = await _submit(worker, count, tokens)
            while worker._engine.steps < begun + tokens // 3:
                await asyncio.sleep(0.001)
            if any(answer.done() for answer in answers):
                raise Failed("answers had ended before the weights changed")
            loading = time.monotonic()
            await worker.load(file, version)
            loaded = time.monotonic() - loading
            parts = [(prompt, (await answer)[0]) for prompt, answer in zip(prompts, answers, strict=True)]
            return parts, started - began, loaded

        parts, start_s, load_s = bench.run(limit_s / len(shapes), change)
        own = _own_weights(bench.model(shape))
        versions = (own, _other_weights(own, 1))
        both = [_apart(bench.model(shape), weights, bench.device, parts) for weights in versions]
        switches = [_switch(old, new) for old, new in zip(*both, strict=True)]
        lengths = {len(part.token_ids) for _, part in parts}
        worst, places = max(left for _, left in switches), [place for place, _ in switches]
        found |= {
            f"{shape} start s": start_s,
            f"{shape} load s": load_s,
            f"{shape} nats apart": worst,
            f"{shape} switch": f"{min(places)} … {max(places)} of {tokens}",
        }
        if lengths != {tokens} or worst > _BOUND[bench.device] or not 0 < min(places) <= max(places) < tokens:
            raise Failed(f"answers of {sorted(lengths)} tokens, {found}")
    return found


def broadcast(bench: Bench, shape: str, limit_s: float) -> Figures:
    """Send to the running engine as a trainer's rank 0 does, twice in one group; then die while sending.

    The engine reports that, goes on answering, and takes the next version from another process.
    """

    async def transfers() -> Figures:
        worker = await bench.engine(shape)
        found: dict[str, Any] = {}
        with _Sender(bench.model(shape), bench.device) as sender:
            for number, seed in enumerate((11, 12)):
                seconds, nbytes = await sender.send(worker, "one", seed)
                found[f"GB/s {number + 1}"] = nbytes / 1e9 / seconds
            await _check_weights(bench, worker, shape, 12)
            lost = await sender.die(worker, "one", 13)
            found["after the kill"] = lost
        answers = await _greedy(worker)  # of a mixture: it must answer, whatever it says
        if not all(answers):
            raise Failed("no answers after the sender's death")
        with _Sender(bench.model(shape), bench.device) as sender:
            await sender.send(worker, "two", 14)
            found["nats apart"] = await _check_weights(bench, worker, shape, 14)
        return found

    return bench.run(limit_s, transfers)


def on_device(bench: Bench, shape: str, limit_s: float) -> Figures:
    """Hand over on the device to an engine that is awake for weights alone, as in turns.

    Then die while sending: the engine says so in time, loads a file, and takes another version.
    """

    async def turn(worker: RolloutWorker, sender: _Sender, seed: int) -> float:
        await worker.sleep()
        await worker.wake()
        seconds, nbytes = await sender.send(worker, "", seed)
        await worker.resume()
        await _check_weights(bench, worker, shape, seed)
        return nbytes / 1e9 / seconds

    async def turns() -> Figures:
        worker = await bench.engine(shape)
        found: dict[str, Any] = {}
        with _Sender(bench.model(shape), bench.device, apart=False) as sender:
            for number, seed in enumerate((31, 32)):
                found[f"GB/s {number + 1}"] = await turn(worker, sender, seed)
            found |= _memory("before the kill")
            await worker.sleep()
            await worker.wake()
            found["after the kill"] = await sender.die(worker, "", 33)
            await worker.resume()
        await worker.load(*bench.publish(_other_weights(_own_weights(bench.model(shape)), 34)))
        await _check_weights(bench, worker, shape, 34)
        found |= _memory("after the kill")
        with _Sender(bench.model(shape), bench.device, apart=False) as sender:
            found["GB/s after it"] = await turn(worker, sender, 35)
        return found

    return bench.run(limit_s, turns)


async def _check_weights(bench: Bench, worker: RolloutWorker, shape: str, seed: int) -> float:
    """Largest distance to transformers with that seed's weights. Raises Failed."""
    prompts, answers = await _submit(worker, 8, 24)
    pairs = [(prompt, (await answer)[0]) for prompt, answer in zip(prompts, answers, strict=True)]
    weights = _other_weights(_own_weights(bench.model(shape)), seed)
    worst = max(max(each) for each in _apart(bench.model(shape), weights, bench.device, pairs))
    if worst > _BOUND[bench.device]:
        raise Failed(f"the weights of seed {seed} are {worst:.3g} nats apart")
    return worst


class _Sender:
    """The process of rank 0. The store is here, as the trainer has it outside of its rank 0."""

    def __init__(self, model: Path, device: str, *, apart: bool = True) -> None:
        """Start it. ``apart``: for NCCL, as on a host of its own."""
        from trinity_compat.trainer.nccl_sender import store_at

        self._store = store_at("127.0.0.1")
        self._transfers = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(model), device],
            env={**jobs.environment({}), **(SENDER_HOST if apart else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> _Sender:
        self._told()  # its imports are done: a transfer's limit is for the transfer
        return self

    def _told(self) -> dict[str, Any]:
        """Return its next line, without those that vLLM logs as it is imported."""
        assert self._process.stdout is not None
        line = next((line for line in self._process.stdout if line.startswith("{")), "{}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _meeting(self, group: str) -> Rendezvous:
        from trinity_compat.synchronizer.transports.nccl import Rendezvous

        self._transfers += 1
        name = f"{self._transfers}-{group or uuid.uuid4().hex}"
        return Rendezvous(
            name, group, "127.0.0.1", self._store.port, 2, self._transfers, timeout_s=30.0, secret="proof"
        )

    def _order(self, meeting: Rendezvous, seed: int, *, dies: bool) -> None:
        order = {"meeting": asdict(meeting), "seed": seed, "dies": dies}
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)

    async def send(self, worker: RolloutWorker, group: str, seed: int) -> tuple[float, int]:
        """Send that seed's weights; returns seconds and bytes. Raises Failed."""
        meeting = self._meeting(group)
        self._order(meeting, seed, dies=False)
        (answer,) = await worker.receive(asdict(meeting), 1)
        sent = await asyncio.to_thread(self._told)
        if "digest" not in answer or answer["digest"] != sent.get("digest"):
            raise Failed(f"sent {sent}, received {answer}")
        return sent["seconds"], sent["nbytes"]

    async def die(self, worker: RolloutWorker, group: str, seed: int) -> str:
        """Die while sending; returns what the engine said, and after how long."""
        meeting, began = self._meeting(group), time.monotonic()
        self._order(meeting, seed, dies=True)
        (answer,) = await worker.receive(asdict(meeting), 1)
        if "failed" not in answer:
            raise Failed(f"the sender was killed, and the engine said {answer}")
        return f"{time.monotonic() - began:.1f} s: {answer['failed'][:80]}"


def _send_orders(model: str, device: str) -> None:
    """Send as ordered. An order that ``dies`` kills this process before the last tensor, in mid-transfer."""
    import torch

    from trinity_compat.plugins.device_transfer import DeviceSender
    from trinity_compat.synchronizer.transports.nccl import Rendezvous, WeightGroup

    own, group = _own_weights(Path(model)), None

    def joined(meeting: Rendezvous) -> WeightGroup:
        nonlocal group
        if group is None or group.name != meeting.group:
            group = WeightGroup(meeting, 0, torch.device(device))
        return group

    def tensors(seed: int, *, dies: bool) -> Iterator[tuple[str, torch.Tensor]]:
        for number, (name, tensor) in enumerate(_other_weights(own, seed).items(), 1):
            if dies and number == len(own):
                os.kill(os.getpid(), signal.SIGKILL)
            yield name, tensor.to(device)

    print("{}", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        meeting = Rendezvous(**order["meeting"])
        began, sent = time.monotonic(), tensors(order["seed"], dies=order["dies"])
        if meeting.on_devices:
            here = torch.device(device, 0) if device == "cuda" else torch.device(device)
            largest = max(tensor.nbytes for tensor in own.values())
            room = _BUCKET[device] if device == "cuda" else largest  # a CPU has no way for a larger tensor
            file = asyncio.run(DeviceSender(meeting, 0, here, room).send(sent))
        else:
            file = joined(meeting).send(meeting, sent, _BUCKET[device])
        told = {"digest": file.digest, "nbytes": file.nbytes, "seconds": time.monotonic() - began}
        print(json.dumps(told), flush=True)


def sleep(bench: Bench, shape: str, limit_s: float) -> Figures:
    """Put the engine to sleep and wake it, by each level: greedy answers stay equal.

    With mode keep, answers in flight go on to their last token.
    """

    async def turns() -> Figures:
        worker = await bench.engine(shape)
        engine: Any = worker._engine._engine
        published = bench.publish(_own_weights(bench.model(shape)))
        await worker.load(*published)
        before, found = await _greedy(worker), dict[str, Any]()
        for level in (1, 2):
            began = time.monotonic()
            await engine.sleep(level=level)
            asleep = time.monotonic()
            found |= {f"level {level} s to sleep": asleep - began, **_memory(f"level {level}")}
            waking = time.monotonic()
            await engine.wake_up()
            if level == 2:
                await worker.load(*published)
            found[f"level {level} s to wake"] = time.monotonic() - waking
            if await _greedy(worker) != before:
                raise Failed(f"other answers after sleep of level {level}")
        return found | await _kept(worker, published)

    return bench.run(limit_s, turns)


async def _kept(worker: RolloutWorker, published: tuple[WeightFile, int]) -> Figures:
    """Sleep with answers in flight, as in a turn of the trainer's, and load: each goes on to its end."""
    begun, tokens = worker._engine.steps, 120
    _, answers = await _submit(worker, 16, tokens, temperature=0.0)
    while worker._engine.steps < begun + tokens // 3:
        await asyncio.sleep(0.001)
    await worker.sleep()
    unfinished = sum(not answer.done() for answer in answers)
    await worker.wake()
    await worker.load(*published)
    lengths = {len((await answer)[0].token_ids) for answer in answers}
    if not unfinished or lengths != {tokens}:
        raise Failed(f"{unfinished} answers slept; their lengths are {sorted(lengths)}")
    return {"answers kept asleep": unfinished}


def _memory(what: str) -> Figures:
    """MiB in use on the GPU, and of the host's memory."""
    import psutil

    host = {f"{what} GiB of the host": psutil.virtual_memory().used / 2**30}
    with jobs.GpuMemory() as memory:
        time.sleep(0.7)
    return {**host, **({f"{what} MiB": memory.seen[-1]} if memory.seen else {})}


def large(bench: Bench, shape: str, limit_s: float) -> Figures:
    """Measure a turn with a large model: weights out of a process, into the engine, sleep, wake."""

    async def turn() -> Figures:
        bench.close()
        worker = await bench.engine(shape, share=0.5, slots=64)
        engine: Any = worker._engine._engine
        weights, device = _other_weights(_own_weights(bench.model(shape)), 21), bench.device
        held = {name: tensor.to(device) for name, tensor in weights.items()}
        gigabytes = sum(tensor.nbytes for tensor in held.values()) / 1e9
        marks = [time.monotonic()]
        published = bench.publish(held)
        marks.append(time.monotonic())
        await worker.load(*published)
        marks.append(time.monotonic())
        found: dict[str, Any] = {"GB": gigabytes}
        found |= {f"GB/s {way}": gigabytes / s for way, s in zip(("out", "in"), _between(marks), strict=True)}
        for level in (1, 2):
            began = time.monotonic()
            await engine.sleep(level=level)
            asleep = time.monotonic()
            found |= _memory(f"level {level}")
            waking = time.monotonic()
            await engine.wake_up()
            awake = time.monotonic()
            found |= {f"level {level} s to sleep": asleep - began, f"level {level} s to wake": awake - waking}
        return found

    return bench.run(limit_s, turn)


def _between(marks: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(marks)]


def seeds(bench: Bench, shape: str, limit_s: float) -> Figures:
    """Measure tokens/s with a seed for each request and with none: medians of three, in turns."""
    slots, tokens = ((256, 1024), 400) if bench.device == "cuda" else ((8,), 24)

    async def measure() -> Figures:
        worker = await bench.engine(shape)
        speeds: dict[str, list[float]] = {}
        for _ in range(3):
            for count in slots:
                for name, more in (("none", {}), ("each", {"seed": 7})):
                    began = time.monotonic()
                    _, answers = await _submit(worker, count, tokens, **more)
                    await asyncio.gather(*answers)
                    speeds.setdefault(f"tokens/s {count} slots, seeds {name}", []).append(
                        count * tokens / (time.monotonic() - began)
                    )
        return {name: statistics.median(values) for name, values in speeds.items()}

    return bench.run(limit_s, measure)


if __name__ == "__main__":
    _send_orders(*sys.argv[1:])
