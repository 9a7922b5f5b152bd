"""Runs of the proof: ours and stock veRL's, each in a folder, ended when its time is over."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
SCRIPTS = REPO / "examples" / "verl_scripts"
_SELF_TEST = re.compile(r"weight-sync check: .* ([\d.]+) apart in the mean")
_PROBS = "training/rollout_probs_diff_mean"


class Failed(RuntimeError):
    """A run ended with an error, or was too slow."""


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's and ``more``. vLLM 0.24's samplers import flashinfer unless they are told not to, and of
    what vLLM wants it is the largest part that the proof does without."""
    without = {} if importlib.util.find_spec("flashinfer") else {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    return {**without, **os.environ, **more}


def output(command: Sequence[str], log: Path, limit_s: float, env: Mapping[str, str] | None = None) -> str:
    """Run ``command``, keep its output in ``log`` and return it. Raises Failed."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment(env or {}), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    ended(process, limit_s, log)
    return log.read_text(errors="replace")


@dataclass(slots=True)
class Job:
    """One run of a script. ``words`` are veRL's, ``options`` trinity-compat's, ``env`` adds to this one's."""

    folder: Path
    script: str = "run_toy_grpo.sh"
    words: Sequence[str] = ()
    options: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """Ours, with a job directory below ``folder``."""
        base = [sys.executable, "-m", "trinity_compat", "run", str(SCRIPTS / self.script)]
        return [*base, "--job", str(self.folder / "job"), *self.options, "--", *self.words]

    def start(self, *, name: str = "run", command: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start the process in a session of its own, with its output in ``folder/NAME.log``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                list(command or self.command()),
                cwd=self.folder,
                env=environment(self.env),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, limit_s: float) -> dict[int, dict[str, float]]:
        """Run to the end; the trainer's metrics by step. Raises Failed."""
        ended(self.start(), limit_s, self.folder / "run.log")
        return self.metrics()

    def metrics(self) -> dict[int, dict[str, float]]:
        """Metrics that the trainer has logged so far, by step."""
        return self._read("trainer")

    @property
    def _database(self) -> str:
        return f"sqlite:///{self.folder}/job/buffer/experiences.db"

    def _read(self, role: str) -> dict[int, dict[str, float]]:
        from trinity_compat.buffer import open_buffer

        buffer = open_buffer(self._database, create=False)
        try:
            return dict(buffer.read_metrics(role))
        finally:
            buffer.close()

    def explored(self, name: str) -> float:
        """The median over the explorer's steps after the first of one of its metrics."""
        return median(dict(self._read("explorer")), name)

    def stored(self) -> bool:
        """Return True once the explorer has stored answers, that is, once its engines are up."""
        from trinity_compat.buffer import BufferError, open_buffer
        from trinity_compat.common.errors import UserError

        try:
            buffer = open_buffer(self._database, create=False)
        except (BufferError, UserError):  # not there yet
            return False
        try:
            return any(buffer.depth().values())
        finally:
            buffer.close()

    def self_tests(self) -> list[float]:
        """Mean differences between engine and trainer, one for each engine that was asked."""
        found = (self.folder / "job" / "log").glob("explorer*.log")
        return [float(x) for log in found for x in _SELF_TEST.findall(log.read_text(errors="replace"))]


def ended(process: subprocess.Popen[bytes], limit_s: float, log: Path, *, code: int = 0) -> None:
    """Wait for it. Raises Failed with the log's last words when it is late or ends otherwise."""
    try:
        got = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        stop(process)
        raise Failed(f"not done in {limit_s:.0f} s: {_last(log)}") from None
    if got != code:
        raise Failed(f"exit code {got}: {_last(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to its whole session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                continue


def _last(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line.lower()]
    return (errors or lines or ["no output"])[-1][-400:]


def stock(job: Job, limit_s: float, *, v1: bool, device: str) -> dict[int, dict[str, float]]:
    """The same launch on stock veRL: its metrics by step, as its file logger wrote them."""
    written = job.folder / "metrics.jsonl"
    words = [
        *_profile("cpu" if device == "cpu" else "no_flash_attn", device),
        *job.words,
        f"trainer.use_v1={v1}",
        "trainer.logger=[console,file]",
        f"trainer.default_local_dir={job.folder}/checkpoints",
    ]
    stocks = Job(job.folder, job.script, env={**job.env, "VERL_FILE_LOGGER_PATH": str(written)})
    process = stocks.start(command=["bash", str(SCRIPTS / job.script), *words])
    ended(process, limit_s, job.folder / "run.log")
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    return {int(line["step"]): line["data"] for line in lines}


def _profile(name: str, device: str) -> list[str]:
    """Settings that this machine needs, as words for stock veRL."""
    if device == "cuda" and importlib.util.find_spec("flash_attn"):
        return []
    command = [sys.executable, "-m", "trinity_compat", "profile", name, "--as-overrides"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def median(metrics: Mapping[int, Mapping[str, float]], name: str, *, after: int = 1) -> float:
    """Over the steps after ``after``: the first ones compile and warm up."""
    values = [float(step[name]) for number, step in metrics.items() if number > after and name in step]
    return statistics.median(values) if values else float("nan")


def probs_gap(metrics: Mapping[int, Mapping[str, float]]) -> float:
    """Between rollout's and trainer's probabilities."""
    return median(metrics, _PROBS, after=0)


class GpuMemory:
    """MiB in use on the first GPU, read twice a second while the block lasts."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)

    def _watch(self) -> None:
        if shutil.which("nvidia-smi") is None:
            return
        asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._over.wait(0.5):
            done = subprocess.run(asked, capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip():
                self.seen.append(int(done.stdout.splitlines()[0]))

    def figures(self) -> dict[str, Any]:
        """Peak, and the least between peaks: what is left while one side sleeps."""
        if not self.seen:
            return {}
        middle = self.seen[len(self.seen) // 4 : -max(1, len(self.seen) // 8)] or self.seen
        return {"MiB peak": max(self.seen), "MiB least in the middle": min(middle)}


def wait_for(
    condition: Callable[[], bool], limit_s: float, what: str, *, by: subprocess.Popen[bytes] | None = None
) -> None:
    """Look twice a second, until the process ``by`` has ended. Raises Failed."""
    until = time.monotonic() + limit_s
    while not condition():
        if by is not None and by.poll() is not None:
            raise Failed(f"exit code {by.returncode} before {what}")
        if time.monotonic() > until:
            raise Failed(f"waited {limit_s:.0f} s for {what}")
        time.sleep(0.5)
