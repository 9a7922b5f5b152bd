"""Hold the predictions of `trinity-compat advise` against the explorer's own code, and against finished runs.

    python benchmarks/advise_accuracy.py [--engines 8] [--json]
    python benchmarks/advise_accuracy.py --paced OUT       # the folder of benchmarks/paced/run.py --out OUT

The share of the tokens that the engines could make is compared with ``explorer_scale.py``: the explorer's own
loop, pool, scheduler and routing on simulated engines, with their delays. With ``--paced`` the way ``fixed``
of real vLLM gives lengths and speeds, as `advise --job` takes them, and the other ways' seconds a step are
predicted from it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import explorer_scale as scale

from trinity_compat.advise.lengths import AnswerLengths, of_measured
from trinity_compat.advise.model import Schedule, Speeds, Workload
from trinity_compat.advise.simulate import simulate
from trinity_compat.run.advice import facts, measured

sys.path.append(str(Path(__file__).resolve().parent / "paced"))

TRAIN_SHARE = 0.3
STYLES = (
    ("fixed", 0, None),
    ("fixed", 1, None),
    ("fully_async", 1, None),
    ("fully_async", 0, 1),
    ("fully_async", 0, 2),
    ("fully_async", 0, 3),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One prediction beside what was measured: a share of full engines, or seconds a step."""

    style: str
    offset: int
    staleness: int | None
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted / self.measured - 1


def against_explorer(style: str, offset: int, staleness: int | None, *, engines: int) -> Row:
    """Return the share of full engines: of the explorer's code, and predicted."""
    case = scale.Case(engines, 1, 1.0, style, offset=offset, staleness=staleness)
    measured = scale.measure(case, TRAIN_SHARE, without=("bound", "old"))["utilisation"]
    slots = 256
    step_s, answer_s = 0.010, 0.02e-3
    rate = engines * slots / (step_s + answer_s * slots)
    lengths = AnswerLengths(scale.CAP, math.log(scale.MEAN) - 0.5, 1.0)
    work = Workload(case.batch, scale.N, 0.0, lengths)
    speeds = Speeds(step_s, answer_s, slots, training=rate / TRAIN_SHARE)
    schedule = Schedule("", engines, 1, 1, offset=offset, follows=style != "fixed", staleness=staleness)
    predicted = simulate(work, speeds, schedule, steps=case.steps - case.warm).engines_full
    return Row(style, offset, staleness, measured, round(predicted, 3))


def against_paced(out: Path) -> list[Row]:
    """Return the seconds a step of each finished way but ``fixed``, measured and predicted from ``fixed``."""
    import run as paced  # benchmarks/paced

    base = measured.read(out / "fixed" / "job")
    # Steps of one length, whatever is decoded, as the benchmark's engine makes them.
    unscaled = Speeds(0.0, 0.0, paced.PLACES, training=1.0, overhead_s=1.0)
    speeds = replace(facts.fitted_to(unscaled, base)[0], training=base.training)
    lengths = of_measured(base.answers, paced.LONGEST)
    work = Workload(paced.PROMPTS, base.spec.verl["actor_rollout_ref"]["rollout"]["n"], base.prompt, lengths)
    rows = []
    for way in paced.WAYS:
        folder = out / way
        if way == "fixed" or not (folder / "done.json").exists():
            continue
        schedule = Schedule("", 1, 1, 1)
        if (folder / "job").exists():
            schedule = facts.schedule_of(measured.read(folder / "job").spec)
        step_s = paced.row_of(way, folder, out / f"{way}-log", 0.0).step_s
        predicted = simulate(work, speeds, schedule, steps=40)
        rows.append(Row(way, schedule.offset, schedule.staleness, step_s, predicted.step_s))
    return rows


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--engines", type=int, default=8)
    options.add_argument("--json", action="store_true", help="one JSON object")
    options.add_argument("--paced", type=Path, help="folder of the paced benchmark's runs")
    args = options.parse_args()
    of_engines = [] if args.paced else [against_explorer(*style, engines=args.engines) for style in STYLES]
    rows = against_paced(args.paced) if args.paced else of_engines
    what = "s/step" if args.paced else "engines full, explorer's code"
    if args.json:
        print(json.dumps({"cases": [asdict(row) for row in rows]}))
        return
    print(f"| style | O | max_staleness | {what} | predicted | error |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows:
        limit = "–" if row.staleness is None else row.staleness
        print(
            f"| {row.style} | {row.offset} | {limit} | {row.measured:.2f} | {row.predicted:.2f} |"
            f" {row.error:+.0%} |"
        )


if __name__ == "__main__":
    main()
