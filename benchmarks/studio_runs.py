"""Time the list of runs over many jobs: the first page of a studio that has just been started, and a refresh.

    python benchmarks/studio_runs.py [--jobs 1000] [--out DIR]

Makes (once) that many finished jobs, each with a whole veRL configuration, ``--steps`` steps of 60 metrics,
and a reward and learning rate of its own. Times the list in this process, by the clock and by the processor:
in a new studio without the index of runs, in a new studio with it, and again in the same studio, as an open
page asks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from starlette.testclient import TestClient

from trinity_compat.buffer import open_buffer
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.studio.app import create_app
from trinity_compat.studio.guard import Listener
from trinity_compat.verl_config.pinned import compose_pinned

LR = "actor_rollout_ref.actor.optim.lr"
QUERIES = {
    "latest first": "/",
    "by reward": "/?sort=reward",
    "state done": "/?state=done",
    "by learning rate": f"/?sort={LR}",
    "in groups by it": f"/?group={LR}",
}


def make(root: Path, count: int, steps: int) -> None:
    """The jobs in ten folders; their databases are copies of ten."""
    draw = random.Random(0)
    verl = compose_pinned({"trainer.total_training_steps": steps})
    for number in range(count):
        job = root / f"sweep{number % 10}" / f"run{number:04d}"
        for name in ("config", "buffer", "log"):
            (job / name).mkdir(parents=True)
        url = f"sqlite:///{job}/buffer/experiences.db"
        verl["actor_rollout_ref"]["actor"]["optim"]["lr"] = draw.choice((1e-6, 2e-6, 5e-6)) * (
            1 + number / count
        )
        RunSpec(str(job), url, verl, 1, steps, SyncSpec()).save(job / "config" / "run.json")
        first = root / f"sweep{number % 10}" / f"run{number % 10:04d}" / "buffer" / "experiences.db"
        if number >= 10:
            shutil.copy(first, job / "buffer")
            continue
        buffer = open_buffer(url)
        for step in range(1, steps + 1):
            row = {f"metric/{n}": draw.random() for n in range(56)}
            row |= {"critic/score/mean": draw.random() + step / steps, "timing_s/step": 4.0}
            row |= {"perf/tokens_per_second": 1000.0, "training/model_version_lag/mean": 1.0}
            buffer.log_metrics("trainer", step, row)
        for role in ("trainer", "explorer"):
            buffer.beat(role, role, state="done")
        buffer.close()


def started(root: Path) -> TestClient:
    listener = Listener("127.0.0.1", 8080)
    client = TestClient(create_app(root, listener), base_url="http://127.0.0.1:8080")
    client.cookies.set(listener.cookie, listener.ticket)
    return client


def ask(client: TestClient, name: str, path: str) -> str:
    begin, busy = time.perf_counter(), time.process_time()
    answer = client.get(path)
    took, busy = time.perf_counter() - begin, time.process_time() - busy
    assert answer.status_code in (200, 204), answer.text
    size = f"{len(answer.content) / 1024:6.1f} KiB"
    print(f"{name:36} {took:6.3f} s   CPU {busy:6.3f} s   {size}", flush=True)
    return answer.text


def look(client: TestClient, name: str, path: str) -> None:
    page = ask(client, f"with the index, {name}", path)
    has = ",".join(re.findall(r'data-mark="(\w+)"', page))
    ask(client, "  the next look", f"{path}{'&' if '?' in path else '?'}table=1&has={has}")


def alone(work: Callable[..., object], root: Path, *given: str) -> None:
    """Run ``work`` with a new studio in a process of its own, which ends with it."""
    process = multiprocessing.get_context("fork").Process(target=lambda: work(started(root), *given))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)


def until_read(client: TestClient) -> None:
    """Wait until the studio's thread has read every job."""
    begin, busy = time.perf_counter(), time.process_time()
    while "still being read" in client.get("/?sort=reward").text:
        time.sleep(1)
    took, busy = time.perf_counter() - begin, time.process_time() - busy
    print(f"{'until all are read':36} {took:6.1f} s   CPU {busy:6.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path(".scratch/studio_runs"))
    given = parser.parse_args()
    root = given.out.absolute() / f"{given.jobs}-{given.steps}"
    if not root.exists():
        make(root, given.jobs, given.steps)
    cache = given.out.absolute() / "cache"
    os.environ["XDG_CACHE_HOME"] = str(cache)
    started(root).get("/?words=none")  # modules and templates are loaded
    for name, path in QUERIES.items():
        shutil.rmtree(cache, ignore_errors=True)
        alone(ask, root, f"no index, {name}", path)
    alone(until_read, root)
    for name, path in QUERIES.items():
        alone(look, root, name, path)
    size = sum(path.stat().st_size for path in cache.rglob("*.db"))
    print(f"index: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
