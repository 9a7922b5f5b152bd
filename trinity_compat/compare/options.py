"""Options of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinity_compat.compare.axes import Axis
from trinity_compat.compare.margins import Margins


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of a comparison. ``pairs`` renames metrics (theirs → canonical) first."""

    axis: Axis = "step"
    updates_per_step: int | None = None
    samples_per_step: int | None = None
    paired: bool = False
    metrics: Sequence[str] = ()  # prefixes to keep; empty: all
    pairs: Mapping[str, str] = field(default_factory=dict)
    margins: Margins = field(default_factory=Margins)
