"""The kill matrix at job level: SIGKILL at named points and at random, the same command again, SQL.

    python benchmarks/chaos/run.py --out DIR [--kills 40] [--postgres 10] [--seeds 5] [--steps 12]

Each job is the toy script under ``trinity-compat run``; it is killed up to six times, each time given the
same command again, and once more under ``--restarts 1``, which brings it to its end. First ``--seeds`` jobs
run undisturbed, over SQLite: the final reward of the others must lie in their 95 % interval (of prediction:
one more run). ``--undisturbed DIR`` takes those of the parity study instead
(``.scratch/parity/grpo/offset0``: same toy, command and seeds).
``--faults [NAME …]`` runs the faults of ``faults.py`` instead, one job for each whose name has one of the
words.

Finished jobs are one line each in DIR/outcomes.jsonl and are not repeated; ``--within`` bounds the seconds of
this time. Prints the tables; exits with 1 when anything was lost, doubled or broken.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import checks
import faults
from job import ROOT, Job, Strike, Stuck

sys.path.append(str(ROOT / "tests" / "buffer"))
from buffer_postgres import PostgresServer

POINTS = (
    *("inside insert", "after insert", "inside claim", "after claim", "after step"),
    *("inside ledger", "after ledger", "before checkpoint", "inside checkpoint", "after checkpoint"),
    *("inside weights", "after weights", "after publish", "inside resume"),
)
VICTIMS = ("explorer", "trainer", "engine", "worker", "command", "job")
PER_JOB = {"sqlite": 6, "postgresql": 3}
# The last kill of each job, in turn: under --restarts 1, which starts the victim again.
AGAIN = (
    *(("self", "inside ledger"), ("trainer", ""), ("self", "inside checkpoint"), ("worker", "")),
    *(("self", "after publish"), ("explorer", ""), ("self", "inside weights"), ("self", "after checkpoint")),
    *(("self", "after claim"), ("engine", ""), ("self", "inside insert"), ("self", "inside resume")),
)
# What may be stopped (SIGSTOP) in place of being killed. The last one of a job in turn, too.
STOPPED = ("engine", "worker", "explorer", "trainer")
running: set[Job] = set()
# 0.975 quantiles of Student's t by degrees of freedom.
T = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def strikes(count: int, rng: random.Random, *, restarts: int) -> list[Strike]:
    """Every point with its own process and with the whole job, every victim at random; then again."""
    out: list[Strike] = []
    while len(out) < count:
        named = [Strike(victim, name, _passing(name, rng)) for name in POINTS for victim in ("self", "job")]
        loose = [Strike(victim, after=rng.uniform(2, 40)) for victim in VICTIMS for _ in range(2)]
        both = named + loose
        rng.shuffle(both)
        out += both
    return [Strike(s.victim, s.point, s.count, s.after, restarts) for s in out[:count]]


def _passing(name: str, rng: random.Random) -> int:
    """At which passing to strike: a start that is killed has a few steps before it."""
    return 1 if "resume" in name else rng.randint(1, 2 if "checkpoint" in name else 4)


def plan(args: argparse.Namespace) -> Iterator[tuple[str, str, int, list[Strike]]]:
    """(name, backend, seed, strikes) of each job, in order."""
    for seed in range(1, args.seeds + 1) if args.undisturbed is None else ():
        yield f"undisturbed-{seed}", "sqlite", seed, []
    for backend, kills, restarts in (("sqlite", args.kills, 0), ("postgresql", args.postgres, 2)):
        rng = random.Random(backend)
        todo = strikes(kills, rng, restarts=restarts)
        for number, place in enumerate(range(0, kills, max(1, kills // max(1, args.stops)))):
            if number < args.stops:
                todo[place] = Strike(
                    STOPPED[number % len(STOPPED)], after=rng.uniform(20, 40), restarts=restarts, stops=True
                )
        size = PER_JOB[backend]
        for number, first in enumerate(range(0, kills, size)):
            seed = number % args.seeds + 1
            mine = sorted(todo[first : first + size], key=lambda strike: "resume" in strike.point)
            victim, point = AGAIN[number % len(AGAIN)]
            stops = bool(args.stops) and victim in STOPPED
            after = 0 if point else rng.uniform(20, 40)
            mine.append(Strike(victim, point, after=after, again=True, stops=stops))
            yield f"{backend}-{number + 1}", backend, seed, mine  # a job that never ran resumes nothing


def run_job(args: argparse.Namespace, name: str, backend: str, seed: int, todo: list[Strike]) -> dict:
    folder = args.out / name
    if backend == "postgresql" or not todo:  # an ended one's server is gone; to go on would be a disturbance
        shutil.rmtree(folder, ignore_errors=True)
    server = PostgresServer() if backend == "postgresql" else None
    words = [f"trainer.total_training_steps={args.steps}", "trainer.save_freq=2", "trainer.test_freq=6"]
    words += ["trainer.val_before_train=False", "trainer.max_actor_ckpt_to_keep=1"]
    words += [f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}"]
    rng = random.Random(name)
    job = Job(
        folder, args.toy, tuple(words), args.steps, rng, server, server.new_database("job") if server else ""
    )
    outcome = {"name": name, "backend": backend, "seed": seed, "asked": len(todo)}
    running.add(job)
    try:
        report = job.run(todo)
        shutil.rmtree(job.root, ignore_errors=True)
        return outcome | asdict(report) | {"clean": report.found.clean and not report.left}
    except Stuck as error:
        return outcome | {"stuck": str(error), "clean": False}
    finally:
        running.discard(job)
        job.end()
        if server:
            server.close()


def run_all(args: argparse.Namespace) -> None:
    """The jobs that are not done, in order. Ended early, it takes its jobs with it."""
    done = {outcome["name"] for outcome in outcomes(args)}
    deadline = time.monotonic() + args.within

    def one(item: tuple[str, str, int, list[Strike]]) -> None:
        if time.monotonic() < deadline:
            outcome = run_job(args, *item)
            if not stopped.is_set():  # else it was ended, not finished
                keep(args, outcome)

    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with ThreadPoolExecutor(args.parallel) as pool:
        turns = [pool.submit(one, item) for item in plan(args) if item[0] not in done]
        try:
            for turn in turns:
                turn.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for job in list(running):
                job.end()
            raise


def keep(args: argparse.Namespace, outcome: dict) -> None:
    with (args.out / "outcomes.jsonl").open("a") as file:
        file.write(json.dumps(outcome) + "\n")
    told = "clean" if outcome["clean"] else f"NOT CLEAN: {outcome.get('stuck') or outcome.get('found')}"
    print(f"{outcome['name']}: {len(outcome.get('kills', []))} kills, {told}", file=sys.stderr, flush=True)


def outcomes(args: argparse.Namespace) -> list[dict]:
    file = args.out / "outcomes.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# -- the tables -----------------------------------------------------------------------------------------


def interval(values: list[float]) -> tuple[float, float]:
    """Interval in which one more undisturbed run falls with 95 %, by Student's t."""
    mean, count = statistics.fmean(values), len(values)
    half = T[count - 1] * statistics.stdev(values) * (1 + 1 / count) ** 0.5
    return mean - half, mean + half


def elsewhere(args: argparse.Namespace) -> list[dict]:
    """The undisturbed runs of the parity study, as far as the jobs here go."""
    calm = []
    for seed in range(1, args.seeds + 1):
        file = args.undisturbed / f"seed{seed}" / "job" / "buffer" / "experiences.db"
        curve = checks.curve(f"sqlite:///{file}")[: args.steps]
        reward = statistics.fmean(curve[-checks.LAST_STEPS :])
        calm.append({"seed": seed, "found": {"reward": reward, "curve": curve}})
    return calm


def report(args: argparse.Namespace, found: list[dict]) -> bool:
    calm = [outcome for outcome in found if not outcome["asked"]]
    hit = [outcome for outcome in found if outcome["asked"]]
    for outcome in found:
        if not outcome["clean"]:
            print(f"NOT CLEAN: {outcome['name']}: {outcome.get('stuck') or outcome['found']}")
    hit = [outcome for outcome in hit if "found" in outcome]
    calm = elsewhere(args) if args.undisturbed else calm
    bounds = interval([outcome["found"]["reward"] for outcome in calm]) if len(calm) > 1 else (0.0, 1.0)
    matrix([kill for outcome in hit for kill in outcome["kills"]])
    totals(hit, calm, bounds)
    return all(outcome["clean"] for outcome in found)


def matrix(kills: list[dict]) -> None:
    """Kills by point and victim."""
    shown = ("self", *VICTIMS)
    counts = Counter((kill["point"] or "at random", kill["victim"]) for kill in kills)
    print(f"\n| kills | {' | '.join(shown)} |\n|---|{'---:|' * len(shown)}")
    for name in (*POINTS, "at random"):
        print(f"| {name} | {' | '.join(str(counts[name, victim] or '') for victim in shown)} |")


def totals(hit: list[dict], calm: list[dict], bounds: tuple[float, float]) -> None:
    heads = ["", "jobs", "kills", "named", "restarts (SIGKILL)", "starts", "lost", "twice", "broken"]
    heads += ["started again", "steps 1…n", "left over", "reward", "inside", "equal"]
    print(f"\n| {' | '.join(heads)} |\n|---|{'---:|' * 14}")
    curves = {outcome["seed"]: outcome["found"]["curve"] for outcome in calm if "found" in outcome}
    for backend in ("sqlite", "postgresql"):
        jobs = [outcome for outcome in hit if outcome["backend"] == backend]
        if jobs:
            print(row(backend, jobs, bounds, curves))
    stops = [kill for outcome in hit for kill in outcome["kills"] if kill.get("named_after_s")]
    for victim in STOPPED:
        took = [kill["named_after_s"] for kill in stops if kill["victim"] == victim]
        if took:
            print(f"{victim}: stopped {len(took)} times, named after {min(took)} … {max(took)} s")
    print(
        f"\nFinal reward of {len(calm)} undisturbed seeds: 95 % interval {bounds[0]:.3f} … {bounds[1]:.3f}."
    )


def row(backend: str, jobs: list[dict], bounds: tuple[float, float], curves: dict[int, list[float]]) -> str:
    found = [job["found"] for job in jobs]
    kills = [kill for job in jobs for kill in job["kills"]]
    rewards = [one["reward"] for one in found]
    cells = [backend, len(jobs), len(kills), sum(bool(kill["point"]) for kill in kills)]
    restarts = [how for job in jobs for how in job["restarts"]]
    cells += [f"{len(restarts)} ({restarts.count('SIGKILL')})", sum(job["starts"] for job in jobs)]
    cells += [sum(one[name] for one in found) for name in ("lost", "twice", "broken")]
    cells.append(sum(bool(kill.get("again")) for kill in kills))
    cells += [f"{sum(one['contiguous'] for one in found)} of {len(jobs)}", sum(job["left"] for job in jobs)]
    cells.append(f"{min(rewards):.3f} … {max(rewards):.3f}")
    cells.append(f"{sum(bounds[0] <= reward <= bounds[1] for reward in rewards)} of {len(jobs)}")
    cells.append(f"{sum(curves.get(job['seed']) == job['found']['curve'] for job in jobs)} of {len(jobs)}")
    return f"| {' | '.join(map(str, cells))} |"


def run_faults(args: argparse.Namespace) -> bool:
    """One job after the other, each a line in DIR/faults.jsonl; then the table."""
    rows = []
    for fault in faults.chosen(args.faults):
        rows.append(faults.under(fault, args.out, args.toy))
        print(rows[-1], file=sys.stderr, flush=True)
        with (args.out / "faults.jsonl").open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(faults.table(rows)))
    return all(row["clean"] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--toy", type=Path, help="model and data (default: made in --out)")
    parser.add_argument("--kills", type=int, default=40, help="over SQLite")
    parser.add_argument("--stops", type=int, default=4, help="of them by SIGSTOP, for each database")
    parser.add_argument("--postgres", type=int, default=10, help="over PostgreSQL, its server restarted too")
    parser.add_argument("--seeds", type=int, default=5, help="undisturbed jobs")
    parser.add_argument("--undisturbed", type=Path, metavar="DIR", help="seed1, seed2, … of the parity study")
    parser.add_argument("--steps", type=int, default=12, help="veRL steps of each job")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds in which a job may begin")
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time")
    parser.add_argument("--faults", nargs="*", metavar="NAME", help="a job for each of these faults instead")
    args = parser.parse_args()
    args.out = args.out.absolute()
    args.out.mkdir(parents=True, exist_ok=True)
    args.toy = (args.toy or args.out / "toy").absolute()
    toy = [Path(sys.executable).parent / "trinity-compat", "toy", args.toy]
    subprocess.run(toy, check=True, stdout=subprocess.DEVNULL)
    if args.faults is not None:
        sys.exit(0 if run_faults(args) else 1)
    run_all(args)
    sys.exit(0 if report(args, outcomes(args)) else 1)


if __name__ == "__main__":
    main()
