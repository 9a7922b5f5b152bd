"""What to conclude from a comparison, in words: first whether training differs, then how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from trinity_compat.compare.missing import divergence, shortened
from trinity_compat.compare.verdict import (
    ALPHA,
    DIFFERS,
    IDENTICAL,
    SAME,
    UNCLEAR,
    Comparison,
    MetricVerdict,
)

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
_OUTCOME = ("reward", "evaluation")
_LEARNING = (*_OUTCOME, "length", "policy", "critic")


def headline(comparison: Comparison) -> list[str]:
    """The conclusion in a few sentences: does it train the same, the rewards, the counts, how sure."""
    known = {metric.name: metric for metric in comparison.metrics}
    lines = _first(comparison)
    lines += [sentence(known[name]) for name in _SENTENCES if name in known]
    lines += [sentence(metric) for metric in comparison.metrics if metric.name.startswith("val-core/")]
    return [*lines, _counts(comparison), *_methods(comparison), *_power(comparison)]


def _first(comparison: Comparison) -> list[str]:
    """Divergence before all else: it needs no test. Then whether the rest trains the same."""
    axis = comparison.options.axis
    broken = [m for m in _by_weight(comparison.metrics) if m.a.broken or m.b.broken]
    one_sided = [m for m in broken if not (m.a.broken and m.b.broken)]
    learning = [divergence(m, axis) for m in one_sided if m.group in _LEARNING]
    both = [divergence(m, axis) for m in broken if m.a.broken and m.b.broken]
    rest = [divergence(m, axis) for m in one_sided if m.group not in _LEARNING]
    verdict = f"It does not train the same: {_listed(learning, 3)}." if learning else _training(comparison)
    notes = [f"Not finite: {_listed(found)}." for found in (both, rest) if found]
    ends = shortened(comparison)
    return [verdict, *([ends] if ends else []), *notes]


def _by_weight(metrics: Sequence[MetricVerdict]) -> list[MetricVerdict]:
    """The metrics to look at first before the others."""
    place = {name: index for index, name in enumerate(KEY_METRICS)}
    return sorted(metrics, key=lambda m: (place.get(m.name, len(place)), m.group not in _OUTCOME, m.name))


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
    learning = [m for m in comparison.metrics if m.group in _LEARNING and not _twin(m.name, comparison)]
    if not learning:
        return "Whether it trains the same cannot be said: the sides share no metric of learning."
    outcome = [_moved(m) for m in learning if m.verdict == DIFFERS and m.group in _OUTCOME]
    inside = [m.name for m in learning if m.verdict == DIFFERS and m.group not in _OUTCOME]
    tested = sum(m.verdict != IDENTICAL and m.group not in _OUTCOME for m in learning)
    if outcome and not _seeds(comparison):
        known = "beyond the noise inside the runs, but one run a side can't tell it from the seed"
        return f"{_listed(outcome)}: {known}."
    if outcome:
        return f"It does not train the same: {_listed(outcome)}."
    if inside:
        verb = "differs" if len(inside) == 1 else "differ"
        share = f"Of {tested} other metrics of learning {len(inside)} {verb}"
        chance = f"about {ALPHA * tested:.0f} would by chance"
        return f"No reward or validation score differs. {share} ({chance}): {_listed(inside)}."
    most = max(m.a.summary.points for m in learning)
    if most < _FEWEST:
        return f"Whether it trains the same cannot be said: the sides have only {_points(most)} in common."
    noise = "seed noise" if _seeds(comparison) else "the noise inside the runs"
    open_ends = [m.name for m in learning if m.verdict == UNCLEAR and m.name in key_metrics(comparison)[:2]]
    if open_ends:
        return f"Nothing is beyond {noise}, but that is too large to say 'the same' of {_listed(open_ends)}."
    unclear = sum(m.verdict == UNCLEAR for m in learning)
    if _too_few_seeds(comparison):
        return (
            f"So few seeds can call nothing different: of {len(learning)} metrics of learning "
            f"{len(learning) - unclear} are the same, {unclear} too noisy to call so."
        )
    tail = f" ({unclear} are too noisy to call the same)" if unclear else ""
    return (
        f"No sign that it trains differently: {len(learning)} metrics of learning, none beyond {noise}{tail}."
    )


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


def _moved(metric: MetricVerdict) -> str:
    value, level = metric.difference.value, metric.a.summary.level
    share = f" by {abs(value / level):.2g} of A's level" if level else ""
    return f"{metric.name} is {'higher' if value > 0 else 'lower'} in B{share}"


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _counts(comparison: Comparison) -> str:
    metrics = comparison.metrics
    counts = {verdict: sum(m.verdict == verdict for m in metrics) for verdict in VERDICTS}
    tested = len(metrics) - counts[IDENTICAL]
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    chance = f" (about {ALPHA * tested:.0f} would differ by chance alone at 5 %)"
    return f"{len(metrics)} metrics compared: {listed}{'' if _too_few_seeds(comparison) else chance}."


def _methods(comparison: Comparison) -> list[str]:
    """How the intervals were made, once for all metrics."""
    methods = {m.difference.method for m in comparison.metrics if not math.isnan(m.difference.low)}
    return [f"Intervals and p: {method}." for method in sorted(methods)]


def _seeds(comparison: Comparison) -> bool:
    return min(len(comparison.a.runs), len(comparison.b.runs)) >= 2


def _power(comparison: Comparison) -> Iterator[str]:
    """What this many seeds cannot say."""
    if not _seeds(comparison):
        yield "One run on a side: seed noise is unknown, so 'differs' may be the seed. Add seeds."
    elif _too_few_seeds(comparison):
        a, b = len(comparison.a.runs), len(comparison.b.runs)
        least, enough = _least_p(comparison), 6 if comparison.options.paired else 4
        yield (
            f"With {a} and {b} seeds p cannot go below {least:.2g}, so 'differs' cannot be said: "
            f"read the intervals, or add seeds ({enough} a side)."
        )


def _too_few_seeds(comparison: Comparison) -> bool:
    """Whether no metric can be called different, however far the sides are apart."""
    return _seeds(comparison) and _least_p(comparison) > ALPHA


def _least_p(comparison: Comparison) -> float:
    a, b = len(comparison.a.runs), len(comparison.b.runs)
    return 2 / 2**a if comparison.options.paired else least_p(a, b)


def least_p(a: int, b: int) -> float:
    """The smallest p of a two-sided permutation test with ``a`` and ``b`` runs: where the sides are equally
    large, the split and its mirror image are equally far."""
    return (2 if a == b else 1) / math.comb(a + b, a)


def sentence(metric: MetricVerdict) -> str:
    """One metric's verdict in words."""
    d = metric.difference
    interval = "" if math.isnan(d.low) else f", 95 % interval {d.low:+.4g} … {d.high:+.4g}"
    p = "" if d.p is None else f", p = {d.p:.3g}, Hedges' g = {d.effect:+.2f}"
    side = f"; {metric.better_side} is better" if metric.better_side else ""
    return (
        f"{metric.name}: {metric.verdict} (A {metric.a.summary.level:.4g}, B {metric.b.summary.level:.4g}, "
        f"B − A {d.value:+.4g}{interval}{p}){side}{_left_out(metric)}"
    )


def _left_out(metric: MetricVerdict) -> str:
    sides = ((letter, side.broken) for letter, side in (("A", metric.a), ("B", metric.b)))
    counts = [f"{broken.count} in {letter}" for letter, broken in sides if broken]
    return f"; without points that are not finite: {', '.join(counts)}" if counts else ""
