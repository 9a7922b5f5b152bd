"""Body of a scoring process, and its messages: veRL's reward loop, with a time limit on each call.

Invariants: only the explorer's channel keeps it alive; what a reward function does (raise, exit, fork, print)
is an answer's failure, reported in a reply, while the process itself lives.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import DictConfig

from trinity_compat.common.errors import RunError
from trinity_compat.common.process_limits import limit_memory
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.scoring import LocalScorer, Score
from trinity_compat.explorer.sandbox.child_setup import Pickled, Ready, Receive, Send

Kind = Literal["error", "timeout", "died"]
LARGEST = 64 << 20  # bytes of a reply: what a reward function returns about an answer goes into the database


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """Answers to a task that are scored in one call: a single one, or a group (``batch``)."""

    number: int
    task: Mapping[str, Any]
    parts: Sequence[Trajectory]


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """Scores in the order of the call's parts, or the failure: ``kind`` and ``message``."""

    number: int
    scores: Sequence[Score] = ()
    kind: Kind | None = None
    message: str = ""

    def pickled(self) -> Pickled:
        """Encode it; over LARGEST, as the failure of its call."""
        data = pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
        if len(data) <= LARGEST:
            return Pickled(data)
        what = f"it returned {len(data) >> 20} MB; {LARGEST >> 20} MB are the most"
        return ScoreReply(self.number, kind="error", message=what).pickled()


@dataclass(frozen=True, slots=True)
class RewardProcessReady(Ready):
    """First message of a scoring process.

    ``lanes``: calls that it takes at once; ``whole``: a call is a group. ``has_limit``: its manager has a
    time limit, which begins later than ours would (veRL's rate limits: after the wait for them).
    """

    lanes: int = 1
    whole: bool = False
    has_limit: bool = False


MANY = 1000  # concurrent calls where scoring waits for a service; as many as a Ray actor takes under veRL
_THREADS = min(32, (os.cpu_count() or 1) + 4)  # Python's own default, and so veRL's, for plain functions
# As in veRL: prime and remote call the function in a process's main thread, batch in the trainer's.
_IN_MAIN_THREAD = ("prime", "batch", "remote")


@dataclass(frozen=True, slots=True)
class RewardProcessSetup:
    """Configuration of a scoring process.

    ``config``: veRL's, composed; ``router``: as in LocalScorer; ``timeout_s``: for a call, None for no limit;
    ``memory_gb``: the limit of its allocations beyond those that it has when it is ready.
    """

    config: DictConfig
    router: str | None
    timeout_s: float | None
    memory_gb: float | None


class FunctionExited(Exception):
    """A reward function called sys.exit."""


def start(setup: RewardProcessSetup, send: Send) -> tuple[RewardProcessReady, Receive]:
    """Load the reward function; return the first message and the receiver of calls."""
    scoring = _Scoring(setup)
    if setup.memory_gb is not None:
        limit_memory(int(setup.memory_gb * 1e9))
    running: set[asyncio.Task[None]] = set()

    async def answer(call: ScoreCall) -> None:
        send((await scoring.reply(call)).pickled())

    def receive(call: ScoreCall) -> None:
        task = asyncio.ensure_future(answer(call))
        running.add(task)
        task.add_done_callback(running.discard)

    return scoring.ready, receive


class _Scoring:
    """LocalScorer, with its calls limited."""

    def __init__(self, setup: RewardProcessSetup) -> None:
        self._scorer = LocalScorer(setup.config, setup.router)
        waits = self._scorer.waits
        manager = setup.config.reward.reward_manager
        inline = manager.source == "register" and manager.name in _IN_MAIN_THREAD and not waits
        lanes = 1 if inline else MANY if waits else _THREADS
        self.ready = RewardProcessReady(
            lanes=lanes, whole=self._scorer.whole, has_limit=self._scorer.has_limit
        )
        # A main thread that computes cannot check a time limit: there the explorer does.
        self._timeout_s = None if inline or self._scorer.has_limit else setup.timeout_s
        executor = _Inline() if inline else _Threads(2 * _THREADS)
        asyncio.get_running_loop().set_default_executor(executor)

    async def reply(self, call: ScoreCall) -> ScoreReply:
        """Return the scores of a call, or its failure."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return ScoreReply(call.number, await self._scorer.group(call.task, call.parts))
        except TimeoutError:
            return ScoreReply(call.number, kind="timeout")
        except RunError as error:
            return ScoreReply(call.number, kind="error", message=error.message)
        except BaseException as error:
            return ScoreReply(call.number, kind="error", message=f"{type(error).__name__}: {error}")


class _Threads(ThreadPoolExecutor):
    """Threads in which sys.exit and fork are an answer's failure."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ThreadPoolExecutor."""
        return super().submit(_guarded, os.getpid(), fn, *args, **kwargs)


class _Inline(ThreadPoolExecutor):
    """The caller's thread: signals work there, as math-verify's time limits need."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ThreadPoolExecutor."""
        future: Future[Any] = Future()
        try:
            future.set_result(_guarded(os.getpid(), fn, *args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def _guarded(home: int, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``fn``, and end any copy of the process that it forked. Raises also FunctionExited."""
    try:
        return fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        raise FunctionExited(f"it called sys.exit({error})") from error
    finally:
        if os.getpid() != home:
            os._exit(0)
