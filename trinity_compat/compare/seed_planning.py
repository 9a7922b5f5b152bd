"""``--plan 0.02``: the seeds per side that detect a difference, from the noise of existing seeds."""

from __future__ import annotations

import json
import math
import statistics as stdlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from trinity_compat.common.errors import UserError
from trinity_compat.compare import inference, names
from trinity_compat.compare.axes import align
from trinity_compat.compare.conclusion import KEY_METRICS
from trinity_compat.compare.curves import curve_of
from trinity_compat.compare.margins import CompareOptions, MarginAmount
from trinity_compat.compare.model import Side

_COLUMNS = (
    "metric",
    "level",
    "standard deviation between seeds",
    "difference",
    "seeds per side",
    "conservative",
    "detectable now",
)


@dataclass(frozen=True, slots=True)
class SeedsNeeded:
    """The plan of one metric.

    ``spread``: standard deviation of the level between seeds of a side. ``seeds``: per side, to detect
    ``tell_apart`` with 80 % power; ``seeds_to_be_safe``: the same with the upper 80 % limit of the spread,
    since few seeds estimate it only roughly; None above ``power.MOST_SEEDS``. ``least_seen``: the difference
    that the smallest side's number of seeds (at least two) detects.
    """

    metric: str
    level: float
    spread: float
    tell_apart: float
    seeds: int | None
    seeds_to_be_safe: int | None
    least_seen: float


@dataclass(frozen=True, slots=True)
class SeedPlan:
    """The rows, and the sides whose noise was used."""

    asked: MarginAmount
    sides: list[tuple[str, int]]  # label, runs
    rows: list[SeedsNeeded]


def make_plan(sides: Sequence[Side], asked: MarginAmount, options: CompareOptions) -> SeedPlan:
    """Plan from the pooled spread within each side.

    Raises UserError if no side has two runs or the metrics are missing.
    """
    if missing := inference.missing():
        raise UserError(f"--plan: {missing}")
    if all(len(side.runs) < 2 for side in sides):
        raise UserError(
            "--plan needs two runs of a side: one run does not show the noise between seeds",
            hint="trinity-compat compare seed1.log,seed2.log,seed3.log --plan 0.02",
        )
    levels = [_levels(side, options) for side in sides]
    common = sorted(set.intersection(*map(set, levels)))
    wanted = [name for name in common if _is_wanted(name, asked, options)]
    if not wanted:
        begins = ", ".join(options.metrics)
        said = f"that begins with {begins}" if begins else "of reward or validation"
        raise UserError(f"--plan: no metric {said} that all runs have", hint="name one with --metric")
    rows = [_row(name, [of[name] for of in levels], asked) for name in wanted]
    return SeedPlan(asked, [(side.label, len(side.runs)) for side in sides], rows)


def _is_wanted(name: str, asked: MarginAmount, options: CompareOptions) -> bool:
    """Return whether to plan a metric: named ones, else score and validation; for a share all key metrics."""
    if options.metrics:
        return name.startswith(tuple(options.metrics))
    return name.startswith("val-core/") or name in (KEY_METRICS if asked.is_share else KEY_METRICS[:1])


def _levels(side: Side, options: CompareOptions) -> dict[str, list[float]]:
    """Return metric → the level of each run, over the range that the side's runs share."""
    renamed = [(run, names.rename(run, options.pairs)[0]) for run in side.runs]
    found = {}
    for name in set.intersection(*(set(series) for _, series in renamed)):
        curves = [curve_of(series[name], run, options).finite() for run, series in renamed]
        xs, values = align(curves)
        if xs:
            found[name] = [stdlib.fmean(ys) for ys in values]
    return found


def _row(name: str, levels: Sequence[Sequence[float]], asked: MarginAmount) -> SeedsNeeded:
    from trinity_compat.compare.inference.estimate import least_difference, seeds_needed, spread_at_most

    freedom = sum(len(side) - 1 for side in levels)
    squares = sum((len(side) - 1) * stdlib.variance(side) for side in levels if len(side) > 1)
    spread, level = math.sqrt(squares / freedom), stdlib.fmean(levels[0])
    size = asked.value * abs(level) if asked.is_share else asked.value
    runs = min(len(side) for side in levels if len(side) > 1)
    return SeedsNeeded(
        name,
        level,
        spread,
        size,
        seeds_needed(spread, size),
        seeds_needed(spread_at_most(spread, freedom), size),
        least_difference(spread * math.sqrt(2 / runs), 2 * runs - 2),
    )


def as_text(plan: SeedPlan, form: str) -> str:
    """Return the plan as text, Markdown or JSON."""
    if form == "json":
        sides = [{"label": label, "runs": runs} for label, runs in plan.sides]
        rows = [asdict(row) for row in plan.rows]
        data = {"version": 1, "asked": str(plan.asked), "sides": sides, "plan": rows}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    whose = " and ".join(f"{label} ({runs} run{'' if runs == 1 else 's'})" for label, runs in plan.sides)
    what = f"a difference of {plan.asked}{' of the level' if plan.asked.is_share else ''}"
    cells = [_cells(row) for row in plan.rows]
    if form == "md":
        head = [f"| {' | '.join(_COLUMNS)} |", "|---" + "|---:" * (len(_COLUMNS) - 1) + "|"]
        table = [*head, *(f"| {' | '.join(row)} |" for row in cells)]
    else:
        table = _columns(cells)
    fewest = min(count for _, count in plan.sides if count > 1)
    lines = [
        f"Seeds per side that detect {what} with 80 % power at p ≤ 0.05, given the noise of {whose}:",
        "",
        *table,
        "",
        "Conservative: from the upper 80 % limit of the standard deviation, which few seeds estimate"
        " only roughly.",
        f"Detectable now: the difference that {fewest} seeds per side detect with 80 % power.",
    ]
    return "\n".join(lines) + "\n"


def _cells(row: SeedsNeeded) -> list[str]:
    numbers = [f"{row.level:.4g}", f"{row.spread:.3g}", f"{row.tell_apart:.3g}"]
    return [row.metric, *numbers, _count(row.seeds), _count(row.seeds_to_be_safe), f"{row.least_seen:.3g}"]


def _count(seeds: int | None) -> str:
    from trinity_compat.compare.inference.estimate import MOST_SEEDS

    return f"> {MOST_SEEDS}" if seeds is None else str(seeds)


def _columns(cells: Sequence[Sequence[str]]) -> list[str]:
    rows = [_COLUMNS, *cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join((row[0].ljust(widths[0]), *line[1:])) for row, line in zip(rows, padded, strict=True)]
