"""The explorer's own code on simulated engines, under a clock that jumps from event to event.

``run(...)`` gives what it returns without waiting for anything: the loop's time moves only when nothing is
left to do at the present one. Lengths are drawn by task and place in the group, so that every arrangement
of the same run answers the same.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from trinity_compat.buffer import HistoryChanged
from trinity_compat.buffer.leases import TaskShare, equal_part
from trinity_compat.buffer.live_tasks import LiveTasks
from trinity_compat.buffer.model import (
    BufferState,
    EvalRequest,
    Group,
    LeaseHolder,
    PendingTasks,
    TaskQuery,
    WeightVersion,
)
from trinity_compat.explorer.engine.trajectory import RolloutResult, RolloutTask
from trinity_compat.explorer.engine.weights import INITIAL
from trinity_compat.explorer.rollout.routing import EngineLoads
from trinity_compat.explorer.scheduling import (
    loop,
    report,
    scheduler,
    step_work,
    task_allocation,
    version_selector,
)
from trinity_compat.job.run_spec import RunSpec, SyncSpec

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """A selector that moves the loop's clock on instead of sleeping."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing will ever happen")
        self.now += 0.0 if ready else timeout or 0.0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds pass at once."""

    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


@contextmanager
def _patched(clock: Callable[[], float]) -> Iterator[None]:
    with ExitStack() as patches:
        for module in (loop, report, scheduler, task_allocation, version_selector):
            patches.enter_context(mock.patch.multiple(module, time=SimpleNamespace(monotonic=clock)))
        patches.enter_context(mock.patch.object(asyncio, "to_thread", _at_once))
        yield


async def _at_once(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """In this thread: the loop would not wait for another one."""
    return function(*args, **kwargs)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``main`` in virtual time from 0 and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, _patched(runner.get_loop().time):
        return runner.run(main())


@dataclass(slots=True)
class _Answering:
    """A job whose answers are under way."""

    job: RolloutTask
    left: int
    done: asyncio.Queue[RolloutResult | Exception]


class Engine:
    """Decodes up to ``slots`` answers at a time; a step with b of them takes ``step_s(b)`` seconds and gives
    each a token. ``ended`` answers and ``tokens`` ever made."""

    def __init__(self, slots: int, step_s: Callable[[int], float], told: Callable[[int], None]) -> None:
        self._slots, self._step_s, self._told = slots, step_s, told
        self._active: list[tuple[float, int, _Answering]] = []
        self._queue: deque[tuple[int, _Answering]] = deque()
        self._steps, self._since, self._count = 0.0, 0.0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._tokens, self.ended, self.dead = 0.0, 0, False

    def add(self, answering: _Answering, lengths: Sequence[int]) -> None:
        """Begin them, or queue them."""
        self._queue.extend((length, answering) for length in lengths)
        self._turn()

    def drop(self, done: asyncio.Queue[RolloutResult | Exception]) -> None:
        """Abort what answers to ``done``."""
        self._advance()
        kept = [each for each in self._active if each[2].done is not done]
        queued = [each for each in self._queue if each[1].done is not done]
        dropped = len(self._active) + len(self._queue) - len(kept) - len(queued)
        heapq.heapify(kept)
        self._active, self._queue = kept, deque(queued)
        self.ended += dropped
        self._told(self.ended)
        self._turn()

    def die(self, error: Exception) -> None:
        """Everything under way fails."""
        self.dead = True
        waiting = [each for _, _, each in self._active] + [each for _, each in self._queue]
        for each in {id(one): one for one in waiting}.values():
            each.done.put_nowait(error)
        self._active, self._queue = [], deque()

    def tokens(self) -> float:
        """Tokens made up to now."""
        self._advance()
        return self._tokens

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._active:
            made = (now - self._since) / self._step_s(len(self._active))
            self._steps += made
            self._tokens += made * len(self._active)
        self._since = now

    def _turn(self) -> None:
        self._advance()
        while self._active and self._active[0][0] <= self._steps + 1e-6:
            self._finish(heapq.heappop(self._active)[2])
        while self._queue and len(self._active) < self._slots:
            length, answering = self._queue.popleft()
            self._count += 1
            heapq.heappush(self._active, (self._steps + length, self._count, answering))
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._active:
            steps = max(0.0, self._active[0][0] - self._steps)
            wait_s = steps * self._step_s(len(self._active))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._turn)

    def _finish(self, answering: _Answering) -> None:
        self.ended += 1
        self._told(self.ended)
        answering.left -= 1
        if not answering.left:
            answering.done.put_nowait(RolloutResult(answering.job.task_no, ()))


class Engines:
    """Replacement for ``Workers``: the same routing, over simulated engines.

    ``pooled``: one engine with the slots of all and the speed of each, as if any of them could continue any
    answer.
    """

    def __init__(
        self,
        count: int,
        length: Callable[[RolloutTask, int], int],
        *,
        by_load: bool,
        slots: int = 256,
        step_s: Callable[[int], float] = lambda batch: 0.010 + 0.00002 * batch,
        pooled: bool = False,
    ) -> None:
        self._length, self.version, self.begun = length, 0, list[int]()
        shares, self._full = (count if pooled else 1), count * slots / step_s(slots)
        engines = 1 if pooled else count
        self._loads = EngineLoads(engines, slots * shares, by_load=by_load)

        def engine(index: int) -> Engine:
            return Engine(
                slots * shares,
                lambda batch: step_s(-(-batch // shares)),
                lambda ended: self._loads.ended(index, ended),
            )

        self.all = [engine(index) for index in range(engines)]

    @property
    def rate(self) -> float:
        """Tokens a second with every slot in use."""
        return self._full

    def tokens(self) -> float:
        """Tokens made up to now."""
        return sum(engine.tokens() for engine in self.all)

    def room(self) -> int:
        """Return the free slots, as ``Workers.room``."""
        return self._loads.room()

    async def load(self, version: WeightVersion) -> None:
        """Load a version at once, as ``Workers.load``."""
        self.version = version.version

    async def run(self, jobs: Sequence[RolloutTask]) -> AsyncIterator[RolloutResult]:
        """Generate the answers of a job, as ``Workers.run``."""
        done: asyncio.Queue[RolloutResult | Exception] = asyncio.Queue()
        self.begun += [job.task_no for job in jobs if not job.validate]
        shares = zip(self.all, self._loads.share(jobs), strict=True)
        busy = [(engine, share) for engine, share in shares if share]
        for engine, share in busy:
            for job in share:
                lengths = [self._length(job, run) for run in range(job.n)]
                engine.add(_Answering(job, job.n, done), lengths)
        left = len(jobs)
        try:
            while left:
                found = await done.get()
                if isinstance(found, Exception):
                    raise found
                left -= 1
                yield found
        finally:
            for engine, _ in busy if left else ():
                engine.drop(done)


class Maker:
    """Replacement for ``GroupBuilder``: groups without texts. ``score`` is called for each one."""

    def __init__(self, engines: Engines, score: Callable[[RolloutTask], None] = lambda job: None) -> None:
        self._engines, self._score = engines, score

    def room(self) -> int:
        return self._engines.room()

    async def load(self, version: WeightVersion) -> None:
        await self._engines.load(version)

    async def groups(self, work: step_work.StepWork, version: int, history: int) -> AsyncIterator[Group]:
        jobs = {job.task_no: job for job in work.jobs}
        async for rollout in self._engines.run(work.jobs):
            number = rollout.task_no
            self._score(jobs[number])
            part = SimpleNamespace(min_model_version=version, max_model_version=self._engines.version)
            key = f"h{history}/{work.kind}/{number}"
            yield Group(key, number, {}, work.step_of(number), (part,), kind=work.kind)  # type: ignore[arg-type]


@dataclass
class MemoryBuffer:
    """The parts of a buffer that explorer and trainer need here.

    ``stored``: live groups of kind train by task; ``commits``: the tasks of each transaction.
    """

    batch: int
    stored: dict[int, Group] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)
    commits: list[list[int]] = field(default_factory=list)
    versions: list[WeightVersion] = field(default_factory=list)
    evaluations: list[EvalRequest] = field(default_factory=list)
    evaluated: dict[int, list[Group]] = field(default_factory=dict)
    stale: int = 0
    done: set[int] = field(default_factory=set)
    state: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    holders: dict[int, LeaseHolder] = field(default_factory=dict)  # those that live, by place
    leases: dict[tuple[str, int], tuple[LeaseHolder, int]] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    drawn: dict[str, dict[int, Group]] = field(default_factory=dict)
    _complete: int = 0
    _below: int = 0  # as ``leased_below``: all before it are stored or leased by who lives
    _living: frozenset[LeaseHolder] = frozenset()
    _tokens: dict[str, dict[int, str]] = field(default_factory=dict)
    _versions: dict[LeaseHolder, Counter[int]] = field(
        default_factory=dict
    )  # leases of kind train by version

    def history(self) -> int:
        return self.generation

    def participants(self) -> list[Any]:
        return [SimpleNamespace(role="trainer", state="running")]

    def glance(self) -> BufferState:
        return BufferState(
            self.generation, bool(self.state.get("finished")), self.next_eval(), self.latest_version()
        )

    def get_state(self, key: str, default: Any = None) -> Any:
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        self.state[key] = value

    def enter(self, holder: LeaseHolder, *, ready: bool, lease_s: float) -> None:
        self.holders[holder.place] = holder
        self.ready |= {holder.place} if ready else set()

    def dies(self, place: int) -> None:
        """Nobody has heard of that explorer for long."""
        self.holders.pop(place, None)

    def places(self) -> dict[int, bool]:
        return {place: place in self.ready for place in self.holders}

    def _held(self, kind: str) -> dict[int, str]:
        """Tokens by task, of those who live: not gathered anew while nobody comes or dies."""
        living = frozenset(self.holders.values())
        if living != self._living:
            self._living, self._tokens, self._below = living, {}, 0
            for (each, number), (holder, _) in self.leases.items():
                if holder in living:
                    self._tokens.setdefault(each, {})[number] = holder.token
        return self._tokens.setdefault(kind, {})

    def _share(self, asked: TaskQuery) -> TaskShare:
        held = self._held(asked.kind)
        if asked.kind == "train":
            self.missing_tasks(upto=0, limit=0)
            live = LiveTasks(self._complete, self.stored.keys(), self._complete)  # type: ignore[arg-type]
        else:
            live = LiveTasks(asked.first, frozenset(self.drawn.get(asked.kind, ())), asked.first)
        return TaskShare(asked, held, self.places(), live)

    def _free(self, asked: TaskQuery) -> Iterator[int]:
        """Free tasks from the watermark on, as ``WatermarkView.free``."""
        held, stored, token = self._held("train"), self.stored, asked.holder.token
        again = (number for number in sorted(asked.again) if number < min(self._below, asked.upto))
        yield from (number for number in again if held.get(number) == token and number not in stored)
        for number in range(max(self._below, self._complete), asked.upto):
            if number not in stored and number not in asked.have and held.get(number, token) == token:
                yield number

    def free_tasks(self, asked: TaskQuery, *, limit: int) -> list[int]:
        near = asked.kind == "train" and not asked.by_place
        return [*itertools.islice(self._free(asked) if near else self._share(asked).free(), limit)]

    def lease_tasks(self, asked: TaskQuery, *, limit: int, version: int, history: int) -> list[int]:
        if history != self.generation:
            raise HistoryChanged("a resume")
        if self.holders.get(asked.holder.place) != asked.holder:
            return []
        near = asked.kind == "train" and not asked.by_place
        taken = self._near(asked, limit) if near else self._share(asked).take(limit)
        for number in taken:
            self._ends(asked.kind, number)
            self.leases[asked.kind, number] = asked.holder, version
        if asked.kind == "train":
            self._versions.setdefault(asked.holder, Counter())[version] += len(taken)
        self._held(asked.kind).update(dict.fromkeys(taken, asked.holder.token))
        return taken

    def _near(self, asked: TaskQuery, limit: int) -> list[int]:
        self.missing_tasks(upto=0, limit=0)
        ready = len(self.ready & self.holders.keys() | {asked.holder.place})
        limit = min(limit, equal_part(asked.upto - len(self.stored), ready, len(asked.have)))
        found = [*itertools.islice(self._free(asked), limit + 1)]
        if len(found) <= limit:
            self._below = max(self._below, asked.upto)
        elif found[-1] >= self._below:
            self._below = found[-1]
        return found[:limit]

    def _ends(self, kind: str, number: int) -> None:
        holder, version = self.leases.pop((kind, number), (None, 0))
        if holder and kind == "train":
            self._versions[holder][version] -= 1

    def pending(self, holder: LeaseHolder, *, upto: int) -> PendingTasks:
        others = Counter[int]()
        for each in self.holders.values():
            if each != holder:
                others.update(self._versions.get(each, {}))
        return PendingTasks(len(self.stored), +others)

    def depth(self, kind: str) -> dict[str, int]:
        return {"ready": len(self.drawn.get(kind, ()))}

    def groups(self, kind: str) -> list[Group]:
        return [group for _, group in sorted(self.drawn.get(kind, {}).items())]

    def settle_drawing(self, kept: Sequence[Group], *, kind: str, then: dict[str, Any], history: int) -> bool:
        if not self.drawn.pop(kind, None):
            return False
        self.commits.append([group.task_no for group in kept])
        self.stored |= {group.task_no: group for group in kept}
        self.state |= then
        return True

    def missing_tasks(self, *, upto: int, limit: int) -> list[int]:
        while self._complete in self.stored:
            self._complete += 1
        found: list[int] = []
        for number in range(self._complete, upto):
            if len(found) == limit:
                break
            if number not in self.stored:
                found.append(number)
        return found

    def put_groups(
        self, groups: Sequence[Group], *, history: int | None = None, holder: LeaseHolder | None = None
    ) -> int:
        if history != self.generation:
            raise HistoryChanged("a resume")
        for group in groups:
            if self.leases.get((group.kind, group.task_no), (None, 0))[0] == holder:
                self._ends(group.kind, group.task_no)
                self._held(group.kind).pop(group.task_no, None)
        if groups[0].kind.startswith("draw:"):
            of_kind = self.drawn.setdefault(groups[0].kind, {})
            new = {group.task_no: group for group in groups if group.task_no not in of_kind}
            of_kind |= new
            return len(new)
        if groups[0].kind != "train":
            self.evaluated[int(groups[0].kind.removeprefix("eval:"))] = list(groups)
            return len(groups)
        self.commits.append([group.task_no for group in groups])
        new = [group for group in groups if group.task_no not in self.stored]
        self.stored |= {group.task_no: group for group in new}
        return len(new)

    def claim(self, step: int, limit: int | None) -> list[int] | None:
        """The earliest tasks that are ready, enough for ``step``; those that are too old are dropped."""
        if len(self.stored) - len(self.trained) < self.batch:
            return None
        ready = sorted(self.stored.keys() - self.trained.keys())
        if limit is not None:
            ready = [number for number in ready if not self._drops(number, step - 1 - limit)]
        if len(ready) < self.batch:
            return None
        self.trained |= dict.fromkeys(ready[: self.batch], step)
        return ready[: self.batch]

    def _drops(self, number: int, oldest: int) -> bool:
        if self.stored[number].experiences[0].min_model_version >= oldest:
            return False
        self.drop(number)
        return True

    def drop(self, number: int) -> None:
        """Count a group as dropped for its age."""
        del self.stored[number]
        self.stale, self._complete = self.stale + 1, min(self._complete, number)
        self._below = min(self._below, number)

    def publish_version(self, version: WeightVersion) -> None:
        self.versions.append(version)

    def latest_version(self) -> WeightVersion | None:
        return self.versions[-1] if self.versions else None

    def get_version(self, version: int) -> WeightVersion | None:
        return next((each for each in self.versions if each.version == version), None)

    def next_eval(self) -> EvalRequest | None:
        return next((each for each in self.evaluations if each.request_id not in self.done), None)

    def finish_eval(self, request: EvalRequest) -> None:
        self.done.add(request.request_id)


class Stream:
    """Replacement for ``TaskStream``."""

    def __init__(self, batch: int) -> None:
        self.order = SimpleNamespace(batch_size=batch, steps=lambda epochs: 10**6 * epochs)

    def task(self, number: int) -> dict[str, Any]:
        return {}

    row = task

    def place(self, number: int) -> tuple[int, int]:
        return 0, number

    taskset_of = place

    def __len__(self) -> int:
        return self.order.batch_size


def make_spec(batch: int, n: int, steps: int, sync: SyncSpec, **fields: Any) -> RunSpec:
    """Return a RunSpec with the fields that an explorer's scheduler reads."""
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "n": n}
    verl = {
        "actor_rollout_ref": {"rollout": {**sampling, "val_kwargs": {**sampling, "n": 1}}, "model": {}},
        "algorithm": fields.pop("algorithm", {}),
        "data": {"seed": 1, "train_batch_size": batch},
        "trainer": {"total_epochs": 1},
    }
    return RunSpec("", "", verl, 1, steps, sync, **fields)


def version_of(step: int) -> WeightVersion:
    """A version that is there without a file."""
    return replace(INITIAL, version=step)


class Silent:
    """Heart and report of an explorer that nobody watches."""

    def __init__(self) -> None:
        self.state, self.steps = "", list[int]()

    def check(self) -> None:
        """All is well."""

    def step(self, step: int, *_: Any) -> None:
        self.steps.append(step)
