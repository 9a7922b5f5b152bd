"""``reward.num_workers`` scoring processes, and what becomes of an answer whose scoring fails.

Invariants: each answer gets exactly one score, or the run ends with a reason. Only what is certain to have
failed counts: of several calls in a process that died, each is tried again alone, and the one that ends its
process once more is the one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trinity_compat.common.errors import RunError
from trinity_compat.common.user_output import REWARD
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.processes.child import RewardProcessSetup
from trinity_compat.explorer.rewards.processes.wire import ScoreCall, ScoreReply
from trinity_compat.explorer.rewards.processes.worker import Worker, warm
from trinity_compat.explorer.rewards.scoring import Score, describe, given, name_task
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.process import cluster
from trinity_compat.job.fingerprint import FilesEdited
from trinity_compat.job.run_spec import OnFailure, ScoringSpec

RETRIES = 2  # under ``retry``
START_S = 600.0  # for a scoring process: it imports the user's module
START_TRIES = 3
IN_A_ROW = 64  # so many failures and no score: the function, or what it asks, is broken
_SHOWN = 10  # failures that are told one by one


def make_scorer(
    config: Any, limits: ScoringSpec, router: str | None = None, loaded: Callable[[], None] = lambda: None
) -> ScoringPool:
    """``router``: where the launch's reward model answers, None where it has none.

    ``loaded``: called when a process has loaded the reward function; raises FilesEdited where its file was
    edited.
    """
    warm()
    setup = RewardProcessSetup(config, router, limits.timeout_s, limits.memory_gb, str(Path.cwd()), cluster())
    return ScoringPool(setup, limits, max(1, int(config.reward.num_workers or 1)), loaded)


class ScoringPool:
    """See Scorer. Processes start as they are needed, at most ``size`` of them."""

    def __init__(
        self, setup: RewardProcessSetup, limits: ScoringSpec, size: int, loaded: Callable[[], None]
    ) -> None:
        self._setup, self._limits, self._size, self._loaded = setup, limits, size, loaded
        self._where = describe(setup.config)
        self._printed = RateLimitedOutput(REWARD, lambda data: os.write(1, data))
        self._numbers = itertools.count()
        self._workers: list[Worker] = []
        self._starts: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[Worker]] = deque()
        self._suspects: deque[asyncio.Future[Worker]] = deque()
        self._broken: RunError | FilesEdited | None = None
        self._whole: bool | None = None
        self._in_a_row = 0
        self.failures: Counter[str] = Counter()
        self._like: Mapping[str, Any] = {}  # what the function says of an answer, beside its score

    async def group(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        """See Scorer."""
        open_ = [part for part in parts if part.reward is None]
        calls = [open_] if open_ and await self._is_whole() else [[part] for part in open_]
        scores = iter(itertools.chain(*await asyncio.gather(*(self._scored(task, each) for each in calls))))
        return [next(scores) if part.reward is None else given(part, task) for part in parts]

    async def _is_whole(self) -> bool:
        """Whether a call is a group: the first process says."""
        if self._whole is None:
            self._leave(await self._place(alone=False))
        return bool(self._whole)

    async def _scored(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        slim = [replace(part, logprobs=[], response_mask=[]) for part in parts]
        alone, tries = False, 0
        while True:
            reply, certain = await self._once(ScoreCall(next(self._numbers), task, slim), alone=alone)
            if reply.kind is None:
                self._in_a_row = 0
                self._like = reply.scores[0].info
                return [replace(score, retries=tries) for score in reply.scores]
            alone = alone or reply.kind != "error"
            if not certain:
                continue
            tries += 1
            if self._given_up(reply, task, tries):
                return [Score(0.0, _zeros(self._like), reply.kind, tries - 1)] * len(parts)

    async def _once(self, call: ScoreCall, *, alone: bool) -> tuple[ScoreReply, bool]:
        """A reply, and whether its failure is this call's own."""
        worker = await self._place(alone=alone)
        # Whoever wants it no longer leaves, and the place stays taken: its process is busy all the same.
        reply, certain = await asyncio.shield(self._called(worker, call))
        return reply, alone or certain

    async def _called(self, worker: Worker, call: ScoreCall) -> tuple[ScoreReply, bool]:
        try:
            reply = await worker.call(call)
            # Of several calls in a process that died, or had a thread left that nobody waits for, who knows.
            return reply, not worker.dead or (worker.crowd == 1 and not worker.spoilt)
        finally:
            self._leave(worker)

    def _given_up(self, reply: ScoreReply, task: Mapping[str, Any], tries: int) -> bool:
        """Whether the answer gets 0; else it is tried again. Raises RunError where the run is to end."""
        assert reply.kind is not None
        wanted: OnFailure = self._limits.on_error if reply.kind == "error" else self._limits.on_hang
        what = self._told(reply, task)
        if wanted == "raise" or (wanted == "retry" and tries > RETRIES):
            raise RunError(what, hint="trinity_compat.reward_failure: zero scores such an answer 0")
        if wanted == "retry":
            self._say(f"{what}; tried again")
            return False
        self.failures[reply.kind] += 1
        self._in_a_row += 1
        if self._in_a_row >= IN_A_ROW and self._limits.on_error != "zero":
            raise RunError(f"{what}; so did the {IN_A_ROW} answers before it, without a score in between")
        self._say(f"{what}; scored 0 ({self.failures.total()} so far)")
        return True

    def _told(self, reply: ScoreReply, task: Mapping[str, Any]) -> str:
        if reply.kind == "error":
            return reply.message
        if reply.kind == "timeout":
            return f"{self._where} gave no score for {name_task(task)} in {self._limits.timeout_s:g} s"
        how = f" ({reply.message})" if reply.message else ""
        return f"{self._where} ended its process{how} on {name_task(task)}"

    def _say(self, text: str) -> None:
        if (told := self.failures.total()) <= _SHOWN or told % 100 == 0:
            print(f"warning: {text}", flush=True)

    # -- places ---------------------------------------------------------------------------------

    async def _place(self, *, alone: bool) -> Worker:
        """A process that has room; ``alone``: one that has nothing else to do."""
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        (self._suspects if alone else self._waiting).append(future)
        self._offer()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not future.exception():
                self._leave(future.result())
            raise

    def _leave(self, worker: Worker) -> None:
        worker.taken -= 1
        worker.alone = worker.alone and worker.taken > 0
        if worker.spoilt and not worker.taken:
            worker.kill()
        self._offer()

    def _offer(self) -> None:
        """Give out the places that there are; start a process where all have something to do."""
        kept = self._for_suspects()
        _give(self._suspects, (kept,) if kept and not kept.taken else (), alone=True)
        usable = [each for each in self._workers if not each.spoilt and not each.alone and each is not kept]
        while self._waiting and usable:
            worker = min(usable, key=lambda each: each.taken)
            if worker.taken >= worker.ready.lanes:
                break
            _give(self._waiting, (worker,))
        if self._waiting or self._suspects or all(each.taken for each in usable):
            self._grow()

    def _for_suspects(self) -> Worker | None:
        free = [each for each in self._workers if not each.spoilt and not each.alone]
        return min(free, key=lambda each: each.taken) if self._suspects and free else None

    def _grow(self) -> None:
        if self._broken:
            self._refuse(self._broken)
            return
        running = sum(not each.spoilt for each in self._workers) + len(self._starts)
        if running < self._size:
            start = asyncio.ensure_future(self._start())
            self._starts.add(start)
            start.add_done_callback(self._starts.discard)

    async def _start(self) -> None:
        why = ""
        for _ in range(START_TRIES):
            worker = Worker(self._printed, self._limits.timeout_s, self._gone)
            try:
                async with asyncio.timeout(START_S):
                    await worker.start(self._setup)
            except TimeoutError:
                why = f"it was not there after {START_S:g} s"
            except (asyncio.IncompleteReadError, EOFError, OSError) as error:
                why = f"it ended when it started ({type(error).__name__})"
            except asyncio.CancelledError:
                worker.kill()
                raise
            except Exception as error:  # else whoever waits for a process would wait for ever
                why = f"{type(error).__name__}: {error}"
            else:
                if not worker.dead:
                    self._started(worker)
                    return
                why = "it ended as soon as it was ready"
            worker.kill()
        self._cannot(why)

    def _started(self, worker: Worker) -> None:
        if worker.ready.broken:
            worker.kill()
            self._cannot(worker.ready.broken)
            return
        try:
            self._loaded()
        except FilesEdited as error:
            worker.kill()
            self._broken = error
            self._refuse(error)
            return
        self._whole = worker.ready.whole
        self._workers.append(worker)
        asyncio.get_running_loop().call_soon(self._offer)

    def _cannot(self, why: str) -> None:
        self._broken = RunError(f"{self._where}: the process for it cannot work: {why}")
        self._refuse(self._broken)

    def _refuse(self, why: RunError | FilesEdited) -> None:
        for future in itertools.chain(self._waiting, self._suspects):
            if not future.done():
                future.set_exception(why)
        self._waiting.clear()
        self._suspects.clear()

    def _gone(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            asyncio.get_running_loop().call_soon(self._offer)

    def close(self) -> None:
        """Kill what is there."""
        for start in self._starts:
            start.cancel()
        self._broken = self._broken or RunError("scoring has ended")
        for worker in list(self._workers):
            worker.kill()
        self._printed.told()


def _give(waiting: deque[asyncio.Future[Worker]], workers: Iterable[Worker], *, alone: bool = False) -> None:
    for worker in workers:
        while waiting:
            future = waiting.popleft()
            if not future.done():
                worker.taken, worker.alone = worker.taken + 1, alone
                future.set_result(worker)
                break


def _zeros(like: Mapping[str, Any]) -> dict[str, Any]:
    """``like`` with numbers 0 and the rest None: veRL makes columns of what it is told."""
    return {name: type(value)(0) if isinstance(value, int | float) else None for name, value in like.items()}
