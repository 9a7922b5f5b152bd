"""The conclusion of a comparison in words: first whether training differs, then how certain that is.

The first line begins with "The same", "Different:" or "Not enough data to say:".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from trinity_compat.compare import inference
from trinity_compat.compare.axes import Axis
from trinity_compat.compare.curves import NonFinitePoints
from trinity_compat.compare.decide import ALPHA, DIFFERS, IDENTICAL, SAME, UNCLEAR
from trinity_compat.compare.names import LEARNING, OUTCOME
from trinity_compat.compare.verdict import Comparison, MetricVerdict

UNITS: dict[Axis, str] = {
    "step": "step",
    "update": "update",
    "samples": "sample",
    "tokens": "token",
    "time": "second",
}


def divergence(metric: MetricVerdict, axis: Axis) -> str:
    """Return where and on which side a metric is NaN or infinite; at least one side must have such points."""
    a, b = metric.a.broken, metric.b.broken
    if a and b:
        return f"{metric.name} is {non_finite_place(a, axis)} in A and {non_finite_place(b, axis)} in B"
    broken, letter, other = (a, "A", "B") if a else (b, "B", "A")
    assert broken is not None
    return f"{metric.name} is {non_finite_place(broken, axis)} in {letter}, finite in {other}"


def non_finite_place(broken: NonFinitePoints, axis: Axis) -> str:
    """Return ``NaN from step 51 on``, ``infinite at step 7`` or ``NaN at 3 points, first at step 7``."""
    at = f"{UNITS[axis]} {number(broken.first)}"
    if broken.to_the_end:
        return f"{broken.kind} from {at} on"
    return f"{broken.kind} at {at if broken.count == 1 else f'{broken.count} points, first at {at}'}"


def shortened(comparison: Comparison) -> str | None:
    """Return which run starts later or ends earlier and which range is compared, or None if all are equal.

    The range of most metrics decides, so a rarely logged metric (validation) has no influence.
    """
    ranges = Counter((*m.a.ranges, *m.b.ranges) for m in comparison.metrics)
    points = {(*m.a.ranges, *m.b.ranges): m.a.summary.points for m in comparison.metrics}
    common = max(ranges, key=lambda found: (ranges[found], points[found]))
    unit, spacing = UNITS[comparison.options.axis], _sparsest_spacing(common, comparison)
    starts, ends = ([found[end] for found in common] for end in (0, 1))
    low, high = max(starts), min(ends)
    parts = []
    for verb, at, late, early in (("begins", starts, low, min(starts)), ("ends", ends, high, max(ends))):
        if abs(late - early) >= spacing:
            late_run, other = (_run_name(comparison, at, at.index(x)) for x in (late, early))
            parts.append(f"{late_run} {verb} at {unit} {number(late)}, {other} at {number(early)}")
    whole = f"only {unit}s {number(low)} to {number(high)} are compared."
    return f"{'; '.join(parts)}: {whole}" if parts else None


def _sparsest_spacing(ranges: tuple[tuple[float, float], ...], comparison: Comparison) -> float:
    """Return the x between two points of the sparsest run.

    Trinity logs each update, so its range begins before veRL's first whole step and ends after its last.
    """
    metric = next(m for m in comparison.metrics if (*m.a.ranges, *m.b.ranges) == ranges)
    counts = (*metric.a.counts, *metric.b.counts)
    gaps = [(last - first) / (n - 1) for (first, last), n in zip(ranges, counts, strict=True) if n > 1]
    return max(gaps, default=1.0) * (1 - 1e-9)


def _run_name(comparison: Comparison, at: list[float], index: int) -> str:
    """Return a side's letter, with the run's name if the side's runs differ."""
    runs = [("A", run) for run in comparison.a.runs] + [("B", run) for run in comparison.b.runs]
    letter, run = runs[index]
    agree = len({x for (side, _), x in zip(runs, at, strict=True) if side == letter}) == 1
    return letter if agree else f"{run.name} of {letter}"


def number(x: float) -> str:
    """Format an x: a step as a whole number, millions of tokens without an exponent."""
    return f"{x:.0f}" if abs(x) >= 1000 or x == round(x) else f"{x:.3g}"


VERDICTS = (DIFFERS, UNCLEAR, SAME, IDENTICAL)
# The metrics that readers want first, in this order.
KEY_METRICS = (
    "critic/score/mean",
    "critic/rewards/mean",
    "response_length/mean",
    "actor/entropy",
    "actor/ppo_kl",
    "actor/kl_loss",
    "actor/grad_norm",
    "critic/vf_loss",
    "training/rollout_probs_diff_mean",
    "training/model_version_lag/mean",
    "timing_s/step",
    "perf/throughput",
)
_SENTENCES = ("critic/score/mean", "response_length/mean", "perf/throughput")
_UNKNOWN = "Not enough data to say"
_FEWEST = 3  # points in common that a conclusion needs
_CHANCE = "at most one in twenty of such findings is expected to be due to chance"


def headline(comparison: Comparison) -> list[str]:
    """Return the report's first lines: the result, the outcome metrics, the counts, the methods."""
    known = {metric.name: metric for metric in comparison.metrics}
    first, *more = _result(comparison)
    lines = [first, *map(str, comparison.lost_by_stock), *map(str, comparison.ignored_by_stock), *more]
    lines += [sentence(known[name]) for name in _SENTENCES if name in known]
    lines += [sentence(metric) for metric in comparison.metrics if metric.name.startswith("val-core/")]
    lines += [*_curve_differences(comparison), *_unclear_outcomes(comparison), _counts(comparison)]
    lines += [*_untested(comparison), *_methods(comparison)]
    if not _has_seeds(comparison):
        lines.append(
            "A side has only one run, so seed noise is unknown and 'differs' may be an effect of the seed."
            " Add seeds."
        )
    return lines


def _result(comparison: Comparison) -> list[str]:
    """Report divergence first, since it needs no test; otherwise compare the metrics of learning."""
    axis = comparison.options.axis
    broken = [m for m in _by_importance(comparison.metrics) if m.a.broken or m.b.broken]
    one_sided = [m for m in broken if not (m.a.broken and m.b.broken)]
    learning = [divergence(m, axis) for m in one_sided if m.group in LEARNING]
    both = [divergence(m, axis) for m in broken if m.a.broken and m.b.broken]
    rest = [divergence(m, axis) for m in one_sided if m.group not in LEARNING]
    first = f"Different: {_joined(learning, 3)}." if learning else _training(comparison)
    notes = [f"Not finite: {_joined(metrics)}." for metrics in (both, rest) if metrics]
    ends = shortened(comparison)
    return [first, *([ends] if ends else []), *notes]


def _by_importance(metrics: Sequence[MetricVerdict]) -> list[MetricVerdict]:
    """Sort key metrics first, then the other outcomes."""
    place = {name: index for index, name in enumerate(KEY_METRICS)}
    return sorted(metrics, key=lambda m: (place.get(m.name, len(place)), m.group not in OUTCOME, m.name))


def key_metrics(comparison: Comparison) -> list[str]:
    """Return the names of KEY_METRICS and of the validation scores that both sides have."""
    names = {metric.name for metric in comparison.metrics}
    scores = sorted(name for name in names if name.startswith("val-core/"))
    rewards, rest = KEY_METRICS[:1], KEY_METRICS[1:]
    return [
        name for name in (*rewards, *scores, *rest) if name in names and not _repeats_score(name, comparison)
    ]


def _repeats_score(name: str, comparison: Comparison) -> bool:
    """Return True for the reward metric where no KL penalty makes it differ from the score."""
    if name != "critic/rewards/mean":
        return False
    known = {metric.name: metric for metric in comparison.metrics}
    score = known.get("critic/score/mean")
    return score is not None and score.a.mean == known[name].a.mean and score.b.mean == known[name].b.mean


def group_rows(comparison: Comparison) -> list[tuple[str, dict[str, int], list[str]]]:
    """Return (group, verdict → count, names of the metrics that differ) in the table's order."""
    return [
        (
            group,
            {verdict: sum(m.verdict == verdict for m in metrics) for verdict in VERDICTS},
            [m.name for m in metrics if m.verdict == DIFFERS],
        )
        for group, metrics in comparison.groups.items()
    ]


def _training(comparison: Comparison) -> str:
    learning = [
        m for m in comparison.metrics if m.group in LEARNING and not _repeats_score(m.name, comparison)
    ]
    if not learning:
        return (
            "Not enough data to say: the sides share no metric of reward, evaluation, length, policy or"
            " critic. --pair THEIRS=OURS joins metrics that have different names."
        )
    most = max(m.a.summary.points for m in learning)
    tested = sum(m.verdict != IDENTICAL for m in learning)
    if not tested and most >= _FEWEST:
        subject = "the one metric" if len(learning) == 1 else f"all {len(learning)} metrics"
        verb = "is" if len(learning) == 1 else "are"
        return f"The same: {subject} of learning {verb} equal at every point."
    return (
        _difference(comparison, learning, tested)
        or _not_tested(learning)
        or _nothing_differs(comparison, learning)
    )


def _difference(comparison: Comparison, learning: Sequence[MetricVerdict], tested: int) -> str:
    """Return how the sides differ, or "" if no metric of learning does.

    With one run on a side the seed may be the reason, so that this is no conclusion about training.
    """
    outcome = [_shift(m) for m in learning if m.verdict == DIFFERS and m.group in OUTCOME]
    others = [m.name for m in learning if m.verdict == DIFFERS and m.group not in OUTCOME]
    apart = [m.name for m in learning if m.separating_band and m.group in OUTCOME]
    if outcome and not _has_seeds(comparison):
        return (
            f"{_UNKNOWN}: {_joined(outcome)}, which may be an effect of the seed."
            " The noise within the runs does not explain it: compare at least two seeds per side."
        )
    if outcome:
        return f"Different: {_joined(outcome)}. Seed noise does not explain this (q ≤ {ALPHA})."
    if others:
        which = f"{len(others)} of {_metrics(tested)} of learning"
        first = f"Different: no reward or validation score, but {which}"
        if not _has_seeds(comparison):
            verb = "does" if len(others) == 1 else "do"
            first = f"{_UNKNOWN}: no reward or validation score differs, but {which} {verb}"
        return f"{first}: {_joined(others)}. Check these curves before calling the sides the same."
    if apart:
        return (
            f"Different: the curves of {_joined(apart)}, although their levels are not."
            " The lines below name the first steps at which they differ."
        )
    return ""


def _not_tested(learning: Sequence[MetricVerdict]) -> str:
    """Return why no metric of learning could be tested, or "" if one could."""
    most = max(m.a.summary.points for m in learning)
    if most < _FEWEST:
        points = "1 point" if most == 1 else f"{most} points"
        why = f"the sides have only {points} in common, and at least {_FEWEST} are needed"
    else:
        reasons = [m.evidence.lacks for m in learning if m.verdict != IDENTICAL]
        why = reasons[0] if all(reasons) else ""
    return f"{_UNKNOWN}: {why}." if why else ""


def _nothing_differs(comparison: Comparison, learning: Sequence[MetricVerdict]) -> str:
    """Return whether the sides are shown to be the same, by the reward or else by every metric."""
    noise = "seed noise" if _has_seeds(comparison) else "the noise within the runs"
    first = [m for m in learning if m.name in key_metrics(comparison)[:2] and m.group in OUTCOME]
    rest = f"No metric of learning differs by more than {noise} explains"
    unclear = [m for m in learning if m.verdict == UNCLEAR]
    count = f" ({len(unclear)} of {len(learning)} unclear)." if unclear else "."
    if undecided := [m for m in first or learning if m.verdict == UNCLEAR]:
        limits = [f"{m.name} below {m.evidence.least:.2g}" for m in undecided if m.evidence.least is not None]
        why = f"a difference in {' or in '.join(limits[:2])} may go unnoticed" if limits else ""
        return f"{_UNKNOWN}: {why or _joined([f'{m.name} is unclear' for m in undecided], 2)}. {rest}{count}"
    same = [f"±{m.evidence.margin.size:.2g} in {m.name}" for m in first or learning if m.verdict == SAME]
    if not same:
        equal = [f"{m.name} is equal at every point" for m in first or learning]
        return f"The same: {_joined(equal, 2)}. {rest}{count}"
    return f"The same within {_joined(same, 2)}. {rest}{count}"


def _metrics(count: int) -> str:
    return "1 metric" if count == 1 else f"{count} metrics"


def _shift(metric: MetricVerdict) -> str:
    """Return ``critic/score/mean is higher in B by 54 % of A's level``."""
    value, level = metric.difference.value, metric.a.summary.level
    share = f" by {percent(value / level)} of A's level" if level else ""
    return f"{metric.name} is {'higher' if value > 0 else 'lower'} in B{share}"


def percent(share: float) -> str:
    """Format the size of a share: ``12 %``, ``1.5 %``."""
    size = 100 * abs(share)
    return f"{size:.0f} %" if size >= 10 else f"{size:.2g} %"


def _joined(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _curve_differences(comparison: Comparison) -> list[str]:
    """Return a line for each key metric whose curves differ, and the number of other such metrics."""
    apart = [m for m in _by_importance(comparison.metrics) if m.separating_band and m.group in LEARNING]
    first = key_metrics(comparison)
    shown = [_curve_difference(m, comparison) for m in apart if m.name in first]
    more = len(apart) - len(shown)
    noun = "metric of learning differs" if more == 1 else "metrics of learning differ"
    return [*shown, *([f"The curves of {more} more {noun}: see the HTML report."] if more else [])]


def _curve_difference(metric: MetricVerdict, comparison: Comparison) -> str:
    """Return ``critic/score/mean: the curves first differ at step 81 …``."""
    band = metric.separating_band
    assert band is not None and band.first is not None
    unit = UNITS[comparison.options.axis]
    start, end = band.starts[band.first], band.ends[band.first]
    where = f"{unit} {number(start)}" if start == end else f"{unit}s {number(start)} to {number(end)}"
    windows = f"excludes 0 in {band.outside} of {len(band.starts)} windows"
    level = "" if metric.verdict == DIFFERS else "; the levels do not differ"
    return (
        f"{metric.name}: the curves first differ at {where}"
        f" (the simultaneous 95 % band of B − A {windows}{level})."
    )


def _unclear_outcomes(comparison: Comparison) -> Iterator[str]:
    """Yield why an outcome is unclear and how many seeds would decide it."""
    for metric in comparison.metrics:
        first = metric.name in key_metrics(comparison)[:2] or metric.name.startswith("val-core/")
        if not first or metric.verdict != UNCLEAR or metric.evidence.least is None:
            continue
        if metric.over_seeds:
            seeds = f"{needed(metric)} seeds per side would detect {_margin(metric)}"
        else:
            seeds = "two seeds per side would tell how many seeds a verdict takes"
        detectable = f"A difference of {metric.evidence.least:.2g} would be detected with 80 % power"
        yield f"{metric.name} is unclear: {metric.why}. {detectable}; {seeds}."


def needed(metric: MetricVerdict) -> str:
    """Return the seeds per side that detect the margin (``> 10000``: too many), – without seed noise."""
    if not metric.over_seeds or metric.evidence.least is None:
        return "–"
    from trinity_compat.compare.inference.estimate import MOST_SEEDS

    return f"> {MOST_SEEDS}" if metric.evidence.seeds is None else str(metric.evidence.seeds)


def _counts(comparison: Comparison) -> str:
    metrics = comparison.metrics
    counts = {verdict: sum(m.verdict == verdict for m in metrics) for verdict in VERDICTS}
    words = {
        verdict: "differ" if verdict == DIFFERS and count > 1 else verdict
        for verdict, count in counts.items()
    }
    listed = ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items() if count)
    compared = f"{_metrics(len(metrics))} compared: {listed}."
    learning = [m for m in metrics if m.group in LEARNING and m.difference.q is not None]
    if not learning:
        return compared
    found = sum(m.difference.q is not None and m.difference.q <= ALPHA for m in learning)
    tested = f"{found or 'None'} of {len(learning)} tested metrics of learning"
    if not found:
        return f"{compared} {tested} has q ≤ {ALPHA}."
    return f"{compared} {tested} {'has' if found == 1 else 'have'} q ≤ {ALPHA}: {_CHANCE}."


def _untested(comparison: Comparison) -> list[str]:
    """Return each reason why metrics were not tested, once, with their number."""
    reasons = Counter(m.evidence.lacks for m in comparison.metrics if m.verdict == UNCLEAR)
    known = ("", inference.missing())
    return [
        f"{_metrics(count)} not tested: {why}." for why, count in reasons.most_common() if why not in known
    ]


def _methods(comparison: Comparison) -> list[str]:
    """Return how the intervals were computed, once for all metrics."""
    methods = {m.difference.method for m in comparison.metrics if m.difference.method}
    if missing := inference.missing():
        return [f"No intervals, p or verdicts: {missing}."]
    return [f"Intervals and p: {method}." for method in sorted(methods)]


def _has_seeds(comparison: Comparison) -> bool:
    return min(len(comparison.a.runs), len(comparison.b.runs)) >= 2


def sentence(metric: MetricVerdict) -> str:
    """Return one metric's verdict in words."""
    d = metric.difference
    interval = "" if math.isnan(d.low) else f", 95 % interval {d.low:+.4g} … {d.high:+.4g}"
    p = "" if d.p is None else f", p = {d.p:.3g}"
    q = "" if d.q is None else f", q = {d.q:.3g}"
    effect = f", Hedges' g = {d.effect:+.2f}" if metric.over_seeds and not math.isnan(d.effect) else ""
    side = f"; {metric.better_side} is better" if metric.better_side else ""
    same = f" within {_margin(metric)}" if metric.verdict == SAME else ""
    why = f"; {metric.why}" if metric.verdict == SAME and metric.why else ""
    sides = ((letter, side.broken) for letter, side in (("A", metric.a), ("B", metric.b)))
    counts = [f"{broken.count} in {letter}" for letter, broken in sides if broken]
    omitted = f"; NaN or infinite points left out: {', '.join(counts)}" if counts else ""
    return (
        f"{metric.name}: {metric.verdict}{same} (A {metric.a.summary.level:.4g}, "
        f"B {metric.b.summary.level:.4g}, B − A {d.value:+.4g}{interval}{p}{q}{effect}){side}{why}"
        f"{omitted}"
    )


def _margin(metric: MetricVerdict) -> str:
    margin = metric.evidence.margin
    return f"±{margin.size:.3g}, {margin.origin}"
