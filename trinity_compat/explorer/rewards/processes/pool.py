"""Pool of ``reward.num_workers`` scoring processes, and the treatment of answers whose scoring fails.

Invariant: each answer gets exactly one score, or the run ends with a reason.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from omegaconf import DictConfig

from trinity_compat.common.errors import RunError
from trinity_compat.common.user_output import REWARD
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.processes.child import RewardProcessReady, RewardProcessSetup, ScoreReply
from trinity_compat.explorer.rewards.processes.worker import Worker, warm
from trinity_compat.explorer.rewards.scoring import Score, describe, name_task, score_by_agent
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.pool import ProcessPool
from trinity_compat.explorer.sandbox.process import ProcessDied, StartFailed
from trinity_compat.job.run_spec import OnFailure, ScoringSpec

T = TypeVar("T")
_log = logging.getLogger(__name__)

RETRIES = 2  # under ``retry``
START_TRIES = 3
IN_A_ROW = 64  # failures without a score between them that end the run: the function is broken
_SHOWN = 10  # failures that are reported one by one


def make_scorer(
    config: DictConfig,
    limits: ScoringSpec,
    router: str | None = None,
    loaded: Callable[[], None] = lambda: None,
) -> ScoringPool:
    """Create the pool that a veRL configuration asks for.

    ``router``: address of the launch's reward model, None without one. ``loaded``: called when a process has
    loaded the reward function; raises FilesEdited where its file was edited.
    """
    warm()
    setup = RewardProcessSetup(config, router, limits.timeout_s, limits.memory_gb)
    return ScoringPool(setup, limits, max(1, int(config.reward.num_workers or 1)), loaded)


class ScoringPool:
    """Scorer in at most ``size`` processes."""

    def __init__(
        self, setup: RewardProcessSetup, limits: ScoringSpec, size: int, loaded: Callable[[], None]
    ) -> None:
        self._limits, self._size = limits, size
        self._where = describe(setup.config)
        self._pool = ProcessPool(
            lambda printed: Worker(printed, setup), size, RateLimitedOutput(REWARD), loaded, tries=START_TRIES
        )
        self._ready: RewardProcessReady | None = None
        self._lanes = asyncio.Semaphore(0)
        self._in_a_row = 0
        self.failures: Counter[str] = Counter()
        self._like: Mapping[str, Any] = {}  # what the function returns about an answer, beside its score

    async def group(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        """Return one score per trajectory, in order. Raises RunError when the reward function fails."""
        open_ = [part for part in parts if part.reward is None]
        calls = [open_] if open_ and await self._is_whole() else [[part] for part in open_]
        scores = iter(itertools.chain(*await asyncio.gather(*(self._scored(task, each) for each in calls))))
        return [next(scores) if part.reward is None else score_by_agent(part, task) for part in parts]

    async def _is_whole(self) -> bool:
        """Return whether a call is a group, as the first process reports; from then on there are lanes."""

        async def ready_of(worker: Worker) -> RewardProcessReady:
            return worker.ready

        if self._ready is None:
            ready = await self._run(ready_of)
            if self._ready is None:
                self._ready, self._lanes = ready, asyncio.Semaphore(self._size * ready.lanes)
        return self._ready.whole

    async def _run(self, call: Callable[[Worker], Awaitable[T]], *, alone: bool = False) -> T:
        try:
            return await self._pool.run(call, alone=alone)
        except StartFailed as error:
            why = f"{self._where}: the process for it cannot work: {error.of('it')}"
            raise RunError(why) from error

    async def _scored(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        slim = [replace(part, logprobs=[], response_mask=[]) for part in parts]
        alone, tries = False, 0
        while True:
            reply = await self._reply(task, slim, alone=alone)
            if reply.kind is None:
                self._in_a_row = 0
                self._like = reply.scores[0].info
                return [replace(score, retries=tries) for score in reply.scores]
            alone = alone or reply.kind != "error"
            tries += 1
            if self._given_up(reply, task, tries):
                return [Score(0.0, _zeros(self._like), reply.kind, tries - 1)] * len(parts)

    async def _reply(
        self, task: Mapping[str, Any], parts: Sequence[Trajectory], *, alone: bool
    ) -> ScoreReply:
        await self._lanes.acquire()
        calling = asyncio.ensure_future(self._run(lambda worker: worker.call(task, parts), alone=alone))
        calling.add_done_callback(lambda _: self._lanes.release())
        try:
            # A caller that is cancelled leaves the lane taken: its process is busy all the same.
            return await asyncio.shield(calling)
        except ProcessDied as error:
            return ScoreReply(0, kind="timeout" if error.late else "died", message=str(error))

    def _given_up(self, reply: ScoreReply, task: Mapping[str, Any], tries: int) -> bool:
        """Return whether the answer gets 0; else it is tried again. Raises RunError where the run ends."""
        assert reply.kind is not None
        wanted: OnFailure = self._limits.on_error if reply.kind == "error" else self._limits.on_hang
        what = self._describe(reply, task)
        if wanted == "raise" or (wanted == "retry" and tries > RETRIES):
            raise RunError(what, hint="to score such an answer 0, write trinity_compat.reward_failure: zero")
        if wanted == "retry":
            self._warn(f"{what}; tried again")
            return False
        self.failures[reply.kind] += 1
        self._in_a_row += 1
        if self._in_a_row >= IN_A_ROW and self._limits.on_error != "zero":
            raise RunError(f"{what}; so did the {IN_A_ROW} answers before it, without a score in between")
        self._warn(f"{what}; scored 0 ({self.failures.total()} so far)")
        return True

    def _describe(self, reply: ScoreReply, task: Mapping[str, Any]) -> str:
        if reply.kind == "error":
            return reply.message
        if reply.kind == "timeout":
            return f"{self._where} gave no score for {name_task(task)} in {self._limits.timeout_s:g} s"
        how = f" ({reply.message})" if reply.message else ""
        return f"{self._where} ended its process{how} on {name_task(task)}"

    def _warn(self, text: str) -> None:
        if (count := self.failures.total()) <= _SHOWN or count % 100 == 0:
            _log.warning(text)

    def close(self) -> None:
        """Kill all processes."""
        self._pool.close()


def _zeros(like: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``like`` with numbers 0 and the rest None: veRL makes columns of these values."""
    return {name: type(value)(0) if isinstance(value, int | float) else None for name, value in like.items()}
