"""The time within the steps of both sides, and a sentence on which of them waits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trinity_compat.compare.breakdown import step_parts
from trinity_compat.studio.series import Metrics, Row

WAITING = ("waiting for the buffer", "waiting")
_EXPLORER_PARTS = {"rollout": "rollout", "write": "write", "sync_weight": "weights", "wait": "waiting"}
_NEWEST = 20  # steps
_LITTLE = 0.1  # of a step: waiting that is not worth a change
Rows = Mapping[str, Sequence[tuple[int, Row]]]


def seconds(rows: Rows, *, most: int | None = None) -> dict[str, object]:
    """Side → [(step, part → seconds)] of rows that have a clock, the last ``most`` of them."""
    found = {}
    for role, of_role in rows.items():
        clocks = [(step, parts) for step, row in of_role if (parts := _parts(role, row))]
        found[role] = clocks[-most:] if most else clocks
    return {"sides": found}


def _parts(role: str, row: Mapping[str, float]) -> dict[str, float]:
    """Return part → seconds of one step of a side, in order; {} for a row without a step's clock."""
    prefix = "timing_s/" if role == "trainer" else "time/"
    timed = ((name.removeprefix(prefix), s) for name, s in row.items() if name.startswith(prefix))
    clock = {name: s for name, s in timed if math.isfinite(s)}
    if role == "trainer":
        return {part: s for part, s in step_parts(clock).items() if s > 0} if "step" in clock else {}
    return {part: clock[name] for name, part in _EXPLORER_PARTS.items() if clock.get(name, 0) > 0}


def bottleneck(metrics: Metrics, mode: str) -> str:
    """Return which side waits, for what share of its newest steps, and what to change; '' if unknown."""
    waits: dict[str, float] = {}
    for role in metrics.rows:
        clocks = [_parts(role, row) for _, row in metrics.newest(role, _NEWEST)]
        whole = sum(sum(parts.values()) for parts in clocks)
        if whole > 0:
            side = "trainer" if role == "trainer" else "explorer"
            waited = sum(parts.get(name, 0.0) for parts in clocks for name in WAITING) / whole
            waits[side] = max(waited, waits.get(side, 0.0))
    if len(waits) < 2:
        return ""
    trainer, explorer = waits["trainer"], waits["explorer"]
    if mode == "colocate":
        return (
            f"Both sides take turns on the same GPUs: the explorer has {1 - explorer:.0%} of the time."
            " Which mode predicts what GPUs of their own would change."
        )
    if trainer < _LITTLE and explorer < _LITTLE:
        return f"Neither side waits more than {_LITTLE:.0%} of its time: the GPUs are well divided."
    if trainer > 2 * _LITTLE and explorer > 2 * _LITTLE:
        return (
            f"Each side waits for the other: the trainer {trainer:.0%} of its time, the explorer"
            f" {explorer:.0%}. A synchronizer.sync_offset of 1 lets the explorer make the next step's answers"
            " meanwhile."
        )
    if trainer > explorer:
        return (
            f"The explorer is the bottleneck: the trainer waits {trainer:.0%} of its time for answers. Give"
            " the explorer more GPUs, or shorten the longest answers."
        )
    return (
        f"The trainer is the bottleneck: the explorer waits {explorer:.0%} of its time. Give the trainer more"
        " GPUs, or larger micro-batches."
    )


def device_use(metrics: Metrics) -> str:
    """Return the GPU memory and use that the trainer's newest step recorded, '' without any."""
    row = next((row for _, row in reversed(metrics.newest("trainer", _NEWEST)) if "timing_s/step" in row), {})
    memory, mfu = row.get("perf/max_memory_reserved_gb", 0.0), row.get("perf/mfu/actor", 0.0)
    told = [f"{memory:.3g} GB of GPU memory at most"] if memory > 0 else []
    told += [f"{mfu:.0%} of its GPUs' peak FLOPs (MFU)"] if mfu >= 0.005 else []
    return f"The trainer uses {' and '.join(told)}." if told else ""
