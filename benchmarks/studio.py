"""Time the studio's pages and index over a large job.

    python benchmarks/studio.py --experiences 1000000 [--jobs 200]

Makes (once) a finished job of so many experiences of about 2 KB each, with ``--jobs`` others beside it that
have metrics alone; indexes it, and asks every page again and again, in the process itself. Prints the index's
time and each page's median and 95th percentile, and the median of the processor's time, which other work on
the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import studio_runs
from starlette.testclient import TestClient
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trinity_compat.buffer import codec, open_buffer
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.studio.app import create_app
from trinity_compat.studio.guard import Listener
from trinity_compat.studio.index import Index
from trinity_compat.studio.jobs import Jobs
from trinity_compat.studio.live import PageState
from trinity_compat.studio.series import SeriesCache

ANSWERS, GROUPS = 8, 128  # a group, a step
TOKENS = 128
WORDS = [f"{a}{b}" for a in "bdfgklmnprstvz" for b in ("ane", "iro", "ust", "eel", "oma", "ix", "ardo")]
GROUP = """id, key, kind, task_no, task, explorer_step, priority, state, size, min_model_version,
    max_model_version, history_id, use_count, last_used_at, claim_token, written_at"""
EXPERIENCE = """id, group_id, run, reward, min_model_version, max_model_version, num_turns, metrics, info,
    prompt_text, response_text, prompt_ids, response_ids, logprobs"""
PAGES = {
    "runs": "/",
    "run": "/run/large",
    "curve": "/metrics/large?name=critic/score/mean",
    "newest": "/experiences/large",
    "by reward": "/experiences/large?sort=reward&up=on&reward_min=0.5",
    "by length, a step": "/experiences/large?sort=length&step_min=50&step_max=60",
    "deep page": "/experiences/large?sort=reward&after=0.5,{middle}",
    "common word": "/experiences/large?text=bane",
    "rare word": "/experiences/large?text=needle{middle}",
    "phrase": '/experiences/large?text="bane%20diro"',
    "word and bounds": "/experiences/large?text=bane&reward_min=0.9999",
    "nothing, by age": "/experiences/large?reward_min=2",
    "nothing, by length": "/experiences/large?reward_min=2&sort=length",
    "one task": "/experiences/large?task=large%2077",
    "groups of a step": "/groups/large?step=50",
    "groups by spread": "/groups/large?step=all&sort=spread&spread_min=0.1&up=on",
    "groups, nothing": "/groups/large?step=all&sort=turns&turns_min=99",
    "group": "/group/large?id={group}",
    "group in a selection": "/group/large?id={group}&step=all&sort=advantage&mean_min=0.6",
    "configuration": "/configuration/large",
    "report": "/proof/large",
    "choose": "/compare",
    "compare": "/compare?a=large&b=small",
    "answers": "/answers?a=large&b=small&task=large%2077",
    "configure": "/configure",
    "expert": "/configure/expert",
    "translate": "/translate",
    "which mode": "/advise",
    "start": "/start",
}


def make(root: Path, count: int) -> None:
    """The job, by the store's schema and plain inserts."""
    (root / "config").mkdir(parents=True)
    url = f"sqlite:///{root}/buffer/experiences.db"
    steps = count // (ANSWERS * GROUPS) + 1
    RunSpec(str(root), url, {}, 1, steps, SyncSpec()).save(root / "config" / "run.json")
    buffer = open_buffer(url)
    events = EventFileWriter(str(root / "monitor" / "tensorboard" / "trainer"))
    for step in range(1, steps + 1):
        row = {f"metric/{n}": step / (n + 1) for n in range(140)}
        row |= {"critic/score/mean": step / steps, "timing_s/step": 4.0}
        buffer.log_metrics("trainer", step, row)
        events.add_event(_event(step, row))
    events.close()
    buffer.beat("trainer", "trainer", state="done")
    buffer.close()
    with closing(sqlite3.connect(root / "buffer" / "experiences.db")) as db, db:
        db.execute("PRAGMA synchronous=OFF")
        db.executemany(_insert("task_groups", GROUP), groups(count))
        db.executemany(_insert("experiences", EXPERIENCE), experiences(count))


def _insert(table: str, columns: str) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' for _ in columns.split())})"


def _event(step: int, row: dict[str, float]) -> Event:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
    return Event(step=step, wall_time=float(step), summary=Summary(value=values))


def groups(count: int):
    for number in range(1, count // ANSWERS + 1):
        task = codec.to_json({"data_source": "large", "index": number % 5000})
        step = number // GROUPS + 1
        yield (number, f"k{number}", "train", number, task, step, 0.0, "trained", ANSWERS, step - 1, step - 1,
               1, 1, 1.0, None, float(number))  # fmt: skip


def experiences(count: int):
    draw = random.Random(0)
    ids = np.arange(TOKENS, dtype=np.int32).tobytes()
    logprobs = (-np.random.default_rng(0).random(TOKENS, dtype=np.float32)).tobytes()
    for number in range(1, count // ANSWERS * ANSWERS + 1):
        group, run = divmod(number - 1, ANSWERS)
        step = group // GROUPS + 1
        text = " ".join(draw.choices(WORDS, k=180)) + f" needle{number}"
        yield (number, group + 1, run, draw.random(), step - 1, step - 1, 2, "{}", '{"acc":1.0}',
               text[:200], text, ids[:80], ids, logprobs)  # fmt: skip


def fill(root: Path, name: str) -> None:
    index = Index(Jobs(root).get(name))
    begin, busy = time.perf_counter(), time.process_time()
    before = index.fill(0)[0]
    done, _ = index.fill(float("inf"))
    took = time.perf_counter() - begin
    if done > before:
        busy = time.process_time() - busy
        print(f"index: {done - before} experiences in {took:.1f} s, {busy:.1f} s of them the processor's")
    size = sum(path.stat().st_size for path in index.path.parent.glob("studio.db*"))
    print(f"studio.db: {size / 2**20:.0f} MiB")


def ask(root: Path, count: int, times: int) -> None:
    door = Listener("127.0.0.1", 8080)
    client = TestClient(create_app(root, door), base_url="http://127.0.0.1:8080")
    client.get(door.address)
    for name, path in PAGES.items():
        path = path.format(middle=count // 2, group=count // ANSWERS // 2)
        took, worked = [], []
        for _ in range(times):
            begin, busy = time.perf_counter(), time.process_time()
            answer = client.get(path)
            took.append(1000 * (time.perf_counter() - begin))
            worked.append(1000 * (time.process_time() - busy))
            assert answer.status_code == 200, (name, answer.text)
        busy = statistics.median(worked)
        median, most = statistics.median(took), sorted(took)[int(0.95 * times)]
        print(f"{name:20} median {median:7.1f} ms   p95 {most:7.1f} ms   CPU {busy:7.1f} ms", flush=True)
    look(root, times)


def look(root: Path, times: int) -> None:
    """The queries that an open page sends to the database each second."""
    watch = PageState(Jobs(root).get("large"), SeriesCache(), 1, {})
    begin, busy = time.perf_counter(), time.process_time()
    watch.look()
    print(f"first look at a run: {1000 * (time.perf_counter() - begin):.0f} ms")
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(times):
        watch.look()
    wall, busy = (
        1000 * (now - then) / times
        for now, then in ((time.perf_counter(), begin), (time.process_time(), busy))
    )
    print(f"each further look: {wall:.1f} ms, CPU {busy:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiences", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path(".scratch/studio"))
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=0)
    given = parser.parse_args()
    root = given.out / str(given.experiences)
    for name, count in (("large", given.experiences), ("small", min(80_000, given.experiences))):
        if not (root / name / "buffer" / "experiences.db").exists():
            make(root.absolute() / name, count)
        fill(root, name)
    if given.jobs and not (root / "runs").exists():
        studio_runs.make(root.absolute() / "runs", given.jobs, 100)
    ask(root, given.experiences, given.times)


if __name__ == "__main__":
    main()
