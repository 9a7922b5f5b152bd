"""The HTML report: one offline file that contains the style sheet and the chart code."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from statistics import fmean
from typing import Any

from trinity_compat import web
from trinity_compat.compare import breakdown
from trinity_compat.compare.conclusion import key_metrics
from trinity_compat.compare.report import as_dict, data_needed, metric_dict
from trinity_compat.compare.verdict import Comparison, MetricVerdict

_MOST = 400  # points of a drawn curve: about a screen's width, which keeps a page of 10 000 steps small


def as_html(comparison: Comparison, *, config_diff: list[dict[str, object]] | None = None) -> str:
    """Return the page. Values are embedded as JSON with ``<`` escaped, so no text of a run becomes markup.

    ``config_diff`` are rows of ``configs.of_runs``, None if a side's configuration is not recorded.
    """
    sides = (comparison.a, comparison.b)
    data = as_dict(comparison)
    data["metrics"] = [drawn(metric) for metric in comparison.metrics]
    data["most"] = _MOST
    data["key"] = key_metrics(comparison)
    data["timing"] = [breakdown.timing(side) for side in sides]
    data["resources"] = [breakdown.resources(side) for side in sides]
    data["config"] = config_diff
    data["open"] = data_needed(comparison)
    page = resources.files("trinity_compat.compare").joinpath("report.html").read_text(encoding="utf-8")
    title = html.escape(f"{comparison.a.label} against {comparison.b.label}")
    parts = {
        "__TITLE__": title,
        "__STYLE__": web.style() + web.chart_style(),
        "__CHARTS__": web.charts(),
        "__DATA__": json.dumps(data).replace("<", "\\u003c"),
    }
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], page)


def drawn(metric: MetricVerdict) -> dict[str, Any]:
    """Return the metric with the points that ``Charts.pair`` draws: x, each run's values, and its gaps.

    Longer curves are reduced to _MOST points, each a mean of neighbouring ones; of more gaps each n-th is
    kept. A gap is an x and the name of its value.
    """
    size = -(-len(metric.xs) // _MOST)
    sides = {"a_seeds": metric.a.seeds, "b_seeds": metric.b.seeds}
    seeds = {side: [_means(run, size) for run in runs] for side, runs in sides.items()}
    lost = {"a_lost": list(map(_gaps, metric.a.lost)), "b_lost": list(map(_gaps, metric.b.lost))}
    return {**metric_dict(metric), "x": _means(metric.xs, size), **seeds, **lost}


def _gaps(points: Sequence[tuple[float, float]]) -> list[tuple[float, str]]:
    kept = points[:: -(-len(points) // _MOST) or 1]
    return [(x, "NaN" if math.isnan(y) else "Infinity" if y > 0 else "-Infinity") for x, y in kept]


def _means(values: Sequence[float], size: int) -> list[float]:
    if size <= 1:
        return list(values)
    return [fmean(values[i : i + size]) for i in range(0, len(values), size)]


def together(labels: Sequence[str], pages: Sequence[str]) -> str:
    """Return several reports as one file, each in its own frame."""
    frames = "".join(
        f"<details{' open' if index == 0 else ''}><summary>{html.escape(label)}</summary>"
        f'<iframe srcdoc="{html.escape(page)}"></iframe></details>'
        for index, (label, page) in enumerate(zip(labels, pages, strict=True))
    )
    style = "summary{font:600 1.1rem system-ui;cursor:pointer}iframe{width:100%;height:92vh;border:0}"
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{style}</style>{frames}</html>\n'
