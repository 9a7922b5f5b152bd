"""The explorer's end of one scoring process: its calls and its time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.processes import child
from trinity_compat.explorer.rewards.processes.child import RewardProcessSetup, ScoreCall, ScoreReply
from trinity_compat.explorer.sandbox import process
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.process import Process

GRACE_S = 5.0  # a process reports a call that took too long; one that cannot is killed this much later


def warm() -> None:
    """Import veRL, while engines load, in the fork server."""
    process.warm(["verl.experimental.reward_loop.reward_loop", child.__name__])


class Worker(Process):
    """A scoring process."""

    def __init__(self, printed: RateLimitedOutput, setup: RewardProcessSetup) -> None:
        super().__init__(printed, child.start, setup)
        self._timeout_s = setup.timeout_s

    async def call(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> ScoreReply:
        """Return the reply. Raises ProcessDied, ``late`` where the process was killed for silence."""
        with self.calling() as (number, result):
            self.send(ScoreCall(number, task, parts))
            try:
                async with asyncio.timeout(self._limit()):
                    reply: ScoreReply = await result
            except TimeoutError as error:
                raise self.kill_late() from error
        self.spoilt = self.spoilt or reply.kind == "timeout"
        return reply

    def _limit(self) -> float | None:
        if self._timeout_s is None or self.ready.has_limit:
            return None
        # A function in the main thread keeps its process from checking the time.
        return self._timeout_s + (GRACE_S if self.ready.lanes > 1 else 0.0)

    def receive(self, message: ScoreReply) -> None:
        """Deliver a reply."""
        waiting = self._calls.get(message.number)
        if waiting and not waiting.done():
            waiting.set_result(message)
