"""The HTML report: one offline file (no network, no library), curves drawn by a small script inside it."""

from __future__ import annotations

import html
import json
import statistics
from importlib import resources
from typing import Any

from trinity_compat.compare.model import Run, Side
from trinity_compat.compare.report import as_dict
from trinity_compat.compare.verdict import Comparison

# What a veRL step consists of, in order; timing_s/step is their sum and more.
_PARTS = (
    "gen",
    "buffer_wait",
    "reward",
    "old_log_prob",
    "ref",
    "RefPolicy",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
    "testing",
    "save_checkpoint",
)


def as_html(comparison: Comparison, *, config_diff: list[dict[str, Any]] | None = None) -> str:
    """The page. Values are embedded as JSON with ``<`` escaped, so no text of a run becomes markup."""
    data = as_dict(comparison, curves=True)
    data["timing"] = [_timing(comparison.a), _timing(comparison.b)]
    data["config"] = config_diff or []
    data["resources"] = [_resources(comparison.a), _resources(comparison.b)]
    page = resources.files("trinity_compat.compare").joinpath("report.html").read_text(encoding="utf-8")
    title = html.escape(f"{comparison.a.label} against {comparison.b.label}")
    return page.replace("__TITLE__", title).replace("__DATA__", json.dumps(data).replace("<", "\\u003c"))


def _timing(side: Side) -> dict[str, Any]:
    """Mean seconds of each part of a step over runs and steps, and what of timing_s/step they leave."""
    parts = {part: _mean(side, f"timing_s/{part}") for part in _PARTS}
    known = {part: seconds for part, seconds in parts.items() if seconds}
    total = _mean(side, "timing_s/step")
    if total and total > sum(known.values()):
        known["other"] = total - sum(known.values())
    return {"label": side.label, "parts": known, "total": total}


def _mean(side: Side, name: str) -> float | None:
    values = [v for run in side.runs if name in run.series for v in run.series[name].sorted().values]
    return statistics.fmean(values) if values else None


def _resources(side: Side) -> dict[str, Any]:
    """Throughput and MFU per GPU, and how the GPUs are split where the job says so."""
    return {
        "label": side.label,
        "throughput": _mean(side, "perf/throughput"),
        "mfu_actor": _mean(side, "perf/mfu/actor"),
        "staleness": _mean(side, "training/model_version_lag/mean"),
        "gpus": _gpus(side.runs[0]) if side.runs else "unknown",
    }


def _gpus(run: Run) -> str:
    trainer = (run.meta.get("verl") or {}).get("trainer", {})
    if not trainer:
        return "unknown (the source doesn't say)"
    count = int(trainer.get("nnodes") or 1) * int(trainer.get("n_gpus_per_node") or 1)
    return f"{count} for the trainer; rollout on its own" if run.kind == "job" else f"{count}, shared"
