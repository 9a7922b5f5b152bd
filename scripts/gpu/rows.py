"""The rows of the proof, from short to long: what each runs, and the figures that it gives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import contracts
import jobs
import models
import replay
from contracts import Bench
from jobs import Failed, GpuMemory, Job

STEPS = "trainer.total_training_steps"
STOCKS: Mapping[str, bool] = {"stock v0": False, "stock v1": True}
QUIET = ("trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.save_freq=-1")
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """The folder, the devices and the time limit of a row."""

    out: Path
    device: str
    bench: Bench
    limit_s: float = 600.0
    root: Path | None = None

    def of(self, row: str, limit_s: float) -> Setting:
        """Return the setting of one row."""
        return Setting(self.out / row, self.device, self.bench, limit_s, self.out)

    @property
    def mode(self) -> tuple[str, ...]:
        """Both sides on the one device: in turns on a GPU."""
        return ("--mode", "colocate") if self.device == "cuda" else ()

    def toy(self) -> Path:
        """Made once for all rows. On a CPU with hardly a warm start: there it is about running."""
        from trinity_compat.run.toy import ToySpec, make_toy

        spec = ToySpec() if self.device == "cuda" else ToySpec(train_rows=256, val_rows=16, warm_steps=20)
        return make_toy((self.root or self.out) / "toy", spec)

    def job(self, name: str, *words: str, options: tuple[str, ...] = (), **more: Any) -> Job:
        """A run of the toy."""
        env = {"TOY_DIR": str(self.toy()), **more.pop("env", {})}
        if self.device == "cpu":
            env |= {"TRAIN_PROMPTS": "8", "MINI_PROMPTS": "4"}
        return Job(self.out / name, words=(*words, *QUIET), options=options, env=env, **more)


@dataclass(frozen=True, slots=True)
class Row:
    """``limit_s``: what it may take; ``quick``: under a minute.

    ``bench``: it uses the engines that run; else they end before it.
    """

    name: str
    about: str
    run: Callable[[Setting], Figures]
    limit_s: float
    quick: bool = False
    devices: tuple[str, ...] = ("cuda", "cpu")
    bench: bool = False


_IMPORTED = (
    "verl.trainer.main_ppo verl.workers.engine_workers verl.workers.rollout.vllm_rollout.vllm_async_server"
    " transfer_queue trinity_compat.trainer.main trinity_compat.explorer.main"
    " trinity_compat.plugins.vllm_weights vllm.v1.engine.async_llm vllm.entrypoints.openai.api_server"
)
_ON_A_GPU = (
    "vllm.platforms.cuda vllm._moe_C_stable_libtorch vllm.cumem_allocator vllm.vllm_flash_attn"
    " vllm.vllm_flash_attn._vllm_fa3_C vllm.v1.worker.gpu_worker"
    " vllm.v1.worker.gpu_model_runner vllm.v1.worker.gpu.model_runner"
    " vllm.v1.attention.backends.flash_attn"
)
_IMPORT = """
import importlib, sys, traceback
failed = 0
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed += 1
        traceback.print_exc()
        print(f"error: {name}: {type(error).__name__}: {error}")
sys.exit(failed)
"""


def imports(setting: Setting) -> Figures:
    """Import everything that the other rows import; the log names what is missing."""
    names = [*_IMPORTED.split(), *(_ON_A_GPU.split() if setting.device == "cuda" else ())]
    setting.out.mkdir(parents=True, exist_ok=True)
    jobs.output([sys.executable, "-c", _IMPORT, *names], setting.out / "imports.log", setting.limit_s)
    return {"modules": len(names)}


def doctor(setting: Setting) -> Figures:
    """Its problems, whether flash-attn is there, and the room that weights and offloaded models have."""
    import psutil

    command = [sys.executable, "-m", "trinity_compat", "doctor"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=setting.limit_s).stdout
    setting.out.mkdir(parents=True, exist_ok=True)
    (setting.out / "doctor.txt").write_text(said)
    flash = next((line for line in said.splitlines() if "flash-attn" in line), "")
    room = {name: shutil.disk_usage(name).free / 2**30 for name in ("/dev/shm", "/tmp")}
    return {
        "lines": len(said.splitlines()),
        "flash-attn": " ".join(flash.split()),
        "GiB of memory": psutil.virtual_memory().total / 2**30,
        **{f"GiB free in {name}": free for name, free in room.items()},
    }


def copies(setting: Setting) -> Figures:
    """GB/s of a copy on the device, and to it from pinned memory: what a handover is measured against."""
    return dict(models.asked("copies", log=setting.out / "copies.log", limit_s=setting.limit_s))


def on_bench(contract: Callable[..., Figures], on_gpu: str, *more: str) -> Callable[[Setting], Figures]:
    """A contract with the shape, or shapes, of its model; on a CPU with the tiny one."""

    def run(setting: Setting) -> Figures:
        shapes = (on_gpu, *more) if setting.device == "cuda" else ("tiny",)
        return contract(setting.bench, shapes if more else shapes[0], setting.limit_s)

    return run


def toy(setting: Setting) -> Figures:
    """One run per way of sharding that the device has; rewards, self-test, probabilities, memory."""
    found: dict[str, Any] = {}
    strategies = ("fsdp", "fsdp2") if setting.device == "cuda" else ("fsdp2",)
    for strategy in strategies:
        words = [f"actor_rollout_ref.actor.strategy={strategy}"] if setting.device == "cuda" else []
        steps = 20 if setting.device == "cuda" else 3
        job = setting.job(strategy, f"{STEPS}={steps}", *words, options=setting.mode)
        with GpuMemory() as memory:
            metrics = job.finish(setting.limit_s / len(strategies))
        found |= {f"{strategy} {name}": value for name, value in _told(job, metrics).items()}
        found |= {f"{strategy} {name}": value for name, value in memory.figures().items()}
    return found


def _told(job: Job, metrics: Mapping[int, Mapping[str, float]]) -> Figures:
    tests = job.self_tests()
    if not tests:
        raise Failed("no weight-sync check took place: see log/explorer.log")
    steps = sorted(step for step in metrics if step > 0)
    score = "critic/score/mean"
    return {
        "reward": f"{metrics[steps[0]][score]:.3f} → {metrics[steps[-1]][score]:.3f}",
        "self-test nats": max(tests),
        "probs diff": jobs.probs_gap(metrics),
        "s/step": jobs.median(metrics, "perf/time_per_step"),
    }


def critic(setting: Setting) -> Figures:
    """PPO with a value head."""
    job = setting.job("run", f"{STEPS}=3", options=setting.mode, script="run_toy_ppo.sh")
    metrics = job.finish(setting.limit_s)
    return {**_told(job, metrics), "vf_loss": jobs.median(metrics, "critic/vf_loss", after=0)}


def lora(setting: Setting) -> Figures:
    """Each version is an adapter."""
    words = ("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16")
    job = setting.job("run", f"{STEPS}=3", *words, options=setting.mode)
    return _told(job, job.finish(setting.limit_s))


def killed(setting: Setting) -> Figures:
    """kill -9 of each side in turn; the same command goes on to the end."""
    found: dict[str, Any] = {}
    for side in ("explorer", "trainer"):
        words = (f"{STEPS}=6", "trainer.save_freq=2")
        job = setting.job(side, options=setting.mode)
        job.words = (*[word for word in job.words if "save_freq" not in word], *words)
        process = job.start()
        jobs.wait_for(lambda job=job: _steps(job) >= 3, setting.limit_s / 2, "step 3", by=process)
        os.kill(_pid_of(job, side), signal.SIGKILL)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            jobs.stop(process)
            raise Failed(f"the run went on without its {side}") from None
        metrics = job.finish(setting.limit_s / 2)
        found[f"{side}: last step"] = max(metrics)
        if max(metrics) != 6:
            raise Failed(f"after the {side}'s death it ended at step {max(metrics)}")
    return found


def _steps(job: Job) -> int:
    try:
        return max(job.metrics(), default=0)
    except Exception:
        return 0


def _pid_of(job: Job, side: str) -> int:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"trinity_compat.{side}" in words and str(job.folder / "job") in words:
            return int(process.pid)
    raise Failed(f"no {side} runs")


_SPLITS = {
    "offset0": ("synchronizer.sync_offset=0", "synchronizer.sync_method=memory"),
    "offset1": ("synchronizer.sync_offset=2", "synchronizer.sync_method=checkpoint"),
    "fully_async": ("synchronizer.sync_style=fully_async", "synchronizer.sync_method=checkpoint"),
}


def split(setting: Setting) -> Figures:
    """Two commands on one GPU, each with a Ray of its own; the engine takes a fixed share of the memory."""
    found: dict[str, Any] = {}
    for name, sets in _SPLITS.items():
        options = tuple(word for each in sets for word in ("--set", each))
        words = (f"{STEPS}=6", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3")
        job = setting.job(name, *words, options=options)
        with GpuMemory() as memory:
            _both_commands(job, job, setting.limit_s / len(_SPLITS))
        metrics = job.metrics()
        found |= {f"{name} {key}": value for key, value in _told(job, metrics).items()}
        found |= {f"{name} {key}": value for key, value in memory.figures().items()}
        # What computing the old probabilities again costs, which fully_async cannot do without.
        found[f"{name} s/step of old_log_prob"] = jobs.median(metrics, "timing_s/old_log_prob")
    return found


def split_nccl(setting: Setting) -> Figures:
    """Two commands on one GPU, one step off policy; weights by a collective between their processes."""
    sets = ("synchronizer.sync_offset=2", "synchronizer.sync_method=nccl")
    options = tuple(word for each in sets for word in ("--set", each))
    words = (f"{STEPS}=4", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3")
    if setting.device == "cuda":
        words += (f"actor_rollout_ref.model.path={_model(setting, 'qwen2.5-0.5b')}",)
        words += models.SHAPES["qwen2.5-0.5b"].launch()
    explorer, trainer = (
        setting.job("run", *words, options=options, env=env)
        for env in (contracts.ENGINE_HOST, contracts.SENDER_HOST)
    )
    _both_commands(explorer, trainer, setting.limit_s)
    return _told(trainer, trainer.metrics())


def _both_commands(explorer: Job, trainer: Job, limit_s: float) -> None:
    """Run both sides of one job. The trainer begins once the engine is up: vLLM refuses to start where others
    free memory meanwhile."""
    explorer = replace(explorer, options=(*explorer.options, "--mode", "explore"))
    trainer = replace(trainer, options=(*trainer.options, "--mode", "train"))
    end, first, second = time.monotonic() + limit_s, explorer.start(name="explore"), None
    try:
        jobs.wait_for(
            lambda: trainer.stored() or first.poll() is not None, limit_s, "the explorer's first answers"
        )
        second = trainer.start(name="train")
        jobs.ended(second, end - time.monotonic(), trainer.folder / "train.log")
        jobs.ended(first, 60, explorer.folder / "explore.log")
    finally:
        for process in filter(None, (first, second)):
            jobs.stop(process)


def against_stock(setting: Setting) -> Figures:
    """The toy on stock veRL with the same seeds: how far scores and probabilities are apart."""
    job = setting.job("ours", f"{STEPS}=5", options=setting.mode)
    ours = job.finish(setting.limit_s / 2)
    theirs = jobs.stock(
        setting.job("stock", f"{STEPS}=5"), setting.limit_s / 2, v1=False, device=setting.device
    )
    score = "critic/score/mean"
    apart = [abs(ours[step][score] - theirs[step][score]) for step in range(1, 6)]
    return {
        "score apart, first step": apart[0],
        "score apart, largest": max(apart),
        "probs diff ours": jobs.probs_gap(ours),
        "probs diff stock": jobs.probs_gap(theirs),
    }


def replayed(setting: Setting) -> Figures:
    """Two steps of stock veRL recorded, the same answers through our buffer into our trainer, in the device's
    own number type (bfloat16 on a GPU)."""
    steps = 2
    kept = setting.job("stock", f"{STEPS}={steps}")
    theirs = replay.record(kept, setting.limit_s / 2, device=setting.device)
    job = setting.job("ours", f"{STEPS}={steps}", options=("--mode", "train"))
    ours = replay.train(job, kept.folder, steps, setting.limit_s / 2)
    return replay.apart(theirs, ours, steps)


def sized(shape: str, *, stocks: Mapping[str, bool] = STOCKS) -> Callable[[Setting], Figures]:
    """A model made at random: handover, step times, throughput. ``stocks``: whether each is veRL's v1."""

    def run(setting: Setting) -> Figures:
        model, each_s = _model(setting, shape), setting.limit_s / (1.2 + len(stocks))
        words = (f"actor_rollout_ref.model.path={model}", f"{STEPS}=4", *models.SHAPES[shape].launch())
        with GpuMemory() as memory:
            job = setting.job("ours", *words, options=setting.mode)
            ours = job.finish(each_s)
        found = {**_told(job, ours), **memory.figures(), **_handover(job, ours, models.nbytes(model))}
        for name, v1 in stocks.items():
            stock = setting.job(name.replace(" ", "_"), *words)
            metrics = jobs.stock(stock, each_s, v1=v1, device=setting.device)
            found[f"s/step {name}"] = jobs.median(metrics, "perf/time_per_step")
        return found

    return run


def _model(setting: Setting, shape: str) -> Path:
    folder = (setting.root or setting.out) / "models" / shape
    return models.random_model(folder, shape, setting.limit_s)


def _handover(job: Job, metrics: Mapping[int, Mapping[str, float]], nbytes: int) -> Figures:
    """Out of the trainer into memory, and from there into the engine, which mode colocate has to wake."""
    out, into = jobs.median(metrics, "timing_s/publish_weights"), job.explored("time/sync_weight")
    return {
        "handover s out": out,
        "handover s in": into,
        "handover GB/s": nbytes / 1e9 / (out + into),
        "explorer tokens/s": job.explored("perf/rollout_tokens_per_second"),
    }


def vision(setting: Setting) -> Figures:
    """A small Qwen2.5-VL on coloured squares."""
    toy = (setting.root or setting.out) / "vision_toy"
    env = models.vision_toy(toy, setting.device, setting.limit_s / 3)
    words = ("data.max_prompt_length=96", f"reward.custom_reward_function.path={toy}/reward.py")
    job = setting.job("run", f"{STEPS}=3", *words, options=setting.mode, env=env)
    metrics = job.finish(setting.limit_s * 2 / 3)
    return {"probs diff": jobs.probs_gap(metrics), "s/step": jobs.median(metrics, "perf/time_per_step")}


GPU = ("cuda",)
ROWS = (
    Row("imports", "that all is there and loads", imports, 120, quick=True),
    Row("doctor", "what the machine lacks", doctor, 120, quick=True),
    Row("copies", "copies on and to the device", copies, 60, quick=True, devices=GPU),
    Row(
        "mid-answer",
        "weights loaded while answers are drawn, by both model runners",
        on_bench(contracts.mid_answer, "four-layers-v1", "four-layers-v2"),
        240,
        bench=True,
    ),
    Row(
        "nccl",
        "a broadcast to the running engine, a sender's death, another one",
        on_bench(contracts.broadcast, "four-layers-v1"),
        120,
        bench=True,
    ),
    Row(
        "device",
        "weights on the device to the engine that slept, a sender's death, a file, another one",
        on_bench(contracts.on_device, "four-layers-v1"),
        150,
        bench=True,
    ),
    Row("split-nccl", "two commands share the GPU, weights by a collective", split_nccl, 240),
    Row(
        "sleep",
        "sleep by each level, answers kept",
        on_bench(contracts.sleep, "four-layers-v1"),
        90,
        bench=True,
    ),
    Row(
        "large",
        "what a turn costs with 7B",
        on_bench(contracts.large, "qwen2.5-7b"),
        210,
        bench=True,
    ),
    Row(
        "seeds",
        "tokens/s with seeds and without",
        on_bench(contracts.seeds, "four-layers-v1"),
        120,
        bench=True,
    ),
    Row("toy", "toy GRPO, both sides on one device", toy, 400, quick=True),
    Row("critic", "PPO with a value head", critic, 200),
    Row("lora", "LoRA, handed over as an adapter", lora, 200),
    Row("vision", "a model that sees", vision, 240),
    Row("stock", "the same seeds on stock veRL", against_stock, 300),
    Row("replay", "stock's rollouts into our trainer", replayed, 400),
    Row("split", "two commands share the GPU", split, 450),
    Row("killed", "kill -9 of each side, continued", killed, 400),
    Row("tiny", "what the next rows do, on a CPU", sized("tiny"), 1200, devices=("cpu",)),
    Row("qwen2.5-0.5b", "vLLM's model runner V1", sized("qwen2.5-0.5b"), 480, devices=GPU),
    Row("qwen3-0.6b", "vLLM's model runner V2", sized("qwen3-0.6b"), 480, devices=GPU),
    Row(
        "qwen2.5-7b",
        "a model that fills the device",
        sized("qwen2.5-7b", stocks={"stock v0": False}),
        560,
        devices=GPU,
    ),
)
