"""From finished to claimable: how long a group is on its way into the database while many explorers write.

    python benchmarks/store_load.py [--writers 64] [--rates 32 64 128 256 512] [--seconds 10]
        [--databases sqlite postgresql] [--json]

Real time, real databases. Each writer is a process with its own connection, as an explorer is: groups of 8
answers (512 prompt and 4096 response tokens with log-probs, 16 KB of text) finish at random times (gaps as of
a Poisson process) and are stored as the explorer does it: what has finished shares a transaction with what
finishes in the next 200 ms, 64 groups at most. Beside them a trainer claims 32 groups at a time and marks
them trained. A rate is answers a second, all writers together; a group's way is from its end to its commit,
after which a claim finds it. A database that falls behind (less stored than 90 % of what finished) has met
its limit: higher rates are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "buffer"))
from buffer_postgres import PostgresServer, Unavailable  # noqa: E402
from realistic_rows import answers  # noqa: E402

from trinity_compat.buffer import open_buffer  # noqa: E402
from trinity_compat.buffer.model import Experience, Group  # noqa: E402

PROMPT, RESPONSE, GROUP, CLAIM = 512, 4096, 8, 32
LINGER_S, BATCH = 0.2, 64  # as explorer/scheduling/commit_queue.py
TASK = {
    "index": 1,
    "raw_prompt": [{"role": "user", "content": "q" * 2000}],
    "reward_model": {"ground_truth": "4"},
}


def experiences() -> tuple[Experience, ...]:
    rng = np.random.default_rng(0)
    return answers(rng, count=GROUP, prompt=PROMPT, response=RESPONSE, prompt_text="p" * 2000)


def write(url: str, number: int, rate: float, seconds: float, barrier, results) -> None:
    """``rate``: groups a second. Answers with each stored group's seconds, and how many finished."""
    buffer, made, random_ = open_buffer(url), experiences(), random.Random(number)
    ways, count = [], 0
    barrier.wait()
    start = time.monotonic()
    due = start + random_.expovariate(rate)
    waiting: list[tuple[float, Group]] = []
    while (now := time.monotonic()) < start + seconds:
        while due <= now:
            task = number * 1_000_000 + count
            waiting.append((due, Group(str(task), task, TASK, 1, made)))
            count, due = count + 1, due + random_.expovariate(rate)
        if waiting and (now - waiting[0][0] >= LINGER_S or len(waiting) >= BATCH):
            going, waiting = waiting[:BATCH], waiting[BATCH:]
            buffer.put_groups([group for _, group in going])
            stored = time.monotonic()
            ways += [stored - finished for finished, _ in going]
        else:
            time.sleep(min(0.02, max(0.0, due - now)))
    while due < start + seconds:  # finished while the last ones were being stored
        count, due = count + 1, due + random_.expovariate(rate)
    buffer.close()
    results.put((ways, count))


def train(url: str, seconds: float, barrier, results) -> None:
    """Answers with the seconds that each claim took, and how many groups were trained."""
    buffer, claims, step = open_buffer(url), [], 0
    barrier.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        claim = buffer.claim_groups(CLAIM, owner="t", step=step + 1)
        if claim is None:
            time.sleep(0.05)
            continue
        claims.append(time.monotonic() - began)
        step += 1
        buffer.mark_trained(claim, step=step)
    buffer.close()
    results.put((claims, step * CLAIM))


def case(name: str, url: str, writers: int, rate: float, seconds: float) -> dict[str, object]:
    open_buffer(url).close()
    context = get_context("fork")
    barrier, results, trained = context.Barrier(writers + 1), context.Queue(), context.Queue()
    each = rate / GROUP / writers
    crew = [
        context.Process(target=write, args=(url, number, each, seconds, barrier, results))
        for number in range(writers)
    ]
    trainer = context.Process(target=train, args=(url, seconds, barrier, trained))
    for process in (*crew, trainer):
        process.start()
    written = [results.get(timeout=seconds + 120) for _ in crew]
    claims, used = trained.get(timeout=seconds + 120)
    for process in (*crew, trainer):
        process.join()
    ways = [way for part, _ in written for way in part]
    finished = sum(count for _, count in written)
    return {
        "database": name,
        "writers": writers,
        "answers_per_s": rate,
        "finished": finished * GROUP,
        "stored": len(ways) * GROUP,
        "trained": used * GROUP,
        "way_p50_s": quantile(ways, 0.5),
        "way_p99_s": quantile(ways, 0.99),
        "claim_p99_s": quantile(claims, 0.99),
        "keeps_up": len(ways) >= 0.9 * finished,
    }


def quantile(values: list[float], share: float) -> float | None:
    return round(float(np.quantile(values, share)), 4) if values else None


def cases(
    backends: dict[str, Callable[[str], str]], writers: int, rates: list[float], seconds: float
) -> Iterator[dict[str, object]]:
    for name, url_of in backends.items():
        for rate in rates:
            found = case(name, url_of(f"r{rate:g}"), writers, rate, seconds)
            yield found
            if not found["keeps_up"]:
                break


def row(found: dict[str, object]) -> str:
    numbers = [f"{found[key]}" for key in ("answers_per_s", "finished", "stored", "trained")]
    numbers += [f"{found[key]}" for key in ("way_p50_s", "way_p99_s", "claim_p99_s")]
    return f"| {found['database']} | {found['writers']} | {' | '.join(numbers)} |"


def _server(writers: int) -> PostgresServer | None:
    try:
        return PostgresServer(connections=2 * writers + 20)
    except Unavailable as reason:
        print(f"PostgreSQL left out: {reason}", file=sys.stderr)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--rates", type=float, nargs="+", default=[32, 64, 128, 256, 512, 1024])
    parser.add_argument("--seconds", type=float, default=10.0)
    known = ["sqlite", "postgresql"]
    parser.add_argument("--databases", nargs="+", choices=known, default=known)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    server = _server(told.writers) if "postgresql" in told.databases else None
    machine = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    found = []
    if not told.json:
        print("{cores} cores, load {load}\n".format(**machine))
        print(
            "| database | writers | answers/s | finished | stored | trained"
            " | way p50, s | p99, s | claim p99, s |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="tcload") as folder:
        backends: dict[str, Callable[[str], str]] = {}
        if "sqlite" in told.databases:
            backends["SQLite"] = lambda name: f"sqlite:///{folder}/{name}.db"
        if server:
            backends["PostgreSQL"] = server.new_database
        for each in cases(backends, told.writers, told.rates, told.seconds):
            found.append(each)
            if not told.json:
                print(row(each), flush=True)
    if server:
        server.close()
    if told.json:
        print(json.dumps({**machine, "cases": found}))


if __name__ == "__main__":
    main()
