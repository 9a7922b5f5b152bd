"""Timelines of `trinity-compat advise` as shapes of a drawing: what both sides do over the first steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, MARGIN, ROW, GAP, AXIS = 720.0, 86.0, 24.0, 8.0, 20.0  # of a drawing
_COLOURS = 8
_LETTER = 6.2  # width of a letter
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Block:
    """Work of a side. The part from ``top`` down is the share of its GPU time that has work.

    ``colour``: of the version of the weights; of a trained step, of the oldest weights of its answers.
    """

    x: float
    y: float
    width: float
    top: float
    colour: int
    is_training: bool
    label: str
    title: str

    @property
    def height(self) -> float:
        """The height of the part with work."""
        return round(self.y + ROW - self.top, 2)


@dataclass(frozen=True, slots=True)
class Timeline:
    """A mode's rows: (name, y) and their blocks. ``ticks``: (x, seconds)."""

    rows: Sequence[tuple[str, float]]
    blocks: Sequence[Block]
    ticks: Sequence[tuple[float, float]]
    height: float


def shared_span_s(modes: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds that all modes' timelines cover, of those that can run."""
    ends = [max(lane["end_s"] for lane in mode["lanes"]) for mode in modes if mode.get("lanes")]
    return min(ends, default=0.0)


def timeline(mode: Mapping[str, Any], span_s: float) -> Timeline:
    """Return the drawing of a mode over its first ``span_s`` seconds.

    A mode in turns has one row: its GPUs belong to both sides.
    """
    names = ("all GPUs",) if mode["in_turns"] else ("explorer", "trainer")
    rows = [(name, round(place * (ROW + GAP), 2)) for place, name in enumerate(names)]
    scale = (WIDTH - MARGIN) / (span_s or 1.0)
    blocks = [
        _block(lane, rows[-1 if lane["side"] == "trainer" else 0][1], scale, span_s)
        for lane in mode["lanes"]
        if lane["begin_s"] < span_s
    ]
    marks = [span_s * place / _TICKS for place in range(_TICKS + 1)]
    ticks = [(round(MARGIN + mark * scale, 2), mark) for mark in marks]
    return Timeline(rows, blocks, ticks, round(len(rows) * (ROW + GAP) + AXIS, 2))


def _block(lane: Mapping[str, Any], y: float, scale: float, span_s: float) -> Block:
    is_training = lane["side"] == "trainer"
    width = round((min(lane["end_s"], span_s) - lane["begin_s"]) * scale, 2)
    oldest = lane["version"] - (lane["lag"] if is_training else 0)
    label = f"step {lane['step']}" if is_training else f"v{lane['version']}"
    lag = (
        f", answers up to {lane['lag']} steps old" if is_training else f", {lane['busy']:.0%} of its GPU time"
    )
    doing = f"trains {label}" if is_training else f"generates with version {lane['version']}"
    return Block(
        round(MARGIN + lane["begin_s"] * scale, 2),
        y,
        width,
        round(y + ROW * (1 - lane["busy"]), 2),
        oldest % _COLOURS + 1,
        is_training,
        label if width > len(label) * _LETTER else "",
        f"{doing} from {lane['begin_s']:.4g} to {lane['end_s']:.4g} s{lag}",
    )
