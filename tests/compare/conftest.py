"""Sides with several seeds, as veRL's file logger writes them."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest


def curve(seed: int, steps: int = 40, shift: float = 0.0) -> list[float]:
    """A reward curve that rises from 0.2 to 0.9, with noise of 0.02 by seed."""
    rng = random.Random(seed)
    return [0.2 + 0.7 * (1 - math.exp(-4 * i / steps)) + shift + rng.gauss(0, 0.02) for i in range(steps)]


def write_jsonl(path: Path, metrics: dict[str, list[float]], start: int = 1) -> Path:
    """veRL's file logger."""
    import json

    path.parent.mkdir(parents=True, exist_ok=True)
    length = len(next(iter(metrics.values())))
    rows = [
        {"step": start + i, "data": {name: values[i] for name, values in metrics.items()}}
        for i in range(length)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def seeds(tmp_path: Path):
    """Make a side: ``seeds("a", shift=0.0, count=5)`` → a directory with one jsonl per seed."""

    def make(name: str, *, shift: float = 0.0, count: int = 5, first_seed: int = 0) -> Path:
        for k in range(count):
            rewards = curve(first_seed + k, shift=shift)
            write_jsonl(
                tmp_path / name / f"seed{k}.jsonl",
                {"critic/score/mean": rewards, "timing_s/step": [1.0 + k / 100] * len(rewards)},
            )
        return tmp_path / name

    return make
