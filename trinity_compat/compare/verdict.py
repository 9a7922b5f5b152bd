"""Comparison of two sides metric by metric: level, slope, last value, area, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trinity_compat.common.errors import UserError
from trinity_compat.common.suggestions import did_you_mean, nearest
from trinity_compat.compare import names
from trinity_compat.compare.axes import AXES
from trinity_compat.compare.curves import Renamed, SideCurves, area_between, both_sides, curve_of, updates_of
from trinity_compat.compare.decide import ALPHA, DIFFERS, UNCLEAR, equal, judge
from trinity_compat.compare.evidence import Difference, Evidence, gather
from trinity_compat.compare.margins import CompareOptions
from trinity_compat.compare.model import RunMetrics, Side

if TYPE_CHECKING:
    from trinity_compat.compare.inference.divergence_step import Band
    from trinity_compat.compare.lost_keys import IgnoredKey, LostKeys

__all__ = ["CompareOptions", "Comparison", "MetricVerdict", "compare"]


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """The verdict on one metric. ``area`` is the mean distance of the mean curves.

    ``why`` is the reason of an unclear verdict, or a remark on a ``same`` one.
    """

    name: str
    group: str
    xs: list[float]
    a: SideCurves
    b: SideCurves
    area: float
    evidence: Evidence
    verdict: str
    why: str = ""
    differs_in_meaning: str = ""
    band_q: float | None = None

    @property
    def difference(self) -> Difference:
        """B − A of the level."""
        return self.evidence.difference

    @property
    def over_seeds(self) -> bool:
        """True if both sides have at least two seeds, so that the spread between seeds is known."""
        return min(len(self.a.seeds), len(self.b.seeds)) >= 2

    @property
    def better_side(self) -> str:
        """The side that is better, "" if the sides do not differ or the metric has no better direction."""
        if bool(self.a.broken) != bool(self.b.broken):
            return "B" if self.a.broken else "A"
        sign = names.better(self.name)
        if self.verdict != DIFFERS or not sign:
            return ""
        return "B" if (self.difference.value > 0) == (sign == "+") else "A"

    @property
    def separating_band(self) -> Band | None:
        """The band of B − A if it excludes 0 in some window, else None.

        Where the level does not differ, the band must also be significant among all metrics' bands.
        """
        band, q = self.evidence.band, self.band_q
        if band is None or band.first is None or q is None:
            return None
        return band if self.verdict == DIFFERS or q <= ALPHA else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B. ``only_a`` and ``only_b``: metrics that the other side lacks."""

    a: Side
    b: Side
    options: CompareOptions
    metrics: list[MetricVerdict]
    only_a: list[str]
    only_b: list[str]
    notes: list[str]

    @property
    def lost_by_stock(self) -> list[LostKeys]:
        """The reward keys that a stock run of a side ignored."""
        from trinity_compat.compare.lost_keys import (
            lost_by_stock,  # with translate, which `--help` can do without
        )

        return lost_by_stock(self.a, self.b)

    @property
    def ignored_by_stock(self) -> list[IgnoredKey]:
        """The other keys that a stock run of a side ignored and the other side's job honoured."""
        from trinity_compat.compare.lost_keys import ignored_by_stock

        return ignored_by_stock(self.a, self.b)

    @property
    def groups(self) -> dict[str, list[MetricVerdict]]:
        """Metrics by group, in the table's order."""
        found: dict[str, list[MetricVerdict]] = {group: [] for group in names.groups()}
        for metric in self.metrics:
            found[metric.group].append(metric)
        return {group: metrics for group, metrics in found.items() if metrics}

    def metric(self, name: str) -> MetricVerdict:
        """One metric's verdict. Raises UserError with the nearest names."""
        known = {m.name: m for m in self.metrics}
        if name in known:
            return known[name]
        near = nearest(name, known, most=3)
        raise UserError(
            f"no metric {name!r} on both sides",
            hint=f"did you mean {', '.join(near)}?" if near else "see the list without --assert",
        )


def compare(a: Side, b: Side, options: CompareOptions) -> Comparison:
    """Compare every metric that all runs of both sides have. Raises UserError if there is none."""
    if options.paired and len(a.runs) != len(b.runs):
        raise UserError(
            f"--paired needs as many runs on each side: {a.label} has {len(a.runs)}, {b.label} {len(b.runs)}"
        )
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
        raise _no_common_range(a, b, common, renamed_a, renamed_b, options)
    if not metrics:
        raise UserError(
            f"{a.label} and {b.label} have no metric in common"
            + (f" that begins with {', '.join(options.metrics)}" if options.metrics else ""),
            hint=f"{a.label} has e.g. {_examples(in_a)}; {b.label} has e.g. {_examples(in_b)}; see --pair",
        )
    unused = options.margins.unused([m.name for m in metrics])
    notes += [f"the margin of {name} fits no metric that both sides have" for name in unused]
    return Comparison(a, b, options, _with_verdicts(metrics), sorted(in_a - in_b), sorted(in_b - in_a), notes)


def _not_finite(run: RunMetrics) -> Iterator[str]:
    for name, series in run.series.items():
        if not all(map(math.isfinite, series.values)):
            steps = [step for step, value in series.points() if not math.isfinite(value)]
            yield (
                f"{run.source}: {name} has {len(steps)} points that are NaN or infinite, the first at step "
                f"{min(steps)}; they were left out"
            )


def _examples(found: set[str]) -> str:
    return ", ".join(sorted(found)[:4]) or "none in all its runs"


def _check_r(a: Side, b: Side, options: CompareOptions) -> None:
    """Raise UserError for an r that contradicts every run's own configuration."""
    given, runs = options.updates_per_step, (*a.runs, *b.runs)
    if given is None or any(updates_of(run) in (None, given) for run in runs):
        return
    said = ", ".join(sorted({f"{run.source}: r = {updates_of(run)}" for run in runs}))
    raise UserError(f"--updates-per-step {given} contradicts the runs' own configuration ({said})")


def _check_pairs(runs: Sequence[RunMetrics], pairs: Mapping[str, str]) -> None:
    """Raise UserError for a pair that joins nothing, which is a typing error."""
    for theirs, ours in pairs.items():
        having = [run for run in runs if theirs in run.series]
        if not having:
            near = did_you_mean(theirs, sorted({name for run in runs for name in run.series}))
            hint = f"did you mean {near}?" if near else None
            raise UserError(f"--pair {theirs}={ours}: no run has the metric {theirs}", hint=hint)
        if all(ours in run.series for run in having):
            raise UserError(f"--pair {theirs}={ours}: {having[0].source} has {ours} itself")


def _renamed(side: Side, options: CompareOptions) -> tuple[Renamed, dict[str, str]]:
    runs: Renamed = []
    differs: dict[str, str] = {}
    for run in side.runs:
        series, notes = names.rename(run, options.pairs)
        runs.append((run, series))
        differs.update(notes)
    return runs, differs


def _metric(name: str, a: Renamed, b: Renamed, options: CompareOptions, differs: str) -> MetricVerdict | None:
    """Return the metric with its evidence and no verdict, None if the sides share no range."""
    xs, side_a, side_b = both_sides(name, a, b, options)
    if not xs and not side_a.broken and not side_b.broken:
        return None
    evidence = gather(
        xs,
        side_a,
        side_b,
        given=options.margins.of(name),
        paired=options.paired,
        resolution=max(run.resolution for run, _ in (*a, *b)),
    )
    area = area_between(xs, side_a.mean, side_b.mean)
    group = names.group_of(name)
    return MetricVerdict(name, group, xs, side_a, side_b, area, evidence, UNCLEAR, differs_in_meaning=differs)


def _with_verdicts(metrics: Sequence[MetricVerdict]) -> list[MetricVerdict]:
    """Return each metric with its verdict.

    p is corrected among the metrics of learning, and among the others (seconds, memory, throughput), which
    nearly always differ.
    """
    found = []
    for learning in (True, False):
        kind = [m for m in metrics if names.is_of_learning(m.group) == learning]
        qs = _discoveries({m.name: m.difference.p for m in kind if _is_tested(m)})
        band_qs = _discoveries({m.name: m.evidence.band.p for m in kind if m.evidence.band and _is_tested(m)})
        for m in kind:
            difference, band_q = replace(m.evidence.difference, q=qs.get(m.name)), band_qs.get(m.name)
            evidence = replace(m.evidence, difference=difference)
            verdict, why = judge(m.a, m.b, evidence, tested=len(qs), band_q=band_q)
            found.append(replace(m, evidence=evidence, verdict=verdict, why=why, band_q=band_q))
    return sorted(found, key=lambda m: m.name)


def _is_tested(metric: MetricVerdict) -> bool:
    """Return whether p counts: the points are not all equal, and not just one side diverged."""
    a, b = metric.a, metric.b
    return not equal(a.seeds, b.seeds) and bool(a.broken) == bool(b.broken)


def _discoveries(ps: Mapping[str, float | None]) -> dict[str, float]:
    known = {name: p for name, p in ps.items() if p is not None}
    if not known:
        return {}
    from trinity_compat.compare.inference.estimate import discoveries

    return dict(zip(known, discoveries(list(known.values())), strict=True))


def _no_common_range(
    a: Side, b: Side, names: list[str], in_a: Renamed, in_b: Renamed, options: CompareOptions
) -> UserError:
    """Return the error for two sides that share no range on the axis."""
    said = []
    for side, runs in ((a, in_a), (b, in_b)):
        curves = [curve_of(series[name], run, options) for run, series in runs for name in names]
        xs = [x for one in curves for x in one.xs]
        said.append(f"{side.label} has {min(xs):g} to {max(xs):g}" if xs else f"{side.label} has no point")
    others = ", ".join(axis for axis in reversed(AXES) if axis != options.axis)
    return UserError(
        f"the sides share no range on axis {options.axis!r}: {', '.join(said)}",
        hint=f"give another --axis ({others}): time and tokens count from each run's own beginning",
    )
