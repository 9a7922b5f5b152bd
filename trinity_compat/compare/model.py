"""The compared data: a run is a set of named series; a side is one or more runs (seeds)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import lt
from typing import Any


@dataclass(slots=True)
class Series:
    """One metric over steps.

    ``steps`` int64, ``values`` float64, ``walls`` seconds since the epoch (NaN where the source has no
    clock). A step written twice (a resumed run) keeps its last value.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    walls: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float, wall: float = math.nan) -> None:
        """Append a point, in any order of steps."""
        self.steps.append(step)
        self.values.append(value)
        self.walls.append(wall)

    def latest(self) -> Series:
        """Return the series ordered by step, with the last written point of each step.

        NaN and infinite values remain. An ordered series returns itself.
        """
        if all(map(lt, self.steps, self.steps[1:])):
            return self
        return self._at({step: index for index, step in enumerate(self.steps)})

    def sorted(self) -> Series:
        """Return ``latest`` without NaN and infinite values."""
        if all(map(math.isfinite, self.values)):
            return self.latest()
        newest = {step: index for index, step in enumerate(self.steps)}
        return self._at({step: i for step, i in newest.items() if math.isfinite(self.values[i])})

    def _at(self, index_of: Mapping[int, int]) -> Series:
        order = [index_of[step] for step in sorted(index_of)]
        return Series(
            array("q", (self.steps[i] for i in order)),
            array("d", (self.values[i] for i in order)),
            array("d", (self.walls[i] for i in order)),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def points(self) -> Iterator[tuple[int, float]]:
        """Return (step, value) pairs as stored."""
        return zip(self.steps, self.values, strict=True)


@dataclass(slots=True)
class RunMetrics:
    """One run's metrics as its source names them.

    ``updates_per_step`` is r when the source counts optimizer updates (Trinity-RFT) and r is known;
    ``meta`` holds what the source knows of the configuration (batch sizes, project, audit findings).
    """

    name: str
    source: str
    kind: str  # tensorboard | wandb | mlflow | table | console | job
    series: dict[str, Series]
    updates_per_step: int | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # problems of the source: truncated tails, skipped lines
    resolution: float = 0.0  # the last digit that a text source prints, 0 where it prints them all


@dataclass(slots=True)
class Side:
    """One side of a comparison: runs that differ only in their seed."""

    label: str
    runs: list[RunMetrics]
