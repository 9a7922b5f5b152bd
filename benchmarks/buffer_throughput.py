"""Speed of the buffer, all in one run: written and read per second, claims, growth.

    python benchmarks/buffer_throughput.py [--experiences 8192] [--growth 1000000]

Experiences of 128 prompt and 1024 response tokens with log-probs and 4 KB of text, in groups of 8, 256
experiences to a transaction; read by claiming 32 groups and entering them in the ledger, as the trainer
does. Each side has a connection of its own, as in a run. Beside it: the same bytes through the bare sqlite3
module (the ceiling), PostgreSQL, our buffer behind a Ray actor (no run has it so; upstream does), and the
real trinity-rft 0.6.0 where ``.venv-upstream-0.6.0`` is there. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import sqlalchemy as sa

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "buffer"))
from buffer_postgres import PostgresServer, Unavailable  # noqa: E402
from realistic_rows import answers  # noqa: E402

from trinity_compat.buffer import open_buffer  # noqa: E402
from trinity_compat.buffer.model import Claim, Experience, Group  # noqa: E402

PROMPT, RESPONSE, GROUP, BATCH = 128, 1024, 8, 32
UPSTREAM = ROOT / ".venv-upstream-0.6.0" / "bin" / "python"
TASK = {
    "index": 1,
    "raw_prompt": [{"role": "user", "content": "q" * 200}],
    "reward_model": {"ground_truth": "4"},
}


def _answers(rng: np.random.Generator) -> tuple[Experience, ...]:
    return answers(rng, count=GROUP, prompt=PROMPT, response=RESPONSE, prompt_text="p" * 400)


def make_groups(first: int, count: int) -> list[Group]:
    rng = np.random.default_rng(first)
    return [Group(f"{number}", number, TASK, 1, _answers(rng)) for number in range(first, first + count)]


def write(url: str, first: int, count: int, barrier) -> None:
    groups = make_groups(first, count)
    buffer = open_buffer(url)
    barrier.wait()
    for start in range(0, count, BATCH):
        buffer.put_groups(groups[start : start + BATCH])
    barrier.wait()
    buffer.close()


def time_writers(url: str, experiences: int, writers: int) -> float:
    """Experiences per second of so many processes."""
    context = get_context("spawn")
    barrier = context.Barrier(writers + 1)
    share = experiences // GROUP // writers
    crew = [context.Process(target=write, args=(url, i * share, share, barrier)) for i in range(writers)]
    for process in crew:
        process.start()
    barrier.wait()
    start = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - start
    for process in crew:
        process.join()
    return share * writers * GROUP / seconds


def time_reader(url: str, experiences: int) -> tuple[float, float, float]:
    """(experiences per second, p50, p99 of claim in ms) of one trainer that claims and marks."""
    buffer = open_buffer(url)
    claims = []
    start = time.perf_counter()
    for step in range(1, experiences // GROUP // BATCH + 1):
        before = time.perf_counter()
        claim = buffer.claim_groups(BATCH, owner="t", step=step)
        claims.append(time.perf_counter() - before)
        buffer.mark_trained(claim, step=step)
    seconds = time.perf_counter() - start
    buffer.close()
    return len(claims) * BATCH * GROUP / seconds, *quantiles(claims)


class Behind:
    """Our buffer in a Ray actor, where upstream keeps its storage."""

    def __init__(self, url: str) -> None:
        self.buffer = open_buffer(url)

    def put(self, groups: list[Group]) -> int:
        return self.buffer.put_groups(groups)

    def take(self, step: int) -> Claim:
        claim = self.buffer.claim_groups(BATCH, owner="t", step=step)
        assert claim is not None
        self.buffer.mark_trained(claim, step=step)
        return claim


def time_behind_ray(url: str, experiences: int, folder: str) -> tuple[float, float]:
    """(written, read) per second through one Ray actor, one call for 256 experiences."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    try:
        actor = ray.remote(Behind).remote(url)
        groups = make_groups(0, experiences // GROUP)
        batches = [groups[first : first + BATCH] for first in range(0, len(groups), BATCH)]
        ray.get(actor.put.remote(make_groups(1 << 20, 1)))  # the actor is up
        start = time.perf_counter()
        for batch in batches:
            ray.get(actor.put.remote(batch))
        written = time.perf_counter()
        for step in range(1, len(batches) + 1):
            assert len(ray.get(actor.take.remote(step)).groups) == BATCH
        return experiences / (written - start), experiences / (time.perf_counter() - written)
    finally:
        ray.shutdown()


def quantiles(seconds: list[float]) -> tuple[float, float]:
    """p50 and p99 in ms."""
    return statistics.median(seconds) * 1e3, float(np.quantile(seconds, 0.99)) * 1e3


def time_raw(folder: Path, experiences: int) -> tuple[float, float]:
    """(written, read) per second of the same bytes through the sqlite3 module alone."""
    groups = make_groups(0, experiences // GROUP)
    rows = [
        (
            *(g.task_no, e.run, e.reward, e.prompt_text, e.response_text),
            *(e.prompt_ids.tobytes(), e.response_ids.tobytes(), e.logprobs.tobytes()),
        )
        for g in groups
        for e in g.experiences
    ]
    raw = sqlite3.connect(folder / "raw.db", isolation_level=None)
    raw.executescript("PRAGMA page_size=8192; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
    raw.execute("CREATE TABLE e (id INTEGER PRIMARY KEY, g, run, reward, pt, rt, p BLOB, r BLOB, l BLOB)")
    start = time.perf_counter()
    for first in range(0, len(rows), BATCH * GROUP):
        raw.execute("BEGIN IMMEDIATE")
        batch = rows[first : first + BATCH * GROUP]
        raw.executemany(
            "INSERT INTO e (g, run, reward, pt, rt, p, r, l) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", batch
        )
        raw.execute("COMMIT")
    written = time.perf_counter()
    for first in range(0, len(rows), BATCH * GROUP):
        raw.execute("SELECT * FROM e WHERE id > ? LIMIT ?", (first, BATCH * GROUP)).fetchall()
    read = time.perf_counter()
    raw.close()
    return len(rows) / (written - start), len(rows) / (read - written)


def time_upstream(experiences: int) -> dict[str, list[float]]:
    """The real trinity-rft 0.6.0: name → [written, read] per second."""
    with tempfile.TemporaryDirectory(prefix="tcub", dir="/tmp") as folder:
        command = [str(UPSTREAM), str(ROOT / "benchmarks" / "upstream" / "sql_storage.py")]
        command += [folder, str(experiences), str(BATCH * GROUP)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=540)
    if done.returncode != 0:
        print(f"\nupstream failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


# -- growth -----------------------------------------------------------------------------------------

NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {top})",
    "postgresql": "WITH n(i) AS (SELECT generate_series(0, {top}))",
}
FILL_GROUPS = """INSERT INTO task_groups (id, key, kind, task_no, task, explorer_step, priority, state, size,
    min_model_version, max_model_version, history_id, use_count, last_used_at, written_at)
{numbers} SELECT i + 1, 'k' || i, 'train', i, '{{}}', 1, 0,
    CASE WHEN i < {trained} THEN 'trained' ELSE 'ready' END, 8, 0, 0, 1,
    CASE WHEN i < {trained} THEN 1 ELSE 0 END, 0, 0 FROM n"""
FILL_EXPERIENCES = """INSERT INTO experiences (group_id, run, reward, min_model_version, max_model_version,
    num_turns, metrics, info, prompt_text, response_text, prompt_ids, response_ids, logprobs)
{numbers} SELECT i / 8 + 1, i % 8, 1, 0, 0, 2, '{{}}', '{{}}', 'p', 'r', {blob}, {blob}, {blob} FROM n"""


def fill(url: str, experiences: int) -> None:
    """So many small experiences by SQL: nine tenths trained, one tenth ready."""
    open_buffer(url).close()
    groups = experiences // GROUP
    engine = sa.create_engine(url)
    dialect = engine.dialect.name
    blob = "x'00000000'" if dialect == "sqlite" else "decode('00000000', 'hex')"
    with engine.begin() as conn:
        numbers = NUMBERS[dialect].format(top=groups - 1)
        conn.execute(sa.text(FILL_GROUPS.format(numbers=numbers, trained=groups * 9 // 10)))
        numbers = NUMBERS[dialect].format(top=experiences - 1)
        conn.execute(sa.text(FILL_EXPERIENCES.format(numbers=numbers, blob=blob)))
    if dialect == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("VACUUM ANALYZE")
    engine.dispose()


def time_claims(url: str, claims: int = 100, count: int = 1) -> tuple[float, float]:
    """p50 and p99 in ms of claiming ``count`` groups; each is given back, so the depth stays."""
    buffer = open_buffer(url)
    times = []
    for step in range(claims + 10):
        start = time.perf_counter()
        claim = buffer.claim_groups(count, owner="t", step=step)
        times.append(time.perf_counter() - start)
        buffer.release(claim)
    buffer.close()
    return quantiles(times[10:])  # the first ones warm the caches


# -- the table --------------------------------------------------------------------------------------


def show_speed(name: str, url_of, experiences: int) -> None:
    for writers in (1, 2, 8):
        url = url_of(f"w{writers}")
        written = time_writers(url, experiences, writers)
        read, p50, p99 = time_reader(url, experiences)
        row = f"| {name}, {writers} writer{'s' * (writers > 1)} | {written:,.0f} | {read:,.0f}"
        print(f"{row} | {p50:.1f} / {p99:.1f} |", flush=True)


def show_growth(name: str, url_of, sizes: list[int]) -> None:
    found = {}
    for size in sizes:
        url = url_of(f"g{size}")
        fill(url, size)
        found[size] = time_claims(url)
        print(f"| {name} | {size:,} | {found[size][0]:.2f} | {found[size][1]:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiences", type=int, default=8192)
    parser.add_argument("--growth", type=int, default=1_000_000, help="rows of the largest buffer; 0: skip")
    args = parser.parse_args()
    sizes = [10_000, args.growth] if args.growth else []
    try:
        server = PostgresServer()
    except Unavailable as reason:
        server = None
        print(f"PostgreSQL left out: {reason}\n")
    with tempfile.TemporaryDirectory(prefix="tcbench") as folder:
        backends = {"SQLite": lambda name: f"sqlite:///{folder}/{name}.db"}
        if server:
            backends["PostgreSQL"] = server.new_database
        print("| experiences/s | written | read | claim of 32 groups, ms p50 / p99 |\n|---|---:|---:|---:|")
        raw = time_raw(Path(folder), args.experiences)
        print(f"| sqlite3 module alone | {raw[0]:,.0f} | {raw[1]:,.0f} | |", flush=True)
        for name, url_of in backends.items():
            show_speed(name, url_of, args.experiences)
        with tempfile.TemporaryDirectory(prefix="tcr", dir="/tmp") as ray_folder:
            ours = time_behind_ray(backends["SQLite"]("ray"), args.experiences, ray_folder)
        print(f"| SQLite behind a Ray actor | {ours[0]:,.0f} | {ours[1]:,.0f} | |", flush=True)
        if UPSTREAM.exists():
            for way, (written, read) in time_upstream(min(args.experiences, 2048)).items():
                print(f"| trinity-rft 0.6.0, {way} | {written:,.0f} | {read:,.0f} | |", flush=True)
        print("\n| claim of one group | experiences | p50 ms | p99 ms |\n|---|---:|---:|---:|")
        for name, url_of in backends.items():
            show_growth(name, url_of, sizes)
    if server:
        server.close()


if __name__ == "__main__":
    main()
