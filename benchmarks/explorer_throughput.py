"""Measure the tokens a second that one explorer process takes from its engines to the buffer.

    python benchmarks/explorer_throughput.py [--before COMMIT] [--pairs 5] [--steps 8] [--tokens 4096]

Its own loop, group builder, tokenizer and SQLite file; the engines are stand-ins that hand over finished
answers, which an engine's process has made of vLLM's output and pickled as Ray brings them, and the scorer is
one that gives 1. So the time is what the explorer spends, and no engine. ``--before`` measures a worktree of
that commit too, in turns, and prints the ratio of the medians, of the wall time and of this process's CPU
time; both have to store the same rows.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GROUPS, N = 32, 8  # of a step


class Workers:
    """Engines whose answers, of ``tokens`` tokens, are there at once."""

    def __init__(self, tokens: int) -> None:
        from trinity_compat.explorer.engine.trajectory import RolloutResult
        from trinity_compat.explorer.engine.vllm import completions
        from trinity_compat.explorer.rollout.worker import _trajectory

        flat = SimpleNamespace(logprobs=[-0.5] * tokens, start_indices=range(tokens))
        ids = [5 + place * 7 % 250 for place in range(tokens)]
        answers = [
            SimpleNamespace(index=run, token_ids=ids, logprobs=flat, finish_reason="stop") for run in range(N)
        ]
        parts = completions(SimpleNamespace(prompt_logprobs=None, outputs=answers))
        # Each answer is an object of its own, as those that Ray brings.
        made = [_trajectory([*range(20, 148)], part, (0, 0)) for part in parts]
        self._packed = pickle.dumps(made, protocol=5)
        self._made = RolloutResult

    async def run(self, jobs: Sequence[Any]) -> AsyncIterator[Any]:
        for job in jobs:
            parts = pickle.loads(self._packed)  # noqa: S301 its own
            yield self._made(job.task_no, tuple(parts))
            await asyncio.sleep(0)

    async def load(self, version: object) -> None:
        pass

    def room(self) -> int:
        return 4 * GROUPS * N


class Scorer:
    async def group(self, task: object, parts: Sequence[object]) -> list[Any]:
        from trinity_compat.explorer.rewards.scoring import Score

        return [Score(1.0, {}) for _ in parts]


def once(toy: Path, steps: int, tokens: int) -> dict[str, Any]:
    """Explore the steps; tokens a second and a digest of the rows."""
    sys.path[:0] = [str(ROOT / "tests" / "explorer")]
    from explorer_job import job, publish
    from omegaconf import OmegaConf

    from trinity_compat.buffer import open_buffer
    from trinity_compat.explorer.data.tasks import eval_stream, train_stream
    from trinity_compat.explorer.heartbeat import Heartbeat
    from trinity_compat.explorer.scheduling.group_builder import GroupBuilder
    from trinity_compat.explorer.scheduling.loop import Explorer
    from trinity_compat.explorer.scheduling.report import StepReporter
    from trinity_compat.explorer.scheduling.scheduler import Scheduler
    from trinity_compat.job.run_spec import SyncSpec
    from trinity_compat.run.toy import make_tokenizer

    with tempfile.TemporaryDirectory(dir=toy.parent) as folder:
        sizes = (f"data.train_batch_size={GROUPS}", f"actor_rollout_ref.rollout.n={N}")
        sync = SyncSpec(style="trainer_driven", offset=steps, directory=f"{folder}/weights")
        words = (*sizes, "actor_rollout_ref.actor.ppo_mini_batch_size=16")
        spec, buffer = job(Path(folder, "job"), toy, *words, steps=steps, sync=sync)
        publish(spec, buffer, toy, 0)
        config, tokenizer = OmegaConf.create(spec.verl), make_tokenizer()
        streams = train_stream(config, tokenizer, None), eval_stream(config, tokenizer, None)
        builder = GroupBuilder(Workers(tokens), Scorer(), tokenizer)  # type: ignore[arg-type]
        heart = Heartbeat(lambda: open_buffer(spec.database_url), "explorer")
        explorer = Explorer(
            buffer, Scheduler(spec, buffer, *streams), builder, StepReporter(buffer, "explorer"), heart
        )
        cpu_s = time.process_time()
        seconds = asyncio.run(_explore(explorer, buffer, steps * GROUPS))
        cpu_s = time.process_time() - cpu_s
        digest = hashlib.sha256()
        for group in sorted(buffer.groups("train"), key=lambda group: group.task_no):
            for each in group.experiences:
                digest.update(f"{group.key} {each.prompt_text} {each.response_text}".encode())
                digest.update(each.response_ids.tobytes() + each.logprobs.tobytes())
        made = steps * GROUPS * N * tokens
        return {"tokens_per_s": made / seconds, "cpu_ns": cpu_s / made * 1e9, "rows": digest.hexdigest()}


async def _explore(explorer: Any, buffer: Any, groups: int) -> float:
    began, exploring = time.monotonic(), asyncio.ensure_future(explorer.explore())
    while buffer.depth()["ready"] < groups:
        if exploring.done():
            exploring.result()
        await asyncio.sleep(0.05)
    took = time.monotonic() - began
    exploring.cancel()
    return took


def measured(package: Path, args: argparse.Namespace, toy: Path) -> dict[str, Any]:
    """One process of this file over the package below ``package``."""
    command = [
        sys.executable,
        __file__,
        "--once",
        str(toy),
        f"--steps={args.steps}",
        f"--tokens={args.tokens}",
    ]
    env = {**os.environ, "PYTHONPATH": str(package)}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(json.dumps(once(args.once, args.steps, args.tokens)))
        return
    with tempfile.TemporaryDirectory() as folder:
        toy = Path(folder, "toy")
        make = "from trinity_compat.run.toy import *; make_toy({}, ToySpec(train_rows=1024, warm_steps=1))"
        subprocess.run(
            [sys.executable, "-c", f"import pathlib; {make.format(f'pathlib.Path({str(toy)!r})')}"],
            check=True,
        )
        compare(args, toy, Path(folder, "before"))


def compare(args: argparse.Namespace, toy: Path, tree: Path) -> None:
    """Measure in turns, and print the medians."""
    trees = {"now": ROOT}
    if args.before:
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "-q", "--detach", tree, args.before], check=True
        )
        trees["before"] = tree
    try:
        found = {name: [] for name in trees}
        for _ in range(args.pairs):
            for name, package in trees.items():
                found[name].append(measured(package, args, toy))
    finally:
        if args.before:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)
    speed, cpu = (
        {name: statistics.median(one[what] for one in each) for name, each in found.items()}
        for what in ("tokens_per_s", "cpu_ns")
    )
    for name, runs in found.items():
        rate = f"{speed[name] / 1e6:.2f} million tokens/s"
        print(f"{name}: {rate}, {cpu[name]:.0f} ns of CPU a token ({len(runs)} runs)")
    if args.before:
        same = len({one["rows"] for each in found.values() for one in each}) == 1
        ratios = f"ratio {speed['now'] / speed['before']:.2f}, of CPU {cpu['before'] / cpu['now']:.2f}"
        print(f"{ratios}, rows {'equal' if same else 'DIFFER'}")
        sys.exit(not same)


if __name__ == "__main__":
    main()
