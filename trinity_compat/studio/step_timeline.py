"""Seconds of a step on either side, its waiting apart."""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.compare.breakdown import step_parts

WAITING = ("waiting for the buffer", "waiting")
_EXPLORER = {"rollout": "rollout", "write": "write", "sync_weight": "weights", "wait": "waiting"}


def trainer(row: Mapping[str, float | None]) -> dict[str, float]:
    """Part → seconds of one veRL step, in order; {} for a row without a step's clock."""
    clock = _clock(row, "timing_s/")
    return {part: s for part, s in step_parts(clock).items() if s > 0} if "step" in clock else {}


def explorer(row: Mapping[str, float | None]) -> dict[str, float]:
    """Part → seconds of one explorer step."""
    clock = _clock(row, "time/")
    return {part: clock[name] for name, part in _EXPLORER.items() if clock.get(name, 0) > 0}


def _clock(row: Mapping[str, float | None], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): value
        for name, value in row.items()
        if name.startswith(prefix) and value is not None
    }
