"""The answer of a trial about a mode B: its reward and its speed beside those of mode A.

All of it comes from a `Comparison`, so that `compare` says the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trinity_compat.compare import report
from trinity_compat.compare.conclusion import key_metrics, needed, non_finite_place, percent
from trinity_compat.compare.decide import DIFFERS, IDENTICAL, SAME
from trinity_compat.compare.names import LEARNING, OUTCOME
from trinity_compat.compare.verdict import Comparison, MetricVerdict

_STEP_TIME = "timing_s/step"
_WORDS = {"critic/score/mean": "reward", "critic/rewards/mean": "reward"}


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """A's step time over B's, with its 95 % interval over seeds (NaN: a side has only one)."""

    ratio: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        known = not math.isnan(self.low)
        between = f"95 %: {_times(self.low)} to {_times(self.high)}" if known else "one seed: no interval"
        return f"{_times(self.ratio)} × as fast ({between})"


def _times(ratio: float) -> str:
    if math.isinf(ratio):
        return "any"
    return f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2g}"


def outcomes(comparison: Comparison) -> list[MetricVerdict]:
    """Return the metrics that decide whether a mode is worse: the reward, then validation scores."""
    names = key_metrics(comparison)
    return [metric for metric in map(comparison.metric, names) if metric.group in OUTCOME]


def why_worse(comparison: Comparison) -> str:
    """Return the reason why B is worse than A, "" unless compare's verdicts say that it is.

    With one run on a side only NaN and infinity say so: the seed may explain another difference.
    """
    for metric in comparison.metrics:
        if metric.group in LEARNING and metric.b.broken and not metric.a.broken:
            return f"{metric.name} is {non_finite_place(metric.b.broken, comparison.options.axis)}"
    found = [metric for metric in outcomes(comparison) if metric.over_seeds and metric.better_side]
    if any(metric.better_side == "B" for metric in found):
        return ""
    return ", ".join(map(_outcome, found))


def speed_up(comparison: Comparison) -> SpeedUp | None:
    """Return the speed-up by the mean times of a step, None where a side does not log them."""
    metric = next((m for m in comparison.metrics if m.name == _STEP_TIME), None)
    if metric is None or not (metric.a.summary.level > 0 and metric.b.summary.level > 0):
        return None
    ratio = metric.a.summary.level / metric.b.summary.level
    if not metric.over_seeds:
        return SpeedUp(ratio)
    from trinity_compat.compare.inference.seeds import ratio_interval

    return SpeedUp(ratio, *ratio_interval(metric.a.levels, metric.b.levels))


def in_words(comparison: Comparison) -> str:
    """Return ``reward within 2 %, 1.6 × as fast (95 %: 1.5 to 1.7)``."""
    found = outcomes(comparison)
    parts = [_outcome(metric) for metric in found if metric is found[0] or metric.verdict == DIFFERS]
    parts = parts or ["no reward that both log"]
    return ", ".join((*parts, str(speed_up(comparison) or "no step times that both log")))


def of_baseline(comparison: Comparison) -> str:
    """Return ``reward 0.613, 12.3 s a step: the others are compared with this``, of A."""
    known = {metric.name: metric.a.summary.level for metric in comparison.metrics}
    parts = [f"{_name(metric)} {metric.a.summary.level:.3g}" for metric in outcomes(comparison)[:1]]
    parts += [f"{known[_STEP_TIME]:.3g} s a step"] if _STEP_TIME in known else []
    return f"{', '.join(parts) or 'no reward'}: the others are compared with this"


def record(comparison: Comparison) -> dict[str, object]:
    """Return the answer for programs; the metrics are as in compare's JSON."""
    faster = speed_up(comparison)
    limits = faster and {"ratio": faster.ratio, "low": faster.low, "high": faster.high}
    return {
        "answer": in_words(comparison),
        "worse": why_worse(comparison) or None,
        "outcomes": [report.metric_dict(metric) for metric in outcomes(comparison)],
        "speed_up": limits and {name: at if math.isfinite(at) else None for name, at in limits.items()},
    }


def _name(metric: MetricVerdict) -> str:
    return _WORDS.get(metric.name, metric.name)


def _outcome(metric: MetricVerdict) -> str:
    name, level = _name(metric), abs(metric.a.summary.level)
    value, margin = metric.difference.value, metric.evidence.margin
    by_level = level and not margin.is_of_spread

    def amount(size: float) -> str:
        return percent(size / level) if by_level else f"{abs(size):.2g}"

    if metric.a.broken or metric.b.broken:
        sides = (("here", metric.b.broken), ("in the other", metric.a.broken))
        return f"{name} " + " and ".join(f"{broken.kind} {where}" for where, broken in sides if broken)
    if metric.verdict == IDENTICAL:
        return f"{name} equal at every step"
    if metric.verdict == SAME:
        return f"{name} within {amount(margin.size)}"
    if metric.verdict == DIFFERS:
        return f"{name} {'higher' if value > 0 else 'lower'} by {amount(value)}"
    seeds = f"; {needed(metric)} seeds a mode would decide" if metric.over_seeds else ""
    return f"{name} unclear ({'+' if value >= 0 else '−'}{amount(value)}{seeds})"
