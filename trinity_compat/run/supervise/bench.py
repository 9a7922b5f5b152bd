"""``run --mode bench``: the checkpoints of a job to evaluate, and their results.

A bench can work beside a running trainer: it has its own lock, ``config/bench.json``, ``log/bench.log``,
``monitor/tensorboard/bench``. Answers and figures go to the job's database.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at
from trinity_compat.job.checkpoints import BENCHED, whole_steps
from trinity_compat.run.job_dir.progress import say
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.supervise.standalone import StandaloneWatch

ROLE = "bench"
_TELL_EVERY_S = 30.0


def with_checkpoints(plan: RunPlan, config: Tree, wanted: str | None) -> RunPlan:
    """Add to a plan the checkpoints to evaluate, and a separate folder for their weights.

    ``wanted``: all, latest, or steps with commas between (0: the model before training). Without it the YAML
    decides: ``explorer.bench_on_latest_checkpoint``, else all, and step 0 with ``explorer.eval_on_startup``.
    Raises UserError for steps that have no checkpoint.
    """
    have = whole_steps(plan.job.root)
    if not wanted:
        explorer = section_at(config, "explorer")
        wanted = "all+start" if explorer.get("eval_on_startup", True) else "all"
        wanted = "latest" if explorer.get("bench_on_latest_checkpoint") else wanted
    steps = _chosen_steps(wanted, have, plan)
    # Not the run's folder: its trainer may be publishing there.
    folder = f"{plan.spec.sync.directory}-{ROLE}"
    spec = replace(plan.spec, checkpoints=steps, sync=replace(plan.spec.sync, directory=folder))
    return replace(plan, spec=spec)


def _chosen_steps(wanted: str, have: Sequence[int], plan: RunPlan) -> tuple[int, ...]:
    if wanted in ("all", "latest", "all+start"):
        if not have:
            raise UserError(
                f"{plan.job.root} has no checkpoint",
                hint="trainer.save_freq decides when one is written; --checkpoints 0 takes the model itself",
            )
        return tuple(have[-1:]) if wanted == "latest" else (*((0,) if wanted != "all" else ()), *have)
    try:
        steps = sorted({int(part) for part in wanted.split(",")})
    except ValueError:
        raise UserError(f"--checkpoints {wanted}: write all, latest, or steps like 0,20,40") from None
    if missing := [step for step in steps if step and step not in have]:
        raise UserError(
            f"--checkpoints {wanted}: {plan.job.root} has no checkpoint of step {missing[0]}",
            hint=f"it has: {', '.join(map(str, have)) or 'none'}",
        )
    return tuple(steps)


@dataclass(slots=True)
class BenchWatch(StandaloneWatch):
    """Prints each checkpoint's figures when it is done, and at intervals the progress of the current one."""

    steps: Sequence[int]
    _marks: dict[int, object] = field(default_factory=dict)
    _told: tuple[object, float] = (None, 0.0)

    def begin(self) -> None:
        """Read the marks of earlier benches."""
        StandaloneWatch.begin(self)
        self._marks = self._read_marks()

    def update(self) -> None:
        """Report the progress since the last poll."""
        for step, mark in self._read_marks().items():
            if mark != self._marks.get(step):
                self._marks[step] = mark
                say(line(step, self.metrics().get(step, {})))
        for who in self.of(ROLE):
            place = who.detail.get("step")
            fresh = place != self._told[0] or time.monotonic() - self._told[1] > _TELL_EVERY_S
            if who.state == "running" and fresh and who.detail.get("rows"):
                self._told = place, time.monotonic()
                say(f"step {place}: {who.detail['rows']} rows to answer")

    def metrics(self) -> dict[int, dict[str, float]]:
        """Return the metrics of the chosen checkpoints, by step."""
        rows = self.buffer.read_metrics(ROLE)
        return {step: metrics for step, metrics in rows if step in self.steps}

    def _read_marks(self) -> dict[int, object]:
        return {step: BENCHED.at(step).get(self.buffer) for step in self.steps}


def line(step: int, metrics: Mapping[str, float]) -> str:
    """Return the line with one checkpoint's core metrics."""
    figures = "  ".join(f"{name} {value:.4f}" for name, value in core(metrics).items())
    return f"step {step}: {figures}"


def core(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that veRL calls core (``val-core/``)."""
    return {name: value for name, value in metrics.items() if name.startswith("val-core/")}


def table(results: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Return a table of the core metrics: one line per metric, one column per checkpoint."""
    steps = sorted(results)
    names = list(dict.fromkeys(name for step in steps for name in core(results[step])))
    width = max(map(len, names), default=0)
    head = " " * width + "".join(f"{'step ' + str(step):>12}" for step in steps)
    rows = [
        f"{name:<{width}}" + "".join(f"{results[step].get(name, float('nan')):>12.4f}" for step in steps)
        for name in names
    ]
    return [head, *rows]
