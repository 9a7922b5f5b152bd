"""Record what a finished run logged, as veRL's file logger would have: one JSON line a step.

    python benchmarks/parity/record.py --toy DIR --out DIR [--script SCRIPT] --to tests/parity/recorded/grpo

Runs three steps with validation and a checkpoint on stock veRL and decoupled, and writes PREFIX-stock.jsonl,
PREFIX-ours.jsonl, values rounded to six digits. ``--names FILE`` freezes the names that stock logs.
``--ways stock_v1`` records PREFIX-stock_v1.jsonl alone: veRL's v1 trainer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import toy_runs

from trinity_compat.compare.model import RunMetrics

STEPS = 3
NAMES = {"stock": "stock", "offset0": "ours", "stock_v1": "stock_v1"}
WORDS = [f"trainer.{key}={STEPS}" for key in ("total_training_steps", "test_freq", "save_freq")]


def lines(run: RunMetrics) -> list[str]:
    by_step: dict[int, dict[str, float]] = {}
    for name in sorted(run.series):
        for step, value in toy_runs.series(run, name).points():
            by_step.setdefault(step, {})[name] = float(f"{value:.6g}")
    return [json.dumps({"step": step, "data": by_step[step]}) for step in sorted(by_step)]


def write(path: Path, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text("\n".join(rows) + "\n")
    part.replace(path)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--toy", type=Path, required=True, help="model and data (made when missing)")
    parser.add_argument("--out", type=Path, required=True, help="the runs' folders; finished ones are kept")
    parser.add_argument("--to", required=True, metavar="PREFIX")
    parser.add_argument("--names", type=Path)
    parser.add_argument("--script", type=Path, default=toy_runs.SCRIPT)
    parser.add_argument("--ways", nargs="+", choices=NAMES, default=["stock", "offset0"])
    args = parser.parse_args()
    out, toy = args.out.absolute(), toy_runs.make_toy(args.toy.absolute())
    for way, name in ((way, NAMES[way]) for way in args.ways):
        toy_runs.run(way, out / name, toy, WORDS, script=args.script.absolute())
        run = toy_runs.metrics(out / name)
        write(Path(f"{args.to}-{name}.jsonl"), lines(run))
        if way in toy_runs.STOCK and args.names:
            write(args.names, sorted(run.series))


if __name__ == "__main__":
    main()
