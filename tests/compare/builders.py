"""Runs and sides made on the spot."""

from __future__ import annotations

from trinity_compat.compare.model import RunMetrics, Series, Side

SCORE = "critic/score/mean"


def run_of(metrics, name="run", **kw):
    """A run with metric → values at steps 1, 2, …"""
    series = {}
    for metric, values in metrics.items():
        series[metric] = Series()
        for step, value in enumerate(values, 1):
            series[metric].add(step, value)
    return RunMetrics(name, name, "table", series, **kw)


def with_metrics(label, metrics, **kw):
    """A side of one run."""
    return Side(label, [run_of(metrics, label, **kw)])


def seeds_at(label, levels, name=SCORE, points=4):
    """A side whose seeds stay at one level each."""
    return Side(label, [run_of({name: [level] * points}, f"{label}{i}") for i, level in enumerate(levels)])


def seeds_with(label, name, curves):
    """A side whose seeds have these curves of one metric."""
    return Side(label, [run_of({name: values}, f"{label}{i}") for i, values in enumerate(curves)])
