"""The explorer's end of one scoring process: calls, and what becomes of them when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trinity_compat.explorer.rewards.processes import child, wire
from trinity_compat.explorer.rewards.processes.wire import RewardProcessReady, ScoreCall, ScoreReply
from trinity_compat.explorer.sandbox import process
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.process import Process

GRACE_S = 5.0  # a process says itself that a call took too long; one that cannot is killed so much later


def warm() -> None:
    """Import veRL, while engines load, in the process that the others are forked from."""
    process.warm(["verl.experimental.reward_loop.reward_loop", child.__name__])


class Worker(Process):
    """``taken``: calls that it was given a place for; ``spoilt``: it is to end once they have ended.

    ``alone``: kept for a call that may have ended another process. ``crowd``: calls that were under way when
    it died.
    """

    def __init__(
        self, printed: RateLimitedOutput, timeout_s: float | None, gone: Callable[[Worker], None]
    ) -> None:
        super().__init__(printed, gone)
        self._timeout_s = timeout_s
        self._calls: dict[int, asyncio.Future[ScoreReply]] = {}
        self.ready = RewardProcessReady()
        self.taken, self.spoilt, self.alone = 0, False, False
        self.crowd = 0

    async def start(self, setup: child.RewardProcessSetup) -> None:
        """Until it can be called. Raises asyncio.IncompleteReadError when it ended before."""
        self.ready = await self.begin(child.main, setup)

    async def call(self, call: ScoreCall) -> ScoreReply:
        """Its reply; ``died`` where the process ended, or said nothing in time and was killed."""
        if self.dead:  # it died while this call was on its way here, or by it
            return ScoreReply(call.number, kind="died")
        waiting = asyncio.get_running_loop().create_future()
        self._calls[call.number] = waiting
        self.say(wire.packed(call))
        try:
            async with asyncio.timeout(self._limit()):
                reply: ScoreReply = await waiting
        except TimeoutError:
            reply = ScoreReply(call.number, kind="timeout")
            self.kill()
        finally:
            self._calls.pop(call.number, None)
        self.spoilt = self.spoilt or (reply.kind == "timeout" and not self.dead)
        return reply

    def _limit(self) -> float | None:
        if self._timeout_s is None or self.ready.has_limit:
            return None
        # A function in the main thread leaves its process no time to look at a clock.
        return self._timeout_s + (GRACE_S if self.ready.lanes > 1 else 0.0)

    def hear(self, message: ScoreReply) -> None:
        """See Process."""
        waiting = self._calls.get(message.number)
        if waiting and not waiting.done():
            waiting.set_result(message)

    def died(self, last_words: str) -> None:
        """See Process."""
        self.crowd = len(self._calls)
        for number, waiting in list(self._calls.items()):
            if not waiting.done():
                waiting.set_result(ScoreReply(number, kind="died", message=last_words))
