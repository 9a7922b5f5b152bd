"""The parity study: the toy launch on stock veRL and decoupled, several seeds each, compared.

    python benchmarks/parity/run.py --out DIR [--seeds 5] [--steps 25] [--ways stock offset0 offset1]
    python benchmarks/parity/run.py --out DIR --script examples/verl_scripts/run_toy_ppo.sh

Seed k sets data.seed (both sides then draw the same tasks in the same order) and rollout.seed. Finished
runs are kept, so the command continues where it was stopped; seeds go round by round, so that what is
there is balanced. Writes DIR/WAY.md and DIR/WAY.html (WAY against stock) and prints the short tables.
Words after -- go to the script.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import toy_runs
from toy_runs import WAYS

from trinity_compat.compare.html import as_html
from trinity_compat.compare.model import Side
from trinity_compat.compare.report import as_markdown
from trinity_compat.compare.verdict import Comparison, MetricVerdict, Options, compare, headline

STOCK = "stock"
SHOWN = (
    "critic/score/mean",
    "val-core/toy/sort/acc/mean@1",
    "response_length/mean",
    "actor/entropy",
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "critic/vf_loss",
    "rollout_corr/kl",
    "rollout_corr/k3_kl",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_max",
)


def folder_of(out: Path, way: str, seed: int) -> Path:
    return out / way / f"seed{seed}"


def run_all(args: argparse.Namespace) -> None:
    toy = toy_runs.make_toy((args.toy or args.out / "toy").absolute())
    fixed = [f"trainer.total_training_steps={args.steps}", f"trainer.test_freq={args.steps}"]

    def one(seed: int, way: str) -> None:
        words = [*fixed, "trainer.save_freq=-1", *toy_runs.seeded(seed), *args.words]
        done = toy_runs.run(way, folder_of(args.out, way, seed), toy, words, script=args.script)
        print(f"{way} seed {seed}: {done.seconds:.0f} s", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        turns = [pool.submit(one, seed, way) for seed in range(1, args.seeds + 1) for way in args.ways]
        try:
            for turn in turns:
                turn.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            toy_runs.stop_all()
            raise


def side(args: argparse.Namespace, way: str) -> Side:
    folders = [folder_of(args.out, way, seed) for seed in range(1, args.seeds + 1)]
    return Side(way, [toy_runs.metrics(folder) for folder in folders])


# -- what is printed -----------------------------------------------------------------------------------


def score_table(sides: Sequence[Side], steps: int) -> None:
    """Mean reward by step: mean over seeds ± their standard deviation."""
    at = sorted({1, *range(5, steps + 1, 5), steps})
    print(f"\n| mean reward at step | {' | '.join(map(str, at))} |\n|---{'|---:' * len(at)}|")
    for one in sides:
        curves = [dict(toy_runs.series(run, "critic/score/mean").points()) for run in one.runs]
        cells = [_spread([curve[step] for curve in curves]) for step in at]
        print(f"| {one.label} | {' | '.join(cells)} |")


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def verdict_table(comparison: Comparison) -> None:
    print(f"\n### {comparison.b.label} against {comparison.a.label}\n")
    for sentence in headline(comparison):
        print(f"- {sentence}")
    print("\n| metric (mean over steps) | stock | ours | ours − stock | 95 % interval | p | g | verdict |")
    print("|---|---:|---:|---:|---|---:|---:|---|")
    known = {metric.name: metric for metric in comparison.metrics}
    for name in SHOWN:
        if name in known:
            print(f"| {' | '.join(_cells(known[name]))} |")
    print(f"\nLogged by stock and not by ours: {', '.join(comparison.only_a) or 'nothing'}.")


def _cells(metric: MetricVerdict) -> list[str]:
    d = metric.difference
    levels = [f"{level.summary.level:.4g}" for level in (metric.a, metric.b)]
    p = "" if d.p is None else f"{d.p:.2f}"
    interval = f"{d.low:+.2g} … {d.high:+.2g}"
    return [metric.name, *levels, f"{d.value:+.2g}", interval, p, f"{d.effect:+.1f}", metric.verdict]


def report(args: argparse.Namespace) -> None:
    sides = {way: side(args, way) for way in args.ways}
    score_table(list(sides.values()), args.steps)
    for way in args.ways:
        if way != STOCK and STOCK in sides:
            comparison = compare(sides[STOCK], sides[way], Options(paired=args.paired))
            (args.out / f"{way}.md").write_text(as_markdown(comparison))
            (args.out / f"{way}.html").write_text(as_html(comparison))
            verdict_table(comparison)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="one folder per way and seed")
    parser.add_argument("--toy", type=Path, help="model and data (default: made in --out)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=25, help="veRL steps of each run")
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at a time; above 1 their times mean nothing"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[STOCK, "offset0", "offset1"])
    parser.add_argument("--script", type=Path, default=toy_runs.SCRIPT)
    parser.add_argument("--paired", action="store_true", help="sign flips: needs 6 seeds to ever reach 5 %%")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    args.out, args.script = args.out.absolute(), args.script.absolute()
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {args.seeds} seeds, {args.steps} steps")
    run_all(args)
    report(args)


if __name__ == "__main__":
    main()
