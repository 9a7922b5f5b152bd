"""A store that is pruned while it is written: its size, and what its writers wait.

    python benchmarks/retention_soak.py [--experiences 1000000] [--tokens 64] [--keep-steps 8] [--url URL]

Writes groups of 8 answers of about 2 KB, trains them in steps of 64 groups, once without and once with a
Dropper beside, for a tenth as long without. Prints the size by the way (what grows on is rewards, lengths,
versions and the tasks), and the writers' p50 and p99 of both, with their ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from realistic_rows import answers

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.buffer.report import BufferReport
from trinity_compat.spec import RunSpec, SyncSpec
from trinity_compat.trainer.dropping import Dropper

GROUP, STEP = 8, 64  # answers of a group, groups of a step
LOOKS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--experiences", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--keep-steps", type=int, default=8)
    parser.add_argument("--url", help="An empty PostgreSQL database for the pruned store; SQLite otherwise.")
    given = parser.parse_args()
    steps = given.experiences // (GROUP * STEP)
    with tempfile.TemporaryDirectory() as folder:
        waits = {}
        for name, keep, count in (("left", None, max(2, steps // 10)), ("pruned", given.keep_steps, steps)):
            url = given.url if given.url and keep is not None else f"sqlite:///{folder}/{name}.db"
            waits[name] = soak(name, spec(folder, url, keep), count, given.tokens)
    p99 = {name: float(np.quantile(seconds, 0.99)) for name, seconds in waits.items()}
    print(f"ratio of the p99 (pruned / left)  {p99['pruned'] / p99['left']:.2f}")


def spec(folder: str, url: str, keep: int | None) -> RunSpec:
    """As much of a run as a Dropper looks at."""
    verl = {"trainer": {"save_freq": -1, "resume_mode": "auto"}}
    return RunSpec(folder, url, verl, 1, None, SyncSpec(), keep_steps=keep)


def soak(name: str, made: RunSpec, steps: int, tokens: int) -> list[float]:
    """Seconds of each write."""
    buffer, report = open_buffer(made.database_url), BufferReport(made.database_url)
    rng = np.random.default_rng(0)
    content = answers(rng, count=GROUP, prompt=tokens, response=tokens, prompt_text="word " * tokens)
    waits: list[float] = []
    with Dropper(made, period_s=0.5):
        for step in range(1, steps + 1):
            waits += write(buffer, step, content)
            buffer.mark_trained(buffer.claim_groups(STEP, owner="soak", step=step), step=step)
            if step % max(1, steps // LOOKS) == 0:
                size = report.stats().nbytes / 1e6
                print(f"{name:7} {step * STEP * GROUP:9} experiences  {size:9.1f} MB", flush=True)
    for share in (0.5, 0.99):
        print(f"{name:7} p{share * 100:g} of a write  {np.quantile(waits, share) * 1e3:.2f} ms")
    report.close()
    buffer.close()
    return waits


def write(buffer: Buffer, step: int, content: tuple[Experience, ...]) -> Iterator[float]:
    """A step's groups, one transaction each."""
    for number in range(STEP):
        task = (step - 1) * STEP + number
        began = time.perf_counter()
        buffer.put_groups([Group(f"task {task}", task, {"index": task}, step, content)])
        yield time.perf_counter() - began


if __name__ == "__main__":
    main()
