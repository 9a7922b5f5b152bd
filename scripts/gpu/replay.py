"""The same rollouts into stock veRL's trainer and ours: how far their figures are apart."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jobs
from jobs import Failed, Job

PARITY = jobs.REPO / "benchmarks" / "parity"
sys.path.append(str(PARITY))
RUNS = 8  # answers to a prompt, in the toy's script
# A step's seconds, what follows from them or from the machine, and what stock has no word for.
_MEASURED = ("timing_s/", "timing_per_token_ms/", "perf/", "actor/perf/", "critic/perf/", "buffer/")
Metrics = Mapping[int, Mapping[str, float]]


def record(job: Job, limit_s: float, *, device: str) -> Metrics:
    """Stock veRL's metrics by step; its train batches lie in ``job.folder`` afterwards."""
    from recorded_batches import RECORDING

    job.folder.mkdir(parents=True, exist_ok=True)
    job.words = (*job.words, *RECORDING["v0"], "actor_rollout_ref.rollout.calculate_log_probs=True")
    job.env = {**job.env, "RECORD_DIR": str(job.folder), "PYTHONPATH": _python_path()}
    return jobs.stock(job, limit_s, v1=False, device=device)


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(PARITY), os.environ.get("PYTHONPATH", ""))))


def train(job: Job, kept: Path, steps: int, limit_s: float) -> Metrics:
    """Our trainer's metrics by step on the batches in ``kept``; no explorer runs."""
    from recorded_batches import recorded

    from trinity_compat.buffer import open_buffer

    store = job.folder / "job" / "buffer"
    store.mkdir(parents=True)
    buffer = open_buffer(f"sqlite:///{store}/experiences.db")
    for step in range(1, steps + 1):
        buffer.put_groups(recorded(kept / f"{step}.pt", step, runs=RUNS))
    buffer.beat("explorer", "recorded", state="done")
    buffer.close()
    return job.finish(limit_s)


def apart(stock: Metrics, ours: Metrics, steps: int) -> dict[str, Any]:
    """Compare figures of learning: how many are equal to the last digit, and the largest relative difference.

    The difference comes with its name. Raises Failed where ours lacks a figure."""
    pairs: list[tuple[str, float, float]] = []
    for step in range(1, steps + 1):
        for name, value in stock[step].items():
            if name.startswith(_MEASURED):
                continue
            if name not in ours[step]:
                raise Failed(f"step {step}: ours has no {name}")
            pairs.append((f"{name} at step {step}", value, ours[step][name]))
    gaps = {name: _relative(a, b) for name, a, b in pairs}
    worst = max(gaps, key=lambda name: gaps[name])
    return {
        "figures": len(gaps),
        "equal to the last digit": sum(gap == 0 for gap in gaps.values()),
        "largest relative difference": gaps[worst],
        "of": worst,
    }


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b))
