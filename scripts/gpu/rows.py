"""The rows of the proof, from short to long: what each runs, and the figures that it gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jobs
import models
import replay
from jobs import Failed, GpuMemory, Job

STEPS = "trainer.total_training_steps"
QUIET = ("trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.save_freq=-1")
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a row may write, on what it runs, and how long."""

    out: Path
    device: str
    limit_s: float = 600.0
    root: Path | None = None

    def of(self, row: str, limit_s: float) -> Setting:
        """For one row."""
        return Setting(self.out / row, self.device, limit_s, self.out)

    @property
    def mode(self) -> tuple[str, ...]:
        """Both sides on the one device: in turns on a GPU."""
        return ("--mode", "colocate") if self.device == "cuda" else ()

    def toy(self) -> Path:
        """Made once for all rows. On a CPU with hardly a warm start: there it is about running."""
        from trinity_compat.runtime.toy import ToySpec, make_toy

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
    """``limit_s``: what it may take; ``quick``: under a minute."""

    name: str
    about: str
    run: Callable[[Setting], Figures]
    limit_s: float
    quick: bool = False
    devices: tuple[str, ...] = ("cuda", "cpu")


def doctor(setting: Setting) -> Figures:
    """Its problems, and whether flash-attn is there."""
    command = [sys.executable, "-m", "trinity_compat", "doctor"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=setting.limit_s).stdout
    setting.out.mkdir(parents=True, exist_ok=True)
    (setting.out / "doctor.txt").write_text(said)
    flash = next((line for line in said.splitlines() if "flash-attn" in line), "")
    return {"lines": len(said.splitlines()), "flash-attn": " ".join(flash.split())}


def copies(setting: Setting) -> Figures:
    """GB/s of a copy on the device, and to it from pinned memory: what a handover is measured against."""
    return models.copy_speeds()


def toy(setting: Setting) -> Figures:
    """One run per way of sharding that the device has; rewards, self-test, probabilities, memory."""
    found: dict[str, Any] = {}
    for strategy in ("fsdp", "fsdp2") if setting.device == "cuda" else ("fsdp2",):
        words = [f"actor_rollout_ref.actor.strategy={strategy}"] if setting.device == "cuda" else []
        steps = 20 if setting.device == "cuda" else 3
        job = setting.job(strategy, f"{STEPS}={steps}", *words, options=setting.mode)
        with GpuMemory() as memory:
            metrics = job.finish(setting.limit_s)
        found |= {f"{strategy} {name}": value for name, value in _told(job, metrics).items()}
        found |= {f"{strategy} {name}": value for name, value in memory.figures().items()}
    return found


def _told(job: Job, metrics: Mapping[int, Mapping[str, float]]) -> Figures:
    tests = job.self_tests()
    if not tests:
        raise Failed("no self-test of the handover took place: see log/explorer.log")
    steps = sorted(step for step in metrics if step > 0)
    score = "critic/score/mean"
    return {
        "reward": f"{metrics[steps[0]][score]:.3f} → {metrics[steps[-1]][score]:.3f}",
        "self-test nats": max(tests),
        "probs diff": jobs.probs_gap(metrics),
        "s/step": jobs.median(metrics, "perf/time_per_step"),
    }


def broadcast(setting: Setting) -> Figures:
    """Weights by a collective, one step off policy: sides that work at once (on a CPU: Gloo)."""
    sets = ("synchronizer.sync_method=nccl", "synchronizer.sync_offset=2")
    job = setting.job("run", f"{STEPS}=3", options=tuple(word for each in sets for word in ("--set", each)))
    return _told(job, job.finish(setting.limit_s))


def critic(setting: Setting) -> Figures:
    """PPO with a value head."""
    job = setting.job("run", f"{STEPS}=3", options=setting.mode, script="run_toy_ppo.sh")
    metrics = job.finish(setting.limit_s)
    return {**_told(job, metrics), "vf_loss": jobs.median(metrics, "critic/vf_loss", after=0)}


def lora(setting: Setting) -> Figures:
    """Adapters, merged on their way."""
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
        jobs.wait_for(lambda job=job: _steps(job) >= 3, setting.limit_s / 2, "step 3")
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


def split(setting: Setting) -> Figures:
    """Two commands on one GPU, each with a Ray of its own; the engine takes a fixed share of the memory."""
    found: dict[str, Any] = {}
    for name, sets in {
        "offset0": ("synchronizer.sync_offset=0",),
        "offset1": ("synchronizer.sync_offset=2",),
        "fully_async": ("synchronizer.sync_style=fully_async",),
    }.items():
        options = tuple(
            word for each in (*sets, "synchronizer.sync_method=checkpoint") for word in ("--set", each)
        )
        words = (f"{STEPS}=6", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3")
        job = setting.job(name, *words, options=options)
        with GpuMemory() as memory:
            _both_commands(job, setting.limit_s / 3)
        found |= {f"{name} {key}": value for key, value in _told(job, job.metrics()).items()}
        found |= {f"{name} {key}": value for key, value in memory.figures().items()}
    return found


def _both_commands(job: Job, limit_s: float) -> None:
    explorer = Job(job.folder, job.script, job.words, (*job.options, "--mode", "explore"), job.env)
    trainer = Job(job.folder, job.script, job.words, (*job.options, "--mode", "train"), job.env)
    first = explorer.start(name="explore")
    time.sleep(5)
    second = trainer.start(name="train")
    try:
        jobs.ended(second, limit_s, job.folder / "train.log")
        jobs.ended(first, 60, job.folder / "explore.log")
    finally:
        jobs.stop(first)
        jobs.stop(second)


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


def sized(shape: str) -> Callable[[Setting], Figures]:
    """A model of real size, made at random: handover, step times, throughput."""

    def run(setting: Setting) -> Figures:
        model = models.random_model((setting.root or setting.out) / "models" / shape, shape)
        words = (f"actor_rollout_ref.model.path={model}", f"{STEPS}=4", *models.LAUNCH)
        with GpuMemory() as memory:
            job = setting.job("ours", *words, options=setting.mode)
            ours = job.finish(setting.limit_s / 3)
        found = {**_told(job, ours), **memory.figures(), **_handover(ours, models.nbytes(model))}
        for name, value in _stock_steps(setting, words):
            found[name] = value
        return found

    return run


def _handover(metrics: Mapping[int, Mapping[str, float]], nbytes: int) -> Figures:
    seconds = jobs.median(metrics, "timing_s/publish_weights")
    return {"handover s": seconds, "handover GB/s": nbytes / 1e9 / seconds}


def _stock_steps(setting: Setting, words: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for name, v1 in (("stock v0", False), ("stock v1", True)):
        job = setting.job(name.replace(" ", "_"), *words)
        metrics = jobs.stock(job, setting.limit_s / 3, v1=v1, device=setting.device)
        yield f"s/step {name}", jobs.median(metrics, "perf/time_per_step")


def throughput(setting: Setting) -> Figures:
    """vLLM by itself on the 0.5B shape: tokens/s without seeds, with one each, and by its own bench."""
    model = models.random_model((setting.root or setting.out) / "models" / "qwen2.5-0.5b", "qwen2.5-0.5b")
    setting.out.mkdir(parents=True, exist_ok=True)
    return models.throughput(model, setting.out, setting.limit_s)


GPU = ("cuda",)
ROWS = (
    Row("doctor", "what the machine lacks", doctor, 120, quick=True),
    Row("copies", "copies on and to the device", copies, 60, quick=True, devices=GPU),
    Row("toy", "toy GRPO, both sides on one device", toy, 400, quick=True),
    Row("broadcast", "weights by a collective, offset 1", broadcast, 400, quick=True, devices=("cpu",)),
    Row("critic", "PPO with a value head", critic, 200),
    Row("lora", "LoRA, handed over as an adapter", lora, 200),
    Row("stock", "the same seeds on stock veRL", against_stock, 300),
    Row("replay", "stock's rollouts into our trainer", replayed, 600),
    Row("split", "two commands share the GPU", split, 300, devices=GPU),
    Row("killed", "kill -9 of each side, continued", killed, 400),
    Row("throughput", "vLLM alone, with seeds and without", throughput, 240, devices=GPU),
    Row("qwen2.5-0.5b", "vLLM's model runner V1", sized("qwen2.5-0.5b"), 420, devices=GPU),
    Row("qwen3-0.6b", "vLLM's model runner V2", sized("qwen3-0.6b"), 420, devices=GPU),
    Row("qwen2.5-7b", "a model that fills the device", sized("qwen2.5-7b"), 580, devices=GPU),
)
