"""What to conclude from a comparison, in words: first whether training differs, then how sure that is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from trinity_compat.compare import inference
from trinity_compat.compare.decide import ALPHA, DIFFERS, IDENTICAL, SAME, UNCLEAR
from trinity_compat.compare.missing import UNITS, divergence, number, shortened
from trinity_compat.compare.names import LEARNING, OUTCOME
from trinity_compat.compare.verdict import Comparison, MetricVerdict

VERDICTS = (DIFFERS, UNCLEAR, SAME, IDENTICAL)
# The metrics that a person looks at first, in this order.
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
_FEWEST = 3  # points in common, below which nothing is called the same
_CHANCE = "of metrics called different so, at most one in twenty is so by chance"


def headline(comparison: Comparison) -> list[str]:
    """The conclusion in a few sentences: does it train the same, the rewards, the counts, how sure."""
    known = {metric.name: metric for metric in comparison.metrics}
    first, *more = _first(comparison)
    lines = [first, *map(str, comparison.lost_by_stock), *more]
    lines += [sentence(known[name]) for name in _SENTENCES if name in known]
    lines += [sentence(metric) for metric in comparison.metrics if metric.name.startswith("val-core/")]
    lines += [*partings(comparison), *_takes(comparison), _counts(comparison), *_untested(comparison)]
    return [*lines, *_methods(comparison), *_unknown_seeds(comparison)]


def _first(comparison: Comparison) -> list[str]:
    """Divergence before all else: it needs no test. Then whether the rest trains the same."""
    axis = comparison.options.axis
    broken = [m for m in _by_weight(comparison.metrics) if m.a.broken or m.b.broken]
    one_sided = [m for m in broken if not (m.a.broken and m.b.broken)]
    learning = [divergence(m, axis) for m in one_sided if m.group in LEARNING]
    both = [divergence(m, axis) for m in broken if m.a.broken and m.b.broken]
    rest = [divergence(m, axis) for m in one_sided if m.group not in LEARNING]
    verdict = f"It does not train the same: {_listed(learning, 3)}." if learning else _training(comparison)
    notes = [f"Not finite: {_listed(found)}." for found in (both, rest) if found]
    ends = shortened(comparison)
    return [verdict, *([ends] if ends else []), *notes]


def _by_weight(metrics: Sequence[MetricVerdict]) -> list[MetricVerdict]:
    """The metrics to look at first before the others."""
    place = {name: index for index, name in enumerate(KEY_METRICS)}
    return sorted(metrics, key=lambda m: (place.get(m.name, len(place)), m.group not in OUTCOME, m.name))


def key_metrics(comparison: Comparison) -> list[str]:
    """The names of KEY_METRICS and of validation scores that both sides have."""
    names = {metric.name for metric in comparison.metrics}
    scores = sorted(name for name in names if name.startswith("val-core/"))
    rewards, rest = KEY_METRICS[:1], KEY_METRICS[1:]
    return [name for name in (*rewards, *scores, *rest) if name in names and not _twin(name, comparison)]


def _twin(name: str, comparison: Comparison) -> bool:
    """Whether this is the reward after a KL penalty of nothing: the score once more."""
    if name != "critic/rewards/mean":
        return False
    known = {metric.name: metric for metric in comparison.metrics}
    score = known.get("critic/score/mean")
    return score is not None and score.a.mean == known[name].a.mean and score.b.mean == known[name].b.mean


def group_rows(comparison: Comparison) -> list[tuple[str, dict[str, int], list[str]]]:
    """(group, verdict → how many, the names of those that differ), in the table's order."""
    return [
        (
            group,
            {verdict: sum(m.verdict == verdict for m in metrics) for verdict in VERDICTS},
            [m.name for m in metrics if m.verdict == DIFFERS],
        )
        for group, metrics in comparison.groups.items()
    ]


def _training(comparison: Comparison) -> str:
    learning = [m for m in comparison.metrics if m.group in LEARNING and not _twin(m.name, comparison)]
    if not learning:
        return "Whether it trains the same cannot be said: the sides share no metric of learning."
    most = max(m.a.summary.points for m in learning)
    tested = sum(m.verdict != IDENTICAL for m in learning)
    if not tested and most >= _FEWEST:
        return f"It trains the same: {_all_of_learning(len(learning))} equal at every point."
    outcome = [_moved(m) for m in learning if m.verdict == DIFFERS and m.group in OUTCOME]
    inside = [m.name for m in learning if m.verdict == DIFFERS and m.group not in OUTCOME]
    if outcome and not _seeds(comparison):
        known = "beyond the noise inside the runs, but one run a side can't tell it from the seed"
        return f"{_listed(outcome)}: {known}."
    if outcome:
        return f"It does not train the same: {_listed(outcome)}."
    if inside:
        verb = "differs" if len(inside) == 1 else "differ"
        share = f"Of {tested} metrics of learning that are not equal {len(inside)} {verb}"
        return f"No reward or validation score differs. {share}: {_listed(inside)}."
    parted = [m.name for m in learning if m.parting and m.group in OUTCOME]
    if parted:
        return f"The levels don't differ, but the curves part: {_listed(parted)}."
    return _cannot_be_said(learning) or _nothing_differs(comparison, learning)


def _cannot_be_said(learning: Sequence[MetricVerdict]) -> str:
    """Why no test could be made of any metric of learning, "" where one could."""
    most = max(m.a.summary.points for m in learning)
    if most < _FEWEST:
        why = f"the sides have only {_points(most)} in common"
    else:
        lacks = [m.evidence.lacks for m in learning if m.verdict != IDENTICAL]
        why = lacks[0] if all(lacks) else ""
    return f"Whether it trains the same cannot be said: {why}." if why else ""


def _nothing_differs(comparison: Comparison, learning: Sequence[MetricVerdict]) -> str:
    noise = "seed noise" if _seeds(comparison) else "the noise inside the runs"
    first = key_metrics(comparison)[:2]
    tested = [m for m in learning if m.verdict == UNCLEAR and m.evidence.least is not None]
    open_ends = [m.name for m in tested if m.name in first]
    if open_ends:
        return f"Nothing is beyond {noise}, but that is too large to say 'the same' of {_listed(open_ends)}."
    unclear = sum(m.verdict == UNCLEAR for m in learning)
    tail = f" ({unclear} {'is' if unclear == 1 else 'are'} unclear)" if unclear else ""
    count = f"{_metrics(len(learning))} of learning, none beyond {noise}"
    return f"No sign that it trains differently: {count}{tail}."


def _all_of_learning(count: int) -> str:
    return "the one metric of learning is" if count == 1 else f"all {count} metrics of learning are"


def _metrics(count: int) -> str:
    return "1 metric" if count == 1 else f"{count} metrics"


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


def _moved(metric: MetricVerdict) -> str:
    value, level = metric.difference.value, metric.a.summary.level
    share = f" by {abs(value / level):.2g} of A's level" if level else ""
    return f"{metric.name} is {'higher' if value > 0 else 'lower'} in B{share}"


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def partings(comparison: Comparison) -> list[str]:
    """From which step the curves differ: of the metrics to look at first, the others counted."""
    parted = [m for m in _by_weight(comparison.metrics) if m.parting and m.group in LEARNING]
    first = key_metrics(comparison)
    shown = [parting(m, comparison) for m in parted if m.name in first]
    more = len(parted) - len(shown)
    noun = "metric of learning parts" if more == 1 else "metrics of learning part"
    return [*shown, *([f"{more} more {noun}: see the curves in the HTML report."] if more else [])]


def parting(metric: MetricVerdict, comparison: Comparison) -> str:
    """``critic/score/mean parts at step 81: …``. Its band must leave 0."""
    band = metric.parting
    assert band is not None and band.first is not None
    unit = UNITS[comparison.options.axis]
    start, end = band.starts[band.first], band.ends[band.first]
    where = f"{unit} {number(start)}" if start == end else f"{unit}s {number(start)} to {number(end)}"
    windows = f"outside it in {band.outside} of {len(band.starts)} windows"
    level = "" if metric.verdict == DIFFERS else ", though the levels don't differ"
    return f"{metric.name} parts at {where} (simultaneous 95 % band over the seeds; {windows}){level}."


def _takes(comparison: Comparison) -> Iterator[str]:
    """What it would take to know of the outcome, where it is unclear."""
    for metric in comparison.metrics:
        first = metric.name in key_metrics(comparison)[:2] or metric.name.startswith("val-core/")
        if metric.verdict == UNCLEAR and first and (said := takes(metric)):
            yield f"{metric.name} is unclear: {metric.why}; {said}."


def takes(metric: MetricVerdict) -> str:
    """What data like these could have shown, and how many seeds would show the margin; "" where nothing was
    tested."""
    evidence = metric.evidence
    if evidence.least is None:
        return ""
    seen = f"a difference of {evidence.least:.2g} would have been seen (80 % power)"
    if not metric.over_seeds:
        return f"{seen}; how many seeds it takes is known from two seeds a side on"
    return f"{seen}; {needed(metric)} seeds a side would tell {_margin(metric)}, apart"


def needed(metric: MetricVerdict) -> str:
    """How many seeds a side tell the margin apart: a number, ``> 10000``, – where seed noise is unknown."""
    if not metric.over_seeds or metric.evidence.least is None:
        return "–"
    from trinity_compat.compare.inference.power import MOST_SEEDS

    return f"> {MOST_SEEDS}" if metric.evidence.seeds is None else str(metric.evidence.seeds)


def _counts(comparison: Comparison) -> str:
    metrics = comparison.metrics
    counts = {verdict: sum(m.verdict == verdict for m in metrics) for verdict in VERDICTS}
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    compared = f"{_metrics(len(metrics))} compared: {listed}."
    learning = [m for m in metrics if m.group in LEARNING and m.difference.q is not None]
    if not learning:
        return compared
    found = sum(m.difference.q is not None and m.difference.q <= ALPHA for m in learning)
    tested = f"Of {_metrics(len(learning))} of learning tested"
    if not found:
        return f"{compared} {tested} none has q ≤ {ALPHA}."
    return f"{compared} {tested} {found} {'has' if found == 1 else 'have'} q ≤ {ALPHA}: {_CHANCE}."


def _untested(comparison: Comparison) -> list[str]:
    """Why metrics were not tested, once for all that have the same reason."""
    lacks = (m.evidence.lacks for m in comparison.metrics if m.verdict == UNCLEAR)
    reasons = Counter(why for why in lacks if why and why != inference.missing())
    return [f"{_metrics(count)} not tested: {why}." for why, count in reasons.most_common()]


def _methods(comparison: Comparison) -> list[str]:
    """How the intervals were made, once for all metrics."""
    methods = {m.difference.method for m in comparison.metrics if m.difference.method}
    if missing := inference.missing():
        return [f"No intervals, p or verdicts: {missing}."]
    return [f"Intervals and p: {method}." for method in sorted(methods)]


def _seeds(comparison: Comparison) -> bool:
    return min(len(comparison.a.runs), len(comparison.b.runs)) >= 2


def _unknown_seeds(comparison: Comparison) -> Iterator[str]:
    if not _seeds(comparison):
        yield "One run on a side: seed noise is unknown, so 'differs' may be the seed. Add seeds."


def sentence(metric: MetricVerdict) -> str:
    """One metric's verdict in words."""
    d = metric.difference
    interval = "" if math.isnan(d.low) else f", 95 % interval {d.low:+.4g} … {d.high:+.4g}"
    p = "" if d.p is None else f", p = {d.p:.3g}"
    q = "" if d.q is None else f", q = {d.q:.3g}"
    effect = f", Hedges' g = {d.effect:+.2f}" if metric.over_seeds and not math.isnan(d.effect) else ""
    side = f"; {metric.better_side} is better" if metric.better_side else ""
    same = f" within {_margin(metric)}" if metric.verdict == SAME else ""
    why = f"; {metric.why}" if metric.verdict == SAME and metric.why else ""
    return (
        f"{metric.name}: {metric.verdict}{same} (A {metric.a.summary.level:.4g}, "
        f"B {metric.b.summary.level:.4g}, B − A {d.value:+.4g}{interval}{p}{q}{effect}){side}{why}"
        f"{_left_out(metric)}"
    )


def _margin(metric: MetricVerdict) -> str:
    margin = metric.evidence.margin
    return f"±{margin.size:.3g}, {margin.origin}"


def _left_out(metric: MetricVerdict) -> str:
    sides = ((letter, side.broken) for letter, side in (("A", metric.a), ("B", metric.b)))
    counts = [f"{broken.count} in {letter}" for letter, broken in sides if broken]
    return f"; without points that are not finite: {', '.join(counts)}" if counts else ""
