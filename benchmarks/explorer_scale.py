"""How full the explorer keeps its engines, by style and scale: the explorer's own code on simulated engines.

    python benchmarks/explorer_scale.py [--json] [--engines 1 8 64 256] [--sigmas 1.0]

An engine decodes 256 answers at a time, a step of b answers takes 10 ms + 0.02 ms × b; lengths are lognormal
(mean 3,000 tokens, cut at 16,000). A step is 64 groups of 8 for each engine, so that with 8 engines it is the
512 × 8 of the usual launches; the trainer takes ``--train-share`` of the time that a step's tokens take at full
rate. ``utilisation``: tokens made between two of the trainer's steps, of those that the engines could have made.
``bound``: the same for a perfect queue under the same style, which goes on with any answer on any engine, knows
of everything at once and stores a group when its last answer ends. ``old``: the loop before the pool, which made
one step at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import simulation as sim

from trinity_compat.explorer.loop import Explorer
from trinity_compat.explorer.plan import Plan
from trinity_compat.explorer.rollout import Job
from trinity_compat.spec import SyncSpec

GROUPS, N, MEAN, CAP = 64, 8, 3000, 16_000
WARM, STEPS = 3, 8  # trainer steps before the measuring begins, and at its end


@dataclass(frozen=True, slots=True)
class Case:
    """``staleness``: max_staleness in steps, None for the style's own."""

    engines: int
    explorers: int
    sigma: float
    style: str
    interval: int = 1
    offset: int = 0
    staleness: int | None = None

    @property
    def batch(self) -> int:
        """Groups of a step."""
        return GROUPS * self.engines

    def spec(self) -> Any:
        """For the explorer's plan."""
        sync = SyncSpec(self.style, self.interval, self.offset)  # type: ignore[arg-type]
        steps = STEPS + 20
        return sim.make_spec(
            self.batch, N, steps, sync, explorers=self.explorers, max_staleness=self.staleness
        )


def lengths(sigma: float) -> Callable[[Job, int], int]:
    """Tokens of each answer, by task and place."""

    @cache
    def group(number: int) -> list[int]:
        draw = random.Random(number)
        mu = math.log(MEAN) - sigma**2 / 2
        return [max(1, min(CAP, round(draw.lognormvariate(mu, sigma)))) for _ in range(N)]

    return lambda job, place: group(job.task_no)[place]


class Trainer:
    """Claims, trains, publishes; measures between steps WARM and STEPS."""

    def __init__(self, case: Case, buffer: sim.MemoryBuffer, engines: list[sim.Engines]) -> None:
        self._case, self._buffer, self._engines = case, buffer, engines
        self._rate = sum(each.rate for each in engines)
        self.utilisation = 0.0

    async def train(self, share: float) -> None:
        """Until the measuring has ended."""
        train_s = share * self._case.batch * N * MEAN / self._rate
        clock, began, tokens = asyncio.get_running_loop().time, 0.0, 0.0
        self._buffer.publish_version(sim.version_of(0))
        for step in range(1, STEPS + 1):
            while self._buffer.claim(step, self._case.staleness) is None:
                await asyncio.sleep(0.05)
            await asyncio.sleep(train_s)
            if step % self._case.interval == 0:
                self._buffer.publish_version(sim.version_of(step))
            if step == WARM:
                began, tokens = clock(), self._tokens()
        self.utilisation = (self._tokens() - tokens) / (clock() - began) / self._rate

    def _tokens(self) -> float:
        return sum(each.tokens() for each in self._engines)


Explore = Callable[[sim.MemoryBuffer, Plan, sim.Maker], Coroutine[Any, Any, None]]


async def explore(buffer: sim.MemoryBuffer, plan: Plan, maker: sim.Maker) -> None:
    """The explorer's own loop."""
    silent: Any = sim.Silent()
    await Explorer(buffer, plan, maker, silent, silent).explore()  # type: ignore[arg-type]


async def one_step_at_a_time(buffer: sim.MemoryBuffer, plan: Plan, maker: sim.Maker) -> None:
    """The loop before the pool (trinity_compat/explorer/loop.py at 0271f11), less what plays no part here."""
    loaded = sim.version_of(0)

    async def make(work: Any, version: int) -> list[Any]:
        return [group async for group in maker.groups(work, version, 1)]

    while not plan.finished():
        work = plan.next_work(1)
        version = plan.version_for(work, loaded) if work else None
        if not (work and version):
            plan.look_again()
            await asyncio.sleep(0.03)
            continue
        await maker.load(version)
        loaded = version
        making = asyncio.ensure_future(make(work, version.version))
        while not making.done():
            newest = buffer.latest_version()
            if plan.follows and newest and newest.version > loaded.version:
                await maker.load(newest)
                loaded = newest
            await asyncio.wait({making}, timeout=0.03)
        buffer.put_groups(sorted(making.result(), key=lambda group: group.task_no), history=1)
        plan.look_again()


async def perfect(buffer: sim.MemoryBuffer, plan: Plan, maker: sim.Maker) -> None:
    """The explorer's loop without its delays, for ``pooled`` engines."""
    await explore(buffer, plan, maker)


def simulate(case: Case, explorer: Explore, share: float, *, old: bool = False, pooled: bool = False) -> float:
    """Utilisation of the engines."""

    async def main() -> float:
        buffer, spec = sim.MemoryBuffer(case.batch), case.spec()
        by_load = case.style != "fixed" and not old
        size = case.engines // case.explorers
        length = lengths(case.sigma)
        engines = [
            sim.Engines(size, length, by_load=by_load, pooled=pooled) for _ in range(case.explorers)
        ]
        trainer = Trainer(case, buffer, engines)
        exploring = [
            asyncio.ensure_future(explorer(buffer, _plan(spec, buffer, case, index), sim.Maker(each)))
            for index, each in enumerate(engines)
        ]
        training = asyncio.ensure_future(trainer.train(share))
        await asyncio.wait({training, *exploring}, return_when=asyncio.FIRST_COMPLETED)
        for one in exploring:
            if one.done():
                one.result()
            one.cancel()
        await asyncio.gather(*exploring, return_exceptions=True)
        training.result()
        if buffer.stale:
            print(f"{case}: {buffer.stale} groups were dropped as stale")
        return trainer.utilisation

    return sim.run(main)


def _plan(spec: Any, buffer: Any, case: Case, index: int) -> Plan:
    return Plan(spec, buffer, sim.Stream(case.batch), None, index=index)  # type: ignore[arg-type]


def main() -> None:
    case = Case(8, 1, 1.0, "fully_async", staleness=2)
    for case in (Case(2, 1, 1.0, "fixed"), Case(2, 1, 1.0, "fixed", offset=1), Case(2,1,1.0,"fixed", interval=4), Case(2, 1, 1.0, "trainer_driven"), Case(2, 1, 1.0, "fully_async", staleness=1), Case(2, 1, 1.0, "fully_async", staleness=2), Case(2, 1, 1.0, "fully_async", staleness=4)):
        for share in (0.0, 0.5):
            began = time.process_time()
            new = simulate(case, explore, share)
            cost = time.process_time() - began
            print(case, share, "new", round(new, 3), "pooled", round(simulate(case, explore, share, pooled=True), 3), "old", round(simulate(case, one_step_at_a_time, share, old=True), 3), f"{cost:.1f}s", flush=True)


main()
