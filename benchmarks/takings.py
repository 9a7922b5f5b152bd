"""Rate at which explorers take tasks while many are in flight, with and without the lease watermark.

    python benchmarks/takings.py [--under-way 16000] [--takers 4] [--seconds 5]
        [--databases sqlite postgresql] [--by-place] [--json]

Real time, real databases. Eight explorers hold so many leases, another one the first task (so that nothing is
complete), and a quarter as many groups are stored among them. ``--takers`` processes then take one task at a
time and ask for the next, as the explorer does. ``full``: each query scans all leases and groups, as before
2026-11-23; ``watermark``: at most one does so in a second. Both in one run, in turns. ``--by-place``: each
explorer has a part of its own, as under ``fixed``; ``full`` reads all parts, ``watermark`` its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import sqlalchemy as sa

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "buffer"))
from buffer_postgres import PostgresServer, Unavailable  # noqa: E402

from trinity_compat.buffer import lease_watermark, leases, open_buffer  # noqa: E402
from trinity_compat.buffer.model import LeaseHolder, TaskQuery  # noqa: E402

HOLDERS, UPTO = 8, 10_000_000
LEASES = "INSERT INTO task_leases (kind, task_no, token, version) VALUES ('train', :task_no, :token, 0)"
GROUPS = """INSERT INTO task_groups (key, kind, task_no, task, explorer_step, priority, state, size,
    min_model_version, max_model_version, history_id, written_at)
VALUES (:key, 'train', :task_no, '{}', 1, 0, 'ready', 1, 0, 0, 1, 0)"""


def fill(url: str, under_way: int) -> None:
    """Every fifth task is stored, the others are leased."""
    buffer = open_buffer(url)
    for place in range(HOLDERS):
        buffer.enter(LeaseHolder(place, f"h{place}"), ready=False, lease_s=50.0)
    buffer.close()
    numbers = range(under_way * 5 // 4)
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        held = [{"task_no": n, "token": f"h{n % HOLDERS}"} for n in numbers if n % 5 != 1]
        conn.execute(sa.text(LEASES), held)
        conn.execute(sa.text(GROUPS), [{"key": f"g{n}", "task_no": n} for n in numbers if n % 5 == 1])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("ANALYZE")
    engine.dispose()


def take(url: str, place: int, full: bool, parts: int, seconds: float, barrier, results) -> None:
    """Answers with the seconds of each taking, and with this process's CPU seconds for each."""
    if full:
        lease_watermark.ALWAYS_SCANNED, leases.all_places_held = UPTO, lambda *_: False
    buffer, holder = open_buffer(url), LeaseHolder(HOLDERS + place, f"t{place}")
    buffer.enter(holder, ready=True, lease_s=50.0)
    have: set[int] = set()
    took = []
    barrier.wait()
    end, used = time.monotonic() + seconds, time.process_time()
    while (began := time.monotonic()) < end:
        asked = TaskQuery(holder, UPTO, have=have, by_place=parts)
        buffer.free_tasks(asked, limit=1)
        have.update(buffer.lease_tasks(asked, limit=1, version=0, history=1))
        took.append(time.monotonic() - began)
    buffer.close()
    results.put((took, time.process_time() - used))


def case(url: str, full: bool, takers: int, seconds: float, *, by_place: bool) -> dict[str, float]:
    """One round."""
    context = get_context("fork")
    barrier, results = context.Barrier(takers), context.Queue()
    parts = HOLDERS + takers if by_place else 0
    crew = [
        context.Process(target=take, args=(url, place, full, parts, seconds, barrier, results))
        for place in range(takers)
    ]
    for process in crew:
        process.start()
    found = [results.get(timeout=seconds + 120) for _ in crew]
    for process in crew:
        process.join()
    times = sorted(each for took, _ in found for each in took)
    return {
        "per_s": round(len(times) / seconds, 1),
        "p50_ms": round(1000 * times[len(times) // 2], 1),
        "p99_ms": round(1000 * times[len(times) * 99 // 100], 1),
        "cpu_ms": round(1000 * sum(cpu for _, cpu in found) / len(times), 1),
    }


def measure(
    name: str, url_of: Callable[[str], str], under_way: int, takers: int, seconds: float, *, by_place: bool
) -> dict[str, object]:
    """Both ways, each over a database of its own."""
    found: dict[str, dict[str, float]] = {}
    for way in ("full", "watermark"):
        url = url_of(f"{way}{under_way}")
        fill(url, under_way)
        found[way] = case(url, way == "full", takers, seconds, by_place=by_place)
    ratio = round(found["watermark"]["per_s"] / found["full"]["per_s"], 1)
    return {"database": name, "under_way": under_way, "takers": takers, **found, "ratio": ratio}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--under-way", type=int, nargs="+", default=[16_000])
    parser.add_argument("--takers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    known = ["sqlite", "postgresql"]
    parser.add_argument("--databases", nargs="+", choices=known, default=known)
    parser.add_argument("--by-place", action="store_true")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    machine, found = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}, []
    with tempfile.TemporaryDirectory(prefix="tctake") as folder, contextlib.ExitStack() as servers:
        for name in told.databases:
            try:
                url_of = _urls(name, folder, servers)
            except Unavailable as reason:
                print(f"{name} left out: {reason}", file=sys.stderr)
                continue
            for number in told.under_way:
                how = {"by_place": told.by_place}
                found.append(measure(name, url_of, number, told.takers, told.seconds, **how))
                if not told.json:
                    print(found[-1], flush=True)
    if told.json:
        print(json.dumps({**machine, "cases": found}))


def _urls(name: str, folder: str, servers: contextlib.ExitStack) -> Callable[[str], str]:
    if name == "sqlite":
        return lambda database: f"sqlite:///{folder}/{database}.db"
    server = PostgresServer()
    servers.callback(server.close)
    return server.new_database


if __name__ == "__main__":
    main()
