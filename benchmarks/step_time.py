"""Step time of the decoupled run against stock veRL on the toy, both measured in one go.

    python benchmarks/step_time.py [--toy DIR] [--out DIR] [--steps 12] [--ways stock offset0 offset1]

The same script, the same machine, one after the other, no validation and no checkpoints. Seconds are
veRL's own metrics, medians without the first two steps; "others" is what the rest of the machine did
meanwhile: the figures hold where it is near 0. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "parity"))
import toy_runs
from toy_runs import WAYS, Measured

from trinity_compat.compare.model import RunMetrics

WARM = 2  # steps that are left out: torch and vLLM still allocate
QUIET = ["trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.save_freq=-1"]
HEAD = (
    "| run | s/step | of stock | generation, s | waited for it, s | hidden | old log-probs + update, s "
    "| clock between steps, s | start to end of step 1, s | total, s | CPU, s | memory, GB | processes "
    "| others, cores |"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way's figures; seconds, medians over steps."""

    step: float
    generation: float
    waited: float
    trained: float
    apart: float
    until_first: float
    measured: Measured

    @property
    def hidden(self) -> float:
        """The share of generation that went on while the trainer trained."""
        return max(0.0, 1 - self.waited / self.generation)

    def cells(self, stock_s: float | None) -> list[str]:
        run = self.measured
        return [
            run.way,
            f"{self.step:.2f}",
            f"{self.step / stock_s:.2f}" if stock_s else "",
            f"{self.generation:.2f}",
            f"{self.waited:.2f}",
            f"{self.hidden:.0%}",
            f"{self.trained:.2f}",
            f"{self.apart:.2f}",
            f"{self.until_first:.0f}",
            f"{run.seconds:.0f}",
            f"{run.cpu_s:.0f}",
            f"{run.peak_bytes / 2**30:.1f}",
            str(run.processes),
            f"{run.others:.1f}",
        ]


def row_of(measured: Measured, run: RunMetrics) -> Row:
    waited = median(run, "timing_s/gen")
    explored = toy_runs.series(run, "time/rollout")  # ours only: stock generates inside its step
    steps = toy_runs.series(run, "timing_s/step")
    return Row(
        step=median(run, "timing_s/step"),
        generation=median(run, "time/rollout") if len(explored) else waited,
        waited=waited,
        trained=median(run, "timing_s/old_log_prob") + median(run, "timing_s/update_actor"),
        apart=statistics.median(between(steps.walls)),
        until_first=steps.walls[0] - measured.started,
        measured=measured,
    )


def median(run: RunMetrics, name: str) -> float:
    return statistics.median(toy_runs.series(run, name).values[WARM:])


def between(walls: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(walls)][WARM:]


def show(rows: list[Row]) -> None:
    stock = next((row.step for row in rows if row.measured.way == "stock"), None)
    print(f"\n{HEAD}\n|---{'|---:' * (HEAD.count('|') - 2)}|")
    for row in rows:
        print(f"| {' | '.join(row.cells(stock))} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--toy", type=Path, help="model and data (made when missing)")
    parser.add_argument("--out", type=Path, help="keep the runs here; finished ones are not repeated")
    parser.add_argument("--steps", type=int, default=12, help=f"veRL steps, more than {WARM}")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["stock", "offset0", "offset1"])
    args = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}, {args.steps} steps")
    with tempfile.TemporaryDirectory(prefix="tc-step-", dir="/tmp") as scratch:
        out = (args.out or Path(scratch)).absolute()
        toy = toy_runs.make_toy((args.toy or out / "toy").absolute())
        rows = []
        for way in args.ways:
            words = [f"trainer.total_training_steps={args.steps}", *QUIET]
            measured = toy_runs.run(way, out / way, toy, words)
            rows.append(row_of(measured, toy_runs.metrics(out / way)))
            print(f"{way}: {measured.seconds:.0f} s", file=sys.stderr, flush=True)
        show(rows)


if __name__ == "__main__":
    main()
