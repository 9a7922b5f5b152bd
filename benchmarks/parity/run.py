"""The parity study: the toy launch on stock veRL and decoupled, several seeds each, compared.

    python benchmarks/parity/run.py --out DIR [--study grpo kl ppo distill] [--seeds 5] [--steps 20]
    python benchmarks/parity/run.py --out DIR --study grpo --ways stock offset1 --within 300
    python benchmarks/parity/run.py --out DIR --report        # the tables of what is finished

Seed k sets data.seed (both sides then draw the same tasks in the same order) and rollout.seed. Finished
runs are kept, so the command continues where it was stopped; seeds go round by round, so that what is
there is balanced. Runs lie in DIR/STUDY/WAY/seedK, with WAY.md and WAY.html (WAY against stock) beside
them; the short tables are printed. Words after -- go to the script.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import toy_runs
import toy_teacher
from toy_runs import OURS, WAYS
from toy_teacher import DISTILLED, TEACHER

from trinity_compat.compare.conclusion import headline
from trinity_compat.compare.html import as_html
from trinity_compat.compare.model import Side
from trinity_compat.compare.report import as_markdown
from trinity_compat.compare.verdict import CompareOptions, Comparison, MetricVerdict, compare

STOCK = "stock"


@dataclass(frozen=True, slots=True)
class Study:
    """One launch, run in several ways; ``words`` go to the script before the user's.

    ``stock``: more of them for stock veRL alone; ``teacher``: the key that names the toy's teacher.
    """

    script: str
    ways: tuple[str, ...]
    words: tuple[str, ...] = ()
    stock: tuple[str, ...] = ()
    teacher: str = ""


KL_LOSS = (
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=128",
)
# Its engines on a CPU: the teacher's cannot sleep there, and stands beside the policy's.
ON_A_CPU = (
    f"{TEACHER}.inference.free_cache_engine=False",
    f"+{TEACHER}.inference.enable_sleep_mode=False",
    "ray_kwargs.ray_init.num_gpus=2",
)
STUDIES = {
    "grpo": Study("run_toy_grpo.sh", (STOCK, *OURS)),
    "kl": Study("run_toy_grpo.sh", (STOCK, "offset0"), KL_LOSS),
    "ppo": Study("run_toy_ppo.sh", (STOCK, "offset0")),
    "distill": Study("run_toy_grpo.sh", (STOCK, "offset0"), DISTILLED, ON_A_CPU, f"{TEACHER}.model_path"),
}
CURVES = {"critic/score/mean": "mean reward", "actor/distillation/loss": "divergence from the teacher"}
SHOWN = (
    "critic/score/mean",
    "val-core/toy/sort/acc/mean@1",
    "response_length/mean",
    "actor/entropy",
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/kl_loss",
    "actor/distillation/loss",
    "critic/vf_loss",
    "critic/vf_explained_var",
    "critic/grad_norm",
    "critic/values/mean",
    "rollout_corr/kl",
    "rollout_corr/k3_kl",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_max",
)


def folder_of(args: argparse.Namespace, study: str, way: str, seed: int) -> Path:
    return Path(args.out / study / way / f"seed{seed}")


def ways_of(args: argparse.Namespace, study: str) -> list[str]:
    return [way for way in STUDIES[study].ways if not args.ways or way in args.ways]


def run_all(args: argparse.Namespace) -> None:
    """Every missing run, ``--jobs`` at a time; none is begun after ``--within`` seconds."""
    toy = toy_runs.make_toy((args.toy or args.out / "toy").absolute())
    if any(STUDIES[study].teacher for study in args.study):
        toy_teacher.make_teacher(toy)
    end = time.monotonic() + args.within if args.within else float("inf")

    def one(study: str, seed: int, way: str) -> None:
        if time.monotonic() < end:
            own = [*STUDIES[study].stock] if way in toy_runs.STOCK else []
            if key := STUDIES[study].teacher:
                own.append(f"{key}={toy / 'teacher'}")
            words = [*fixed_words(args, study), *toy_runs.seeded(seed), *own, *args.words]
            script = toy_runs.SCRIPT.with_name(STUDIES[study].script)
            done = toy_runs.run(way, folder_of(args, study, way, seed), toy, words, script=script)
            print(f"{study} {way} seed {seed}: {done.seconds:.0f} s", file=sys.stderr, flush=True)

    seeds = range(1, args.seeds + 1)
    turns = [(study, seed, way) for seed in seeds for study in args.study for way in ways_of(args, study)]
    with ThreadPoolExecutor(args.jobs) as pool:
        running = [pool.submit(one, *turn) for turn in turns]
        try:
            for turn in running:
                turn.result()
        except BaseException:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave anything behind
            pool.shutdown(wait=False, cancel_futures=True)
            toy_runs.stop_all()
            raise


def fixed_words(args: argparse.Namespace, study: str) -> list[str]:
    lengths = [f"trainer.{key}={args.steps}" for key in ("total_training_steps", "test_freq")]
    return [*lengths, "trainer.save_freq=-1", *STUDIES[study].words]


def sides_of(args: argparse.Namespace, study: str) -> dict[str, Side]:
    """The finished runs of each way that has any."""
    sides = {}
    for way in ways_of(args, study):
        folders = [folder_of(args, study, way, seed) for seed in range(1, args.seeds + 1)]
        runs = [toy_runs.metrics(folder) for folder in folders if (folder / "done.json").exists()]
        if runs:
            sides[way] = Side(way, runs)
    return sides


# -- what is printed -----------------------------------------------------------------------------------


def curve_table(sides: Sequence[Side], steps: int, name: str, title: str) -> None:
    """A metric by step: mean over seeds ± their standard deviation; nothing where no run has it."""
    at = sorted({1, *range(5, steps + 1, 5), steps})
    if not any(name in run.series for side in sides for run in side.runs):
        return
    print(f"\n| {title} at step | seeds | {' | '.join(map(str, at))} |\n|---{'|---:' * (len(at) + 1)}|")
    for one in sides:
        curves = [dict(toy_runs.series(run, name).points()) for run in one.runs]
        cells = [_spread([curve[step] for curve in curves]) for step in at]
        print(f"| {one.label} | {len(curves)} | {' | '.join(cells)} |")


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def verdict_table(comparison: Comparison) -> None:
    print(f"\n### {comparison.b.label} against {comparison.a.label}\n")
    for sentence in headline(comparison):
        print(f"- {sentence}")
    columns = "stock | ours | ours − stock | 95 % interval | p | q | g | same within | verdict"
    print(f"\n| metric (mean over steps) | {columns} |")
    print("|---|---:|---:|---:|---|---:|---:|---:|---:|---|")
    known = {metric.name: metric for metric in comparison.metrics}
    for name in SHOWN:
        if name in known:
            print(f"| {' | '.join(_cells(known[name]))} |")
    print(f"\nLogged by stock and not by ours: {', '.join(comparison.only_a) or 'nothing'}.")


def _cells(metric: MetricVerdict) -> list[str]:
    d = metric.difference
    levels = [f"{level.summary.level:.4g}" for level in (metric.a, metric.b)]
    p, q = ("" if value is None else f"{value:.2g}" for value in (d.p, d.q))
    interval = "–" if math.isnan(d.low) else f"{d.low:+.2g} … {d.high:+.2g}"
    effect = "–" if math.isnan(d.effect) else f"{d.effect:+.1f}"
    margin = f"±{metric.evidence.margin.size:.2g}"
    return [metric.name, *levels, f"{d.value:+.2g}", interval, p, q, effect, margin, metric.verdict]


def levels_table(sides: Sequence[Side], path: Path) -> None:
    """The level of each metric in each run, as CSV: what the verdicts are made from, small enough to keep."""
    rows = ["way,number,metric,points,level"]
    for side in sides:
        for number, run in enumerate(side.runs, 1):
            for name in sorted(run.series):
                values = toy_runs.series(run, name).values
                if values:
                    level = f"{statistics.fmean(values):.9g}"
                    rows.append(f"{side.label},{number},{name},{len(values)},{level}")
    path.write_text("\n".join(rows) + "\n")


def report(args: argparse.Namespace, study: str) -> None:
    sides = sides_of(args, study)
    print(f"\n## {study}")
    for name, title in CURVES.items():
        curve_table(list(sides.values()), args.steps, name, title)
    if sides:
        levels_table(list(sides.values()), args.out / study / "levels.csv")
    for way in sides:
        if way != STOCK and STOCK in sides:
            comparison = compare(sides[STOCK], sides[way], CompareOptions(paired=args.paired))
            (args.out / study / f"{way}.md").write_text(as_markdown(comparison))
            (args.out / study / f"{way}.html").write_text(as_html(comparison))
            verdict_table(comparison)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="one folder per study, way and seed")
    add("--toy", type=Path, help="model and data (default: made in --out)")
    add("--study", nargs="+", choices=STUDIES, default=list(STUDIES))
    add("--ways", nargs="+", choices=WAYS, help="only these of a study's ways")
    add("--seeds", type=int, default=5)
    add("--steps", type=int, default=20, help="veRL steps of each run")
    add("--jobs", type=int, default=1, help="runs at a time; above 1 their times mean nothing")
    add("--within", type=float, metavar="SECONDS", help="begin no run after these; call again to go on")
    add("--report", action="store_true", help="run nothing: tables of what is finished")
    add("--paired", action="store_true", help="the k-th seeds of two ways are a pair")
    add("words", nargs="*")
    args = parser.parse_args()
    args.out = args.out.absolute()
    return args


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that run_all ends what it has begun
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {args.steps} steps")
    try:
        if not args.report:
            run_all(args)
        for study in args.study:
            report(args, study)
    except KeyboardInterrupt:
        print("stopped; the same command goes on with the runs that are missing", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
