"""Side A against side B, metric by metric: level, slope, last value, area, and whether noise explains it."""

from __future__ import annotations

import math
import statistics as stdlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trinity_compat.compare import names
from trinity_compat.compare.axes import AXES, Axis, Curve, align, curve
from trinity_compat.compare.model import Run, Series, Side
from trinity_compat.compare.statistics import (
    Difference,
    Summary,
    area_between,
    between_seeds,
    summarise,
    within_runs,
)
from trinity_compat.errors import UserError
from trinity_compat.verl_config.suggest import did_you_mean

SAME, DIFFERS, UNCLEAR, IDENTICAL = "same", "differs", "unclear", "identical"
ALPHA = 0.05
# An interval inside this share of the level is close enough to zero to call two sides the same.
_NARROW = 0.1
# TensorBoard keeps float32: two points this close (relative) may be one number, written twice.
_FLOAT32 = 2e-7

# A difference below this share of the level is rounding, wherever it was done.
_ROUNDED = 1e-5


@dataclass(frozen=True, slots=True)
class Options:
    """How to compare. ``pairs`` renames metrics (theirs → canonical) before anything else."""

    axis: Axis = "step"
    updates_per_step: int | None = None
    samples_per_step: int | None = None
    paired: bool = False
    metrics: Sequence[str] = ()  # prefixes to keep; empty: all
    pairs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broken:
    """What a side's curves have of NaN and infinite values where both sides have points.

    ``count`` over all seeds, ``first`` x, ``to_the_end`` where no finite value follows in that seed.
    """

    kind: str  # NaN | infinite | NaN or infinite
    count: int
    first: float
    to_the_end: bool


@dataclass(frozen=True, slots=True)
class SideCurves:
    """One side of one metric on the common x: its mean over seeds, and each seed's values."""

    mean: list[float]
    seeds: list[list[float]]
    summary: Summary
    ranges: list[tuple[float, float]]  # each seed's first and last x, also outside the common range
    counts: list[int]  # each seed's points, also those
    broken: Broken | None = None


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """What became of one metric between A and B. ``area`` is the mean distance of the mean curves."""

    name: str
    group: str
    xs: list[float]
    a: SideCurves
    b: SideCurves
    difference: Difference
    area: float
    verdict: str
    differs_in_meaning: str = ""

    @property
    def better_side(self) -> str:
        """ "A" or "B" where the metric has a better direction and the sides differ, else ""."""
        if bool(self.a.broken) != bool(self.b.broken):
            return "B" if self.a.broken else "A"
        sign = names.better(self.name)
        if self.verdict != DIFFERS or not sign:
            return ""
        return "B" if (self.difference.value > 0) == (sign == "+") else "A"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B. ``only_a`` and ``only_b``: metrics that the other side lacks."""

    a: Side
    b: Side
    options: Options
    metrics: list[MetricVerdict]
    only_a: list[str]
    only_b: list[str]
    notes: list[str]

    @property
    def groups(self) -> dict[str, list[MetricVerdict]]:
        """Metrics by group, in the table's order."""
        order = [*names.table().groups, "other"]
        found: dict[str, list[MetricVerdict]] = {group: [] for group in order}
        for metric in self.metrics:
            found[metric.group].append(metric)
        return {group: metrics for group, metrics in found.items() if metrics}

    def metric(self, name: str) -> MetricVerdict:
        """One metric's verdict. Raises UserError with the nearest names."""
        import difflib

        known = {m.name: m for m in self.metrics}
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, n=3)
        raise UserError(
            f"no metric {name!r} on both sides",
            hint=f"did you mean {', '.join(near)}?" if near else "see the list without --assert",
        )


def compare(a: Side, b: Side, options: Options) -> Comparison:
    """Every metric that all runs of both sides have. Raises UserError where none is common."""
    _check_pairing(a, b, options)
    _check_r(a, b, options)
    _check_pairs((*a.runs, *b.runs), options.pairs)
    renamed_a, notes_a = _renamed(a, options)
    renamed_b, notes_b = _renamed(b, options)
    in_a = set.intersection(*(set(series) for _, series in renamed_a))
    in_b = set.intersection(*(set(series) for _, series in renamed_b))
    metrics, notes = [], [note for run in (*a.runs, *b.runs) for note in (*run.notes, *_not_finite(run))]
    common = sorted(
        name for name in in_a & in_b if not options.metrics or name.startswith(tuple(options.metrics))
    )
    for name in common:
        verdict = _metric(name, renamed_a, renamed_b, options, notes_a.get(name) or notes_b.get(name, ""))
        if verdict is None:
            notes.append(f"{name}: the sides share no range on axis {options.axis!r}")
        else:
            metrics.append(verdict)
    if common and not metrics:
        raise _apart(a, b, common, renamed_a, renamed_b, options)
    if not metrics:
        raise UserError(
            f"{a.label} and {b.label} have no metric in common"
            + (f" that begins with {', '.join(options.metrics)}" if options.metrics else ""),
            hint=f"{a.label} has e.g. {_some(in_a)}; {b.label} has e.g. {_some(in_b)}; see --pair",
        )
    return Comparison(a, b, options, metrics, sorted(in_a - in_b), sorted(in_b - in_a), notes)


def _not_finite(run: Run) -> Iterator[str]:
    for name, series in run.series.items():
        steps = [step for step, value in series.points() if not math.isfinite(value)]
        if steps:
            yield (
                f"{run.source}: {name} has {len(steps)} points that are NaN or infinite, the first at step "
                f"{min(steps)}; they were left out"
            )


def _some(found: set[str]) -> str:
    return ", ".join(sorted(found)[:4]) or "none in all its runs"


def _check_pairing(a: Side, b: Side, options: Options) -> None:
    if options.paired and len(a.runs) != len(b.runs):
        raise UserError(
            f"--paired needs as many runs on each side: {a.label} has {len(a.runs)}, {b.label} {len(b.runs)}"
        )


def _check_r(a: Side, b: Side, options: Options) -> None:
    """A given r that contradicts what every run says of itself is a mistake."""
    given, runs = options.updates_per_step, (*a.runs, *b.runs)
    if given is None or any(updates_of(run) in (None, given) for run in runs):
        return
    said = ", ".join(sorted({f"{run.source}: r = {updates_of(run)}" for run in runs}))
    raise UserError(f"--updates-per-step {given} contradicts the runs' own configuration ({said})")


def _check_pairs(runs: Sequence[Run], pairs: Mapping[str, str]) -> None:
    """A pair that joins nothing is a typing error, and must not look obeyed."""
    for theirs, ours in pairs.items():
        having = [run for run in runs if theirs in run.series]
        if not having:
            near = did_you_mean(theirs, sorted({name for run in runs for name in run.series}))
            hint = f"did you mean {near}?" if near else None
            raise UserError(f"--pair {theirs}={ours}: no run has the metric {theirs}", hint=hint)
        if all(ours in run.series for run in having):
            raise UserError(f"--pair {theirs}={ours}: {having[0].source} has {ours} itself")


_Renamed = list[tuple[Run, dict[str, Series]]]


def _renamed(side: Side, options: Options) -> tuple[_Renamed, dict[str, str]]:
    runs: _Renamed = []
    differs: dict[str, str] = {}
    for run in side.runs:
        series, notes = names.rename(run, options.pairs)
        runs.append((run, series))
        differs.update(notes)
    return runs, differs


def _metric(name: str, a: _Renamed, b: _Renamed, options: Options, differs: str) -> MetricVerdict | None:
    curves = [_curve(series[name], run, options) for run, series in (*a, *b)]
    xs, values = align([_finite(points) for points in curves])
    side_a = _side(xs, values[: len(a)], curves[: len(a)], _common(curves))
    side_b = _side(xs, values[len(a) :], curves[len(a) :], _common(curves))
    if not xs and not side_a.broken and not side_b.broken:
        return None
    difference = _difference(side_a, side_b, options)
    return MetricVerdict(
        name,
        names.group_of(name),
        xs,
        side_a,
        side_b,
        difference,
        area_between(xs, side_a.mean, side_b.mean),
        _judge(side_a, side_b, difference, max(run.resolution for run, _ in (*a, *b))),
        differs,
    )


def _curve(series: Series, run: Run, options: Options) -> Curve:
    return curve(
        series,
        run,
        options.axis,
        r=updates_of(run) or options.updates_per_step,
        samples_per_step=options.samples_per_step or samples_of(run),
    )


def updates_of(run: Run) -> int | None:
    """r, mini-batches per veRL step: the source's own word, else from its configuration (veRL counts a
    mini-batch in prompts: actor.ppo_mini_batch_size), None where neither is there. A mini-batch is one
    step of Trinity's, however many ppo_epochs it is taken through."""
    if run.updates_per_step:
        return run.updates_per_step
    verl = run.meta.get("verl") or {}
    actor = verl.get("actor_rollout_ref", {}).get("actor", {})
    batch, mini = verl.get("data", {}).get("train_batch_size"), actor.get("ppo_mini_batch_size")
    return int(batch) // int(mini) if batch and mini else None


def samples_of(run: Run) -> int | None:
    """Responses per veRL step as the job's own configuration says, None elsewhere."""
    verl = run.meta.get("verl") or {}
    batch = verl.get("data", {}).get("train_batch_size")
    n = verl.get("actor_rollout_ref", {}).get("rollout", {}).get("n")
    return int(batch) * int(n) if batch and n else None


def _apart(a: Side, b: Side, names: list[str], in_a: _Renamed, in_b: _Renamed, options: Options) -> UserError:
    """The error of two sides whose ranges don't meet on the axis."""
    said = []
    for side, runs in ((a, in_a), (b, in_b)):
        curves = [_curve(series[name], run, options) for run, series in runs for name in names]
        xs = [x for points in curves for x, _ in points]
        said.append(f"{side.label} has {min(xs):g} to {max(xs):g}" if xs else f"{side.label} has no point")
    others = ", ".join(axis for axis in reversed(AXES) if axis != options.axis)
    return UserError(
        f"the sides share no range on axis {options.axis!r}: {', '.join(said)}",
        hint=f"give another --axis ({others}): time and tokens count from each run's own beginning",
    )


def _finite(points: Curve) -> Curve:
    return [(x, value) for x, value in points if math.isfinite(value)]


def _common(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range of x in which every curve has points, finite or not; low > high where none is."""
    if not all(curves):
        return math.inf, -math.inf
    return max(points[0][0] for points in curves), min(points[-1][0] for points in curves)


def _side(
    xs: list[float], seeds: list[list[float]], curves: list[Curve], common: tuple[float, float]
) -> SideCurves:
    mean = [stdlib.fmean(column) for column in zip(*seeds, strict=True)]
    ranges = [(points[0][0], points[-1][0]) if points else (math.nan, math.nan) for points in curves]
    inside = [[p for p in points if common[0] <= p[0] <= common[1]] for points in curves]
    return SideCurves(mean, seeds, summarise(xs, mean), ranges, [*map(len, curves)], _broken(inside))


def _broken(curves: list[Curve]) -> Broken | None:
    lost = [(x, value) for points in curves for x, value in points if not math.isfinite(value)]
    if not lost:
        return None
    kinds = {"NaN" if math.isnan(value) else "infinite" for _, value in lost}
    first, _ = min(lost, key=lambda point: point[0])
    tails = (points for points in curves if any(x == first and not math.isfinite(v) for x, v in points))
    to_the_end = not any(x > first for points in tails for x, _ in _finite(points))
    return Broken(" or ".join(sorted(kinds)), len(lost), first, to_the_end)


def _difference(a: SideCurves, b: SideCurves, options: Options) -> Difference:
    if not a.mean:
        return Difference(math.nan, math.nan, math.nan, math.nan, None, "no finite point on both sides")
    if len(a.seeds) >= 2 and len(b.seeds) >= 2:
        levels_a = [stdlib.fmean(seed) for seed in a.seeds]
        levels_b = [stdlib.fmean(seed) for seed in b.seeds]
        return between_seeds(levels_a, levels_b, paired=options.paired)
    return within_runs(a.mean, b.mean)


def _equal(a: list[list[float]], b: list[list[float]]) -> bool:
    """Every run of one side equals the run of the other at its place, as far as a float32 can tell."""
    if len(a) != len(b):
        return False
    points = ((x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
    return all(x == y or math.isclose(x, y, rel_tol=_FLOAT32) for x, y in points)


def _judge(a: SideCurves, b: SideCurves, difference: Difference, resolution: float) -> str:
    """What diverges on one side only differs, whatever its finite points say; on both sides these decide,
    but call nothing the same where other points are lost."""
    if bool(a.broken) != bool(b.broken):
        return DIFFERS
    verdict = _judge_finite(a, b, difference, resolution) if a.mean else UNCLEAR
    return UNCLEAR if a.broken != b.broken and verdict in (SAME, IDENTICAL) else verdict


def _judge_finite(a: SideCurves, b: SideCurves, difference: Difference, resolution: float) -> str:
    """Identical; differs (the interval excludes 0, p ≤ 0.05 where there is one, and B − A is more than the
    coarser source's rounding); same (the whole interval lies within a tenth of the level); else unclear."""
    if _equal(a.seeds, b.seeds):
        return IDENTICAL
    if math.isnan(difference.low):
        return UNCLEAR
    excludes = difference.low > 0 or difference.high < 0
    scale = max(abs(a.summary.level), abs(b.summary.level))
    told = abs(difference.value) > max(resolution, _ROUNDED * scale)
    if told and excludes and (difference.p is None or difference.p <= ALPHA):
        return DIFFERS
    if max(abs(difference.low), abs(difference.high)) <= _NARROW * scale:
        return SAME
    return UNCLEAR
