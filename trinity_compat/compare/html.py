"""The HTML report: one offline file (no network, no library), curves drawn by a small script inside it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from statistics import fmean
from typing import Any

from trinity_compat.compare import breakdown
from trinity_compat.compare.conclusion import key_metrics
from trinity_compat.compare.report import as_dict, open_ends
from trinity_compat.compare.verdict import Comparison

_MOST = 400  # points of a drawn curve: more than a screen shows, and a page of 10 000 steps stays small


def as_html(comparison: Comparison, *, config_diff: list[dict[str, object]] | None = None) -> str:
    """The page. Values are embedded as JSON with ``<`` escaped, so no text of a run becomes markup.

    ``config_diff``: rows of ``configs.of_runs``, None where a side's configuration is not known.
    """
    sides = (comparison.a, comparison.b)
    data = as_dict(comparison, curves=True)
    data["metrics"] = [_thinned(metric) for metric in data["metrics"]]
    data["most"] = _MOST
    data["key"] = key_metrics(comparison)
    data["timing"] = [breakdown.timing(side) for side in sides]
    data["resources"] = [breakdown.resources(side) for side in sides]
    data["config"] = config_diff
    data["open"] = open_ends(comparison)
    page = resources.files("trinity_compat.compare").joinpath("report.html").read_text(encoding="utf-8")
    title = html.escape(f"{comparison.a.label} against {comparison.b.label}")
    return page.replace("__TITLE__", title).replace("__DATA__", json.dumps(data).replace("<", "\\u003c"))


def _thinned(metric: dict[str, Any]) -> dict[str, Any]:
    """The metric with curves of at most _MOST points, each the mean of its neighbours."""
    size = -(-len(metric["x"]) // _MOST)
    if size <= 1:
        return metric
    seeds = {side: [_means(run, size) for run in metric[side]] for side in ("a_seeds", "b_seeds")}
    return {**metric, "x": _means(metric["x"], size), **seeds}


def _means(values: Sequence[float], size: int) -> list[float]:
    return [fmean(values[i : i + size]) for i in range(0, len(values), size)]


def together(labels: Sequence[str], pages: Sequence[str]) -> str:
    """Several reports in one file, each in a frame of its own that holds the whole of it."""
    frames = "".join(
        f"<details{' open' if index == 0 else ''}><summary>{html.escape(label)}</summary>"
        f'<iframe srcdoc="{html.escape(page)}"></iframe></details>'
        for index, (label, page) in enumerate(zip(labels, pages, strict=True))
    )
    style = "summary{font:600 1.1rem system-ui;cursor:pointer}iframe{width:100%;height:92vh;border:0}"
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{style}</style>{frames}</html>\n'
