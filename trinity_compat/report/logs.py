"""The logs of a run: all there is of a stock veRL run, and the side of a comparison with a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import section_at, value_at
from trinity_compat.compare.conclusion import headline
from trinity_compat.compare.margins import CompareOptions
from trinity_compat.compare.model import RunMetrics
from trinity_compat.compare.report import metric_dict
from trinity_compat.compare.sources import read_runs, read_side
from trinity_compat.compare.verdict import compare
from trinity_compat.report.drift import DIFFERENCE, KL
from trinity_compat.report.model import RunReport, Section, counted
from trinity_compat.report.ran import of_verl

_COVERAGE = "which prompts were trained, skipped or repeated: stock veRL keeps no ledger; a run here does"
_WEIGHTS = "whether its engines had the trainer's weights: stock veRL compares no digests and logs none"


def report_of_log(path: Path) -> RunReport:
    """Return the report of a run that ``compare`` can read. Raises UserError unless there is one."""
    runs = read_runs(path)
    if len(runs) > 1:
        names = ", ".join(run.source for run in runs[:5])
        raise UserError(f"{len(runs)} runs are here", where=Where(str(path)), hint=f"name one of {names}")
    run = runs[0]
    steps = list(max(run.series.values(), key=len).steps)
    verl = section_at(run.meta, "verl")
    data = {"read_from": run.kind, **of_verl(verl)}
    unknown = ["releases of veRL, vLLM and torch: the log does not say"]
    if not verl:
        unknown.insert(0, "the configuration: the log does not have it")
    ran = f"{data['algorithm'] or 'a run'} on {data['model'] or 'a model'}"
    return RunReport(
        str(path),
        [
            Section("Ran", "open", ran, data, unknown),
            _coverage(run, steps),
            Section("Weights", "open", "not known", {}, [_WEIGHTS]),
            _drift(run),
            _restarts(steps),
        ],
    )


def _coverage(run: RunMetrics, steps: list[int]) -> Section:
    trained = sorted({step for step in steps if step > 0})
    missing = len(set(range(trained[0], trained[-1] + 1)).difference(trained)) if trained else 0
    each = value_at(run.meta, "verl.data.train_batch_size")
    tokens = _values(run, "perf/total_num_tokens").values()
    data = {
        "steps_logged": len(trained),
        "last_step": max(trained, default=0),
        "steps_without_a_line": missing,
        "prompts_by_configuration": each and each * len(trained),
        "tokens": sum(tokens) if tokens else None,
    }
    return Section("Coverage", "open", f"{counted(len(trained), 'step')} logged", data, [_COVERAGE])


def _drift(run: RunMetrics) -> Section:
    kl, difference = (_mean(_values(run, name)) for name in (KL, DIFFERENCE))
    unknown = ["the part of staleness: the log does not have each answer's version"]
    if kl is None and difference is None:
        why = "actor_rollout_ref.rollout.calculate_log_probs=True logs it"
        unknown = [f"drift: the log has no log-probabilities of the rollout; {why}"]
    first = "not known" if kl is None else f"{kl:.3g} nats a token (KL), staleness included"
    return Section("Drift", "open", first, {"kl": kl, "probability_difference": difference}, unknown)


def _restarts(steps: list[int]) -> Section:
    back = [(at, steps[i - 1]) for i, at in enumerate(steps) if i and at <= steps[i - 1]]
    found = [{"was_at": before, "from_step": at, "steps_again": before - at + 1} for at, before in back]
    again = sum(each["steps_again"] for each in found)
    first = f"{counted(len(found), 'time')} back to an earlier step, {counted(again, 'step')} logged again"
    unknown = ["restarts that wrote another log, and what they threw away"]
    return Section("Restarts", "open", first, {"steps_again": again, "restarts": found}, unknown)


def _values(run: RunMetrics, name: str) -> Mapping[int, float]:
    series = run.series.get(name)
    return {step: v for step, v in series.latest().points() if math.isfinite(v)} if series else {}


def _mean(values: Mapping[int, float]) -> float | None:
    return sum(values.values()) / len(values) if values else None


def baseline(source: Path, other: Path) -> Section:
    """Return ``compare``'s verdict of a run (B) against a baseline (A). Raises UserError as it does."""
    found = compare(read_side([other], other.name), read_side([source], source.name), CompareOptions())
    first, *more = headline(found)
    names = ("verdict", "better", "why")
    rows: list[dict[str, Any]] = [
        {"metric": each["name"], **{name: each[name] for name in names}, **each["difference"]}
        for each in map(metric_dict, found.metrics)
    ]
    data = {"baseline": str(other), "conclusion": more, "metrics": rows}
    return Section("Baseline", "proven" if first.startswith("The same") else "open", first, data)
