"""Measure the cost of a studio with an open page for a running job, and the delay of a finished step on it.

    python benchmarks/studio_cost.py [--toy DIR] [--out DIR] [--steps 40] [--pairs 1]

The toy script runs alternately without and with a studio, one page of which follows the run from its first
second. Prints each run's median step (veRL's ``timing_s/step``, without the first two), the studio's own CPU
as a share of the machine, and of each step the time from the commit of its metrics (seen by a look every
10 ms) to the event that draws it. What else runs on the machine ("others", cores) moves the step time more
than the studio does: judge by the studio's CPU then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent / "parity"))
import toy_runs

WARM = 2  # steps that are left out: torch and vLLM still allocate
LOOK_S = 0.01
QUIET = ["trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.save_freq=-1"]
NEWEST = "SELECT max(step) FROM metrics WHERE role = 'trainer' AND voided_in IS NULL"


class Watched:
    """A run's steps: when each was committed, and when a page of a studio was told. Clock: monotonic."""

    def __init__(self, folder: Path, *, page: bool) -> None:
        self.folder = folder
        self.page = page
        self.committed: dict[int, float] = {}
        self.told: dict[int, float] = {}
        self.cpu_s = self.for_s = 0.0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._look, daemon=True)]
        with self._studio() as url:
            if url:
                threads.append(threading.Thread(target=self._read, args=(url,), daemon=True))
            for thread in threads:
                thread.start()
            yield
            self._ended.set()
            threads[0].join()

    @contextlib.contextmanager
    def _studio(self) -> Iterator[str]:
        if not self.page:
            yield ""
            return
        command = [toy_runs.BIN / "trinity-compat", "studio", self.folder, "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            yield process.stdout.readline().split()[1]
            used = psutil.Process(process.pid).cpu_times()
            self.cpu_s = used.user + used.system
        finally:
            process.terminate()
            process.wait()

    def _look(self) -> None:
        database = self.folder / "job" / "buffer" / "experiences.db"
        while not self._ended.wait(LOOK_S):
            with contextlib.suppress(sqlite3.Error):
                db = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
                with contextlib.closing(db):
                    step = db.execute(NEWEST).fetchone()[0]
                for missed in range(max(self.committed, default=0) + 1, (step or 0) + 1):
                    self.committed[missed] = time.monotonic()

    def _read(self, url: str) -> None:
        began = time.monotonic()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(url)  # shows the token in it
        query, wait_s = "history=1", 1.0
        while not self._ended.wait(wait_s):
            with contextlib.suppress(OSError):  # until there is a job
                found = json.load(browser.open(urljoin(url, f"/look/job?{query}")))
                query, wait_s = found["next"], found["wait_s"]
                self._look_at(found["events"])
        self.for_s = time.monotonic() - began

    def _look_at(self, events: list) -> None:
        for name, data in events:
            for step, row in data["rows"] if name == "rows" else ():
                if "timing_s/step" in row and step in self.committed:
                    self.told.setdefault(step, time.monotonic())


def one(folder: Path, toy: Path, steps: int, *, page: bool) -> float:
    """Run, print, and return the median step, s."""
    folder.mkdir(parents=True, exist_ok=True)
    watched = Watched(folder, page=page)
    words = [*QUIET, f"trainer.total_training_steps={steps}"]
    begin = time.monotonic()
    with watched.watching():
        measured = toy_runs.run("offset0", folder, toy, words)
    took = time.monotonic() - begin
    clock = toy_runs.series(toy_runs.metrics(folder), "timing_s/step").points()
    median = statistics.median(seconds for step, seconds in clock if step > WARM)
    others = f"others {measured.others:.1f} cores"
    print(f"{'with a page' if page else 'alone':12} {median:.3f} s/step, {took:.0f} s, {others}")
    if page:
        share = watched.cpu_s / took / (psutil.cpu_count() or 1)
        print(f"  studio: {watched.cpu_s:.1f} s of CPU, start included: {100 * share:.2f} % of the machine")
        late = sorted(told - watched.committed[step] for step, told in watched.told.items())
        median_s, most = statistics.median(late), late[-1]
        print(f"  step to event: {len(late)} steps, median {median_s:.2f} s, most {most:.2f} s", flush=True)
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--toy", type=Path, default=Path(".scratch/toy"))
    parser.add_argument("--out", type=Path, default=Path(".scratch/studio_cost"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=1)
    given = parser.parse_args()
    toy = toy_runs.make_toy(given.toy.absolute())
    for pair in range(given.pairs):
        folders = (given.out.absolute() / f"{pair}-{way}" for way in ("alone", "page"))
        alone, page = (one(f, toy, given.steps, page=f.name.endswith("page")) for f in folders)
        print(f"pair {pair}: {100 * (page / alone - 1):+.1f} %", flush=True)


if __name__ == "__main__":
    main()
