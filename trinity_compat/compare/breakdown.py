"""Time within a step, devices and throughput of each side of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from trinity_compat.compare import names
from trinity_compat.compare.model import RunMetrics, Side
from trinity_compat.job.gpus import shares, trainer_gpus

# The parts of a veRL step in order; timing_s/step is at least their sum (ray_trainer.py: fit).
_INSIDE = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "RefPolicy",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "save_checkpoint",
    "update_weights",
)
_AFTER = "testing"  # veRL validates after the step's clock has stopped
_WAITED = "buffer_wait"  # ours: the part of gen in which no group was ready
_EXPLORER = ("rollout", "write", "sync_weight", "wait")
_BINS = 100

Parts = dict[str, float]


def timing(side: Side) -> dict[str, object]:
    """Return the seconds of each part of a step, without empty parts.

    ``mean`` is over steps and runs, ``steps`` has at most 100 bins of neighbouring steps, and ``explorer``
    contains the parts of a decoupled run's explorer.
    """
    by_step = _by_step(side)
    steps = sorted(by_step)
    size = -(-len(steps) // _BINS) or 1
    bins = [steps[at : at + size] for at in range(0, len(steps), size)]
    decoupled = any(run.kind == "job" for run in side.runs)
    explorer = {part: mean(side, f"time/{part}") or 0.0 for part in _EXPLORER} if decoupled else {}
    return {
        "label": side.label,
        "total": mean(side, "timing_s/step"),
        "mean": _average(list(by_step.values())),
        "steps": [
            {"from": each[0], "to": each[-1], "parts": _average([by_step[step] for step in each])}
            for each in bins
        ],
        "explorer": {part: seconds for part, seconds in explorer.items() if seconds},
    }


def _by_step(side: Side) -> dict[int, Parts]:
    """Return step → part → seconds, averaged over the runs that reached the step; unlogged parts took 0 s."""
    found: dict[int, list[Parts]] = {}
    for run in side.runs:
        series, _ = names.rename(run, {})
        clocks = {
            name.removeprefix("timing_s/"): dict(one.sorted().points())
            for name, one in series.items()
            if name.startswith("timing_s/")
        }
        for step in clocks.get("step", {}):
            at = {part: seconds[step] for part, seconds in clocks.items() if step in seconds}
            found.setdefault(step, []).append(step_parts(at))
    return {step: _average(parts) for step, parts in found.items()}


def step_parts(clock: Mapping[str, float]) -> Parts:
    """Return one veRL step's parts, which add up to timing_s/step plus the validation after it."""
    inside = {part: clock[part] for part in _INSIDE if part in clock}
    other = clock["step"] - sum(inside.values())
    waited = min(clock.get(_WAITED, 0.0), inside.get("gen", 0.0))
    if waited:
        inside = {"waiting for the buffer": waited, **inside, "gen": inside["gen"] - waited}
    return {**inside, "other": max(0.0, other), _AFTER: clock.get(_AFTER, 0.0)}


def _average(rows: list[Parts]) -> Parts:
    """Return part → mean over ``rows`` (absent: 0), without parts that took no time."""
    order = list(dict.fromkeys(part for row in rows for part in row))
    means = {part: statistics.fmean(row.get(part, 0.0) for row in rows) for part in order}
    return {part: seconds for part, seconds in means.items() if seconds > 0}


def mean(side: Side, name: str) -> float | None:
    """Return a metric's mean over all steps of all runs, None if no run has it."""
    values = [v for run in side.runs if name in run.series for v in run.series[name].sorted().values]
    return statistics.fmean(values) if values else None


def resources(side: Side) -> dict[str, object]:
    """Return throughput and MFU per GPU.

    veRL divides by the trainer's GPUs. ``throughput_all`` also counts the rollout's separate GPUs of a
    decoupled run, which makes it comparable with a run that shares GPUs.
    """
    split = _split(side.runs[0])
    throughput = mean(side, "perf/throughput")
    return {
        "label": side.label,
        "gpus": _split_text(side.runs[0], split),
        "throughput": throughput,
        "throughput_all": throughput * split[0] / sum(split) if split and throughput else None,
        "mfu_actor": mean(side, "perf/mfu/actor"),
        "mfu_critic": mean(side, "perf/mfu/critic"),
        "lag": mean(side, "training/model_version_lag/mean"),
        "step_s": mean(side, "timing_s/step"),
    }


def _split(run: RunMetrics) -> tuple[int, int] | None:
    """Return (GPUs of the trainer, separate GPUs of the rollout), None if the source does not record them."""
    verl, mode = run.meta.get("verl") or {}, run.meta.get("mode", "both")
    explorers = int(run.meta.get("explorers") or 1)
    try:
        if run.kind != "job":
            return trainer_gpus(verl), 0
        found = shares(verl, device=_device(run), mode=mode, explorers=explorers)
    except (KeyError, TypeError, ValueError):  # a file that is not as a run writes it
        return None
    return found["trainer"], found.get("explorer", 0)


def _split_text(run: RunMetrics, split: tuple[int, int] | None) -> str:
    if split is None:
        return "unknown: not recorded by the source"
    word = "CPU process" if _device(run) == "cpu" else "GPU"
    count, beside = split
    plural = f"{word}{'es' if word.endswith('s') else 's'}"
    own = f"{count} {word if count == 1 else plural}"
    return f"{own} for the trainer, {beside} for the rollout" if beside else f"{own}, shared with the rollout"


def _device(run: RunMetrics) -> str:
    trainer = (run.meta.get("verl") or {}).get("trainer") or {}
    return str(run.meta.get("device", trainer.get("device", "cuda")))
