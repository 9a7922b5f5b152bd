"""Alerts: signs in a run's metrics and state that it has gone wrong.

Each rule is a function of the trainer's rows, oldest first. Limits are wide: an alert should be worth a look.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import fmean, median

from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir.snapshot import REWARD, Snapshot, StepFigures, age

ROWS = 1000  # newest rows that are enough to decide
_WINDOW = 10  # steps that a mean reward is taken over
_LARGEST = 1e100  # reward whose sums stay finite
_NOISE = 8  # standard errors of that mean: a smaller drop of the reward is chance
_LATEST, _EARLIER, _FEWEST = 3, 50, 10  # values whose medians a blow-up compares; earlier ones that it needs
_TIMES = 10  # what a blow-up is of the earlier median
_GROWING = {"actor/grad_norm": 1.0, "critic/grad_norm": 1.0, "actor/ppo_kl": 0.1, "actor/kl_loss": 0.1}
_ENTROPY, _ENTROPY_LEFT = "actor/entropy", 0.05
_LAG, _LAG_STEPS = "training/model_version_lag/max", 5
_QUIET_S, _QUIET_STEPS = 300.0, 5  # without a new group, the longer of both
_FREE_BYTES = 5 * 2**30
_Found = tuple[str, str, int]  # text, metric, step since which


@dataclass(frozen=True, slots=True)
class Alert:
    """``kind`` is one of KINDS; ``text`` says what has happened, since which step.

    ``metric`` is the one whose curve shows it, '' for an alert of the run's state.
    """

    kind: str
    text: str
    metric: str = ""
    since: int | None = None


KINDS = ("not a number", "reward", "blow-up", "entropy", "staleness", "stall", "disk")


def of_run(snapshot: Snapshot, rows: Sequence[StepFigures], spec: RunSpec, *, running: bool) -> list[Alert]:
    """Return a run's alerts: of ``rows``, and of its state while it is ``running``."""
    found = of_metrics(rows[-ROWS:], spec.max_staleness)
    if not running:
        return found
    try:
        free = shutil.disk_usage(spec.job_dir).free
    except OSError:
        free = None
    return found + of_state(snapshot, free)


def of_metrics(rows: Sequence[StepFigures], max_staleness: int | None) -> list[Alert]:
    """Return the alerts that a run's metrics give. ``max_staleness`` is the run's limit, None without one."""
    found = [
        ("not a number", _not_numbers(rows)),
        ("reward", _fallen_reward(rows)),
        *(("blow-up", _blown_up(rows, name, least)) for name, least in _GROWING.items()),
        ("entropy", _fallen_entropy(rows)),
        ("staleness", _stale(rows, max_staleness)),
    ]
    return [Alert(kind, *what) for kind, what in found if what]


def of_state(snapshot: Snapshot, free: int | None) -> list[Alert]:
    """Return the alerts of a running job's state. ``free``: bytes on the job's disk, None if unknown."""
    step_s = max((row.step_s or 0.0 for row in snapshot.rows[-_LATEST:]), default=0.0)
    quiet_s = snapshot.quiet_s
    busy = any(one.role == "explorer" and one.state == "running" for one in snapshot.participants)
    found = []
    if busy and quiet_s is not None and quiet_s > max(_QUIET_S, _QUIET_STEPS * step_s):
        found.append(Alert("stall", f"the explorer is running and has stored no group for {age(quiet_s)}"))
    if free is not None and free < _FREE_BYTES:
        found.append(Alert("disk", f"{free / 2**30:.1f} GiB are free on the job's disk"))
    return found


def _not_numbers(rows: Sequence[StepFigures]) -> _Found | None:
    newest: Mapping[str, float] = rows[-1].metrics if rows else {}
    broken = [name for name, value in newest.items() if not math.isfinite(value)]
    since = {name: _since(rows, name, lambda value: not math.isfinite(value)) for name in broken}
    # The first to break is the cause.
    for name in sorted(broken, key=lambda name: (since[name], name)):
        others = f", {len(broken) - 1} more metrics too" if len(broken) > 1 else ""
        value = "NaN" if math.isnan(newest[name]) else "infinite"
        return f"{name} is {value} since step {since[name]}{others}", name, since[name]
    return None


def _fallen_reward(rows: Sequence[StepFigures]) -> _Found | None:
    points = [(row.step, row.reward) for row in rows if row.reward is not None and abs(row.reward) < _LARGEST]
    values = [value for _, value in points]
    if len(values) < 3 * _WINDOW:
        return None
    means = [fmean(values[end - _WINDOW : end]) for end in range(_WINDOW, len(values) + 1)]
    best = max(range(len(means)), key=means.__getitem__)
    drop, rise = means[best] - means[-1], means[best] - min(means[: best + 1])
    # Of neighbouring values with normal noise of deviation s, the mean distance is 2 s / sqrt(pi).
    noise = fmean(abs(b - a) for a, b in pairwise(values)) * math.sqrt(math.pi) / 2 / math.sqrt(_WINDOW)
    if drop <= max(rise / 2, _NOISE * noise):
        return None
    at = points[best + _WINDOW - 1][0]
    metric = next(name for name in REWARD if name in rows[-1].metrics or name == REWARD[-1])
    return f"the reward fell from {means[best]:.4g} at step {at} to {means[-1]:.4g}", metric, at


def _blown_up(rows: Sequence[StepFigures], name: str, least: float) -> _Found | None:
    values = [abs(value) for _, value in _finite(rows, name)]
    earlier = values[-_LATEST - _EARLIER : -_LATEST]
    if len(earlier) < _FEWEST:
        return None
    usual, now = median(earlier), median(values[-_LATEST:])
    limit = max(_TIMES * usual, least)
    if now <= limit:
        return None
    since = _since(rows, name, lambda value: abs(value) > limit)
    return f"{name} is {now:.3g} since step {since}; before that it was {usual:.3g}", name, since


def _fallen_entropy(rows: Sequence[StepFigures]) -> _Found | None:
    points = list(_finite(rows, _ENTROPY))
    values = [value for _, value in points]
    if len(values) < 2 * _FEWEST:
        return None
    first, now = median(values[:_FEWEST]), median(values[-_LATEST:])
    if not 0 <= now < _ENTROPY_LEFT * first:
        return None
    since = next(step for step, value in points if value < _ENTROPY_LEFT * first)
    return f"{_ENTROPY} fell from {first:.3g} to {now:.3g}", _ENTROPY, since


def _stale(rows: Sequence[StepFigures], limit: int | None) -> _Found | None:
    points = list(_finite(rows[-_LAG_STEPS:], _LAG))
    if not limit or len(points) < _LAG_STEPS or min(value for _, value in points) < limit:
        return None
    text = f"the oldest answers have been at the limit, {limit} versions, for {_LAG_STEPS} steps"
    return text, _LAG, points[0][0]


def _finite(rows: Sequence[StepFigures], name: str) -> Iterator[tuple[int, float]]:
    for row in rows:
        value = row.metrics.get(name)
        if value is not None and math.isfinite(value):
            yield row.step, value


def _since(rows: Sequence[StepFigures], name: str, holds: Callable[[float], bool]) -> int:
    """Return the first of the steps up to the newest at all of which the metric ``holds``."""
    logged = ((row.step, row.metrics[name]) for row in reversed(rows) if name in row.metrics)
    return min((step for step, _ in takewhile(lambda point: holds(point[1]), logged)), default=rows[-1].step)
