"""Simulation of both sides of a run, event by event; the same seed gives the same numbers.

The rules are those of ``synchronizer/policy.py`` and of the explorer's scheduling: under style fixed a step's
answers have one exact version, so that the engines drain at each change; under fully_async a pool of tasks is
refilled as groups end, newer weights are loaded in the middle of answers, and a step waits for each group
that would be too old for the next one. In turns the engines stop in the middle of answers while a step is
trained. ``benchmarks/advise_accuracy.py`` holds it against the explorer's own
code and against real vLLM.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from trinity_compat.advise.model import Lane, Prediction, Schedule, Speeds, Workload

SEED = 1
WARM = 3  # steps that are left out
_ANSWERS = 60_000  # simulated at most, where that leaves the fewest steps
_STEPS = (4, 12)  # measured steps: fewest and most
_LARGEST = 16_384  # answers of a step; larger steps are scaled down
_SHOWN = 8  # steps in the timeline


def simulate(
    work: Workload, speeds: Speeds, schedule: Schedule, *, seed: int = SEED, steps: int | None = None
) -> Prediction:
    """Return the prediction for one mode, over ``steps`` steps after the first `WARM` ones."""
    work, speeds, engines = _scaled_down(work, speeds, schedule.engines)
    fewest, most = _STEPS
    measured = steps or max(fewest, min(most, _ANSWERS // (work.groups * work.answers) - WARM))
    sides = _Sides(work, speeds, schedule, engines, WARM + measured)
    tasks = _Tasks(work, seed)
    return _Following(sides, tasks).run() if schedule.follows else _in_lockstep(sides, tasks)


def _scaled_down(work: Workload, speeds: Speeds, engines: int) -> tuple[Workload, Speeds, int]:
    """Return a step of `_LARGEST` answers at most, with as many fewer engines, or slots of an engine."""
    answers = min(work.answers, _LARGEST)
    groups = max(1, min(work.groups, _LARGEST // answers))
    factor = work.groups * work.answers / (groups * answers)
    if factor == 1:
        return work, speeds, engines
    fewer = max(1, round(engines / factor))
    part = engines / factor / fewer  # of an engine that each of them is
    of_part = replace(
        speeds,
        slots=max(1, round(speeds.slots * part)),
        answer_s=speeds.answer_s / part,
        prefill=speeds.prefill and speeds.prefill * part,
        training=speeds.training / factor,
    )
    return replace(work, groups=groups, answers=answers), of_part, fewer


@dataclass(frozen=True, slots=True)
class _Sides:
    """A simulation's input, scaled down. ``engines``: simulated ones; ``steps``: of the trainer, in all."""

    work: Workload
    speeds: Speeds
    schedule: Schedule
    engines: int
    steps: int

    @property
    def gpus_each(self) -> float:
        """GPUs that a simulated engine stands for."""
        return self.schedule.engines * self.schedule.width / self.engines


class _Tasks:
    """Lengths of each group's answers, by the group's number; every mode gets the same."""

    def __init__(self, work: Workload, seed: int) -> None:
        self._work, self._seed = work, seed
        self._known: list[list[int]] = []
        self._source = random.Random(seed)

    def __getitem__(self, number: int) -> list[int]:
        while len(self._known) <= number:
            draw, work = self._work.lengths.draw, self._work
            self._known.append([draw(self._source) for _ in range(work.answers)])
        return self._known[number]

    def step(self, step: int) -> list[list[int]]:
        """Return the groups of a step, counted from 1."""
        first = (step - 1) * self._work.groups
        return [self[number] for number in range(first, first + self._work.groups)]

    def tokens(self, numbers: Iterable[int]) -> float:
        """Return the tokens that a trainer computes for these groups, prompts included."""
        work = self._work
        return sum(sum(self[number]) + work.answers * work.prompt for number in numbers)


@dataclass(slots=True)
class _Busy:
    """Work of a side over a stretch of time: GPU-seconds, and tokens made."""

    begin: float
    end: float
    gpus: float
    tokens: float = 0.0

    def within(self, begin: float, end: float) -> tuple[float, float]:
        """Return (GPU-seconds, tokens) of the part between ``begin`` and ``end``."""
        shared = min(self.end, end) - max(self.begin, begin)
        if shared <= 0:
            return 0.0, 0.0
        return shared * self.gpus, self.tokens * shared / (self.end - self.begin)


def _in_lockstep(sides: _Sides, tasks: _Tasks) -> Prediction:
    """Simulate style fixed: a step's answers begin when the version that they need is loaded."""
    work, speeds, schedule, steps = sides.work, sides.speeds, sides.schedule, sides.steps
    trained = [0.0]  # when the trainer had finished each step, and handed its weights over
    generated = 0.0
    busy: list[_Busy] = []
    lanes: list[Lane] = []
    turn = speeds.turn_s if schedule.in_turns else 0.0
    spans: list[tuple[float, float]] = []
    # Further steps are being generated while the last measured one is trained.
    for step in range(1, steps + schedule.offset + 2):
        version = max(0, step - 1 - schedule.offset)
        loading = speeds.handover_s if version else 0.0
        begin = max(generated, trained[version]) + loading + turn
        groups = tasks.step(step)
        of_engines = (groups[engine :: sides.engines] for engine in range(sides.engines))
        took = [(_batch_s(each, work, speeds), sum(map(sum, each))) for each in of_engines]
        ends = [begin + seconds for seconds, _ in took]
        share = sum(seconds for seconds, _ in took) / (len(took) * max(seconds for seconds, _ in took))
        busy += [
            _Busy(begin, end, sides.gpus_each, made)
            for end, (_, made) in zip(ends, took, strict=True)
            if made
        ]
        generated = max(ends)
        numbers = range((step - 1) * work.groups, step * work.groups)
        training_s = tasks.tokens(numbers) / (speeds.training * schedule.trainer)
        handed = speeds.handover_s if trained[1:] else 0.0
        start = max(generated + turn, trained[-1] + handed)
        if schedule.together:  # both sides stop for it
            start = max(generated, trained[-1]) + handed
        trained.append(start + training_s)
        busy.append(_Busy(start, start + training_s, schedule.trainer))
        spans.append((generated - begin, training_s))
        lanes += [
            Lane("explorer", step, version, begin, generated, share),
            Lane("trainer", step, step - 1, start, start + training_s, lag=step - 1 - version),
        ]
    first, last = trained[WARM], trained[steps]
    used, made = (sum(parts) for parts in zip(*(each.within(first, last) for each in busy), strict=True))
    return Prediction(
        step_s=(last - first) / (steps - WARM),
        used=used / (schedule.gpus * (last - first)),
        engines_full=made / (speeds.full_rate * sides.engines * (last - first)),
        staleness=float(schedule.offset),
        staleness_max=schedule.offset,
        training_s=_mean(spans[WARM:steps], 1),
        generation_s=_mean(spans[WARM:steps], 0),
        lanes=tuple(lane for lane in lanes if lane.step <= _SHOWN),
    )


def _mean(spans: Sequence[tuple[float, float]], part: int) -> float:
    return sum(span[part] for span in spans) / len(spans)


def _batch_s(groups: Sequence[Sequence[int]], work: Workload, speeds: Speeds) -> float:
    """Return the seconds that one engine takes for these groups."""
    prefill = work.prompt / speeds.prefill if speeds.prefill else 0.0
    waiting = deque(
        (length, 0.0 if place else prefill) for group in groups for place, length in enumerate(group)
    )
    ends: list[int] = []
    done, seconds = 0, 0.0
    while waiting or ends:
        while waiting and len(ends) < speeds.slots:
            length, before = waiting.popleft()
            seconds += before
            heapq.heappush(ends, done + length)
        running, at = len(ends), ends[0]
        seconds += (at - done) * speeds.decoding_s(running)
        done = at
        while ends and ends[0] == at:
            heapq.heappop(ends)
    return seconds


@dataclass(slots=True, order=True)
class _Group:
    """A group in flight or waiting to be trained. ``version``: of the weights when it began."""

    number: int
    version: int = field(compare=False)
    left: int = field(compare=False)


@dataclass(slots=True)
class _Engine:
    """An engine under fully_async: its clock counts decoding steps."""

    speeds: Speeds
    prompt: float
    active: list[tuple[float, int, float, _Group]] = field(default_factory=list)  # end, order, begin, group
    waiting: deque[tuple[int, float, _Group]] = field(default_factory=deque)
    done: float = 0.0  # decoding steps
    at: float = 0.0  # time up to which it was computed
    resumes: float = 0.0  # it decodes nothing before
    tokens: float = 0.0
    busy_s: float = 0.0
    begun: float = 0.0  # sum of the beginnings of what is active, in decoding steps

    def advance(self, now: float) -> None:
        """Decode until ``now``."""
        if self.active:
            self.busy_s += now - self.at
            if (since := max(self.at, self.resumes)) < now:
                made = (now - since) / self._step_s()
                self.done += made
                self.tokens += made * len(self.active)
        self.at = now

    def _step_s(self) -> float:
        return self.speeds.decoding_s(len(self.active))

    def pause(self, seconds: float) -> None:
        """Decode nothing for so long."""
        self.resumes = max(self.resumes, self.at) + seconds

    def leave(self, until: float) -> None:
        """Decode nothing until then, as the GPUs are the trainer's."""
        self.resumes = max(0.0, self.resumes - self.at) + until
        self.at = until

    def pop_ended(self) -> Iterator[_Group]:
        """Yield the group of each answer that has ended."""
        while self.active and self.active[0][0] <= self.done + 1e-6:
            _, _, begun, group = heapq.heappop(self.active)
            self.begun -= begun
            yield group

    def fill(self, order: Iterator[int]) -> None:
        """Begin waiting answers in the free slots."""
        while self.waiting and len(self.active) < self.speeds.slots:
            length, before, group = self.waiting.popleft()
            self.pause(before)
            self.begun += self.done
            heapq.heappush(self.active, (self.done + length, next(order), self.done, group))

    def next_end(self) -> float | None:
        """Return the time at which the next answer ends."""
        if not self.active:
            return None
        return max(self.at, self.resumes) + max(0.0, self.active[0][0] - self.done) * self._step_s()

    def context(self) -> float:
        """Return the tokens of the active answers with their prompts."""
        return len(self.active) * (self.done + self.prompt) - self.begun

    @property
    def room(self) -> int:
        """Return the free slots, less the answers that wait for one."""
        return self.speeds.slots - len(self.active) - len(self.waiting)


class _Following:
    """Style fully_async: engines never drain, the trainer takes the earliest finished groups."""

    def __init__(self, sides: _Sides, tasks: _Tasks) -> None:
        self._sides, self._tasks = sides, tasks
        self._work, self._speeds, self._schedule = sides.work, sides.speeds, sides.schedule
        self._steps = sides.steps
        self._turn_s = sides.speeds.turn_s if sides.schedule.in_turns else 0.0
        self._engines = [_Engine(sides.speeds, sides.work.prompt) for _ in range(sides.engines)]
        self._order = count()
        self._events: list[tuple[float, int, int, int]] = []  # time, order, engine (-1: trainer), stamp
        self._stamps = [0] * sides.engines
        self._next = 0
        self._version = 0
        self._flying: dict[int, _Group] = {}
        self._ready: list[_Group] = []
        self._step = 0  # the last that the trainer has finished
        self._training: float | None = None  # end of the step that is trained
        self._free = 0.0  # the trainer hands weights over until then
        self._trained: list[float] = []
        self._spent: list[float] = []
        self._ages: list[list[int]] = []
        self._lanes: list[Lane] = []
        self._loaded = (0.0, 0.0)  # time of the explorer's version, and its engines' busy seconds then
        self._marks: list[tuple[float, float, float]] = []  # at the end of each step: busy s, tokens, time

    def run(self) -> Prediction:
        """Simulate to the last step."""
        now = 0.0
        self._dispatch(now)
        while len(self._marks) < self._steps:
            now, _, engine, stamp = heapq.heappop(self._events)
            if engine < 0:
                self._trainer_event(now)
            elif stamp == self._stamps[engine]:
                self._engine_event(engine, now)
        (busy_from, made_from, begin), (busy_to, made_to, end) = self._marks[WARM - 1], self._marks[-1]
        seconds, schedule, steps = end - begin, self._schedule, self._steps - WARM
        training = self._spent[WARM : self._steps]
        ages = [age for each in self._ages[WARM : self._steps] for age in each]
        worked = (busy_to - busy_from) * self._sides.gpus_each + sum(training) * schedule.trainer
        return Prediction(
            step_s=seconds / steps,
            used=worked / (schedule.gpus * seconds),
            engines_full=(made_to - made_from) / (self._speeds.full_rate * self._sides.engines * seconds),
            staleness=sum(ages) / len(ages),
            staleness_max=max(ages),
            training_s=sum(training) / len(training),
            generation_s=seconds / steps,
            lanes=tuple(
                sorted((lane for lane in self._lanes if lane.step <= _SHOWN), key=lambda lane: lane.begin)
            ),
        )

    def _dispatch(self, now: float) -> None:
        """Begin tasks wherever a slot is free, at the engine with the most room."""
        prefill = self._work.prompt / self._speeds.prefill if self._speeds.prefill else 0.0
        staleness = self._schedule.staleness
        ahead = max(1, 1 + self._schedule.offset) if staleness is None else staleness
        # the first task that may not begin yet (`policy.last_step`)
        limit = (self._version + 1 + ahead) * self._work.groups
        touched = set()
        while self._next < limit:
            index = max(range(len(self._engines)), key=lambda each: self._engines[each].room)
            if self._engines[index].room <= 0:
                break
            if index not in touched:
                self._engines[index].advance(now)
                touched.add(index)
            lengths = self._tasks[self._next]
            group = _Group(self._next, self._version, len(lengths))
            self._flying[group.number] = group
            self._engines[index].waiting.extend(
                (length, 0.0 if place else prefill, group) for place, length in enumerate(lengths)
            )
            self._engines[index].fill(self._order)
            self._next += 1
        for index in touched:
            self._plan(index)

    def _plan(self, index: int) -> None:
        """Enter the engine's next event, which replaces its former one."""
        self._stamps[index] += 1
        if (at := self._engines[index].next_end()) is not None:
            heapq.heappush(self._events, (at, next(self._order), index, self._stamps[index]))

    def _engine_event(self, index: int, now: float) -> None:
        engine = self._engines[index]
        engine.advance(now)
        for group in engine.pop_ended():
            group.left -= 1
            if not group.left:
                del self._flying[group.number]
                heapq.heappush(self._ready, group)
        engine.fill(self._order)
        self._plan(index)
        self._dispatch(now)
        self._train(now)

    def _train(self, now: float) -> None:
        """Begin the next step, if its groups are there and the trainer is free."""
        step, staleness = self._step + 1, self._schedule.staleness
        if self._training is not None or now < self._free or len(self._ready) < self._work.groups:
            return
        oldest = next(iter(self._flying.values()), None)  # groups begin in the order of versions
        if staleness is not None and oldest and step - oldest.version > staleness:
            return  # it would be too old for the next step; most steps that wait do for this reason
        taken = heapq.nsmallest(self._work.groups, self._ready)
        if staleness is not None and self._is_too_late(step, staleness, taken):
            return
        for _ in taken:
            heapq.heappop(self._ready)
        seconds = self._tasks.tokens(group.number for group in taken) / (
            self._speeds.training * self._schedule.trainer
        )
        ages = [step - 1 - group.version for group in taken]
        self._ages.append(ages)
        self._spent.append(seconds)
        begin = now + self._turn_s
        self._training = begin + seconds
        self._lanes.append(Lane("trainer", step, step - 1, begin, self._training, lag=max(ages)))
        if self._schedule.in_turns:
            for index, engine in enumerate(self._engines):
                engine.advance(now)
                engine.leave(self._training)
                self._plan(index)
        heapq.heappush(self._events, (self._training, next(self._order), -1, 0))

    def _is_too_late(self, step: int, staleness: int, taken: Sequence[_Group]) -> bool:
        """Return whether so many groups would be left that a step finds one too old (`StalenessGate`)."""
        left = Counter(group.version for group in (*self._flying.values(), *self._ready))
        left.subtract(group.version for group in taken)
        due = 0
        for version in sorted(left):
            due += left[version]
            if due > (version + 1 + staleness - step) * self._work.groups:
                return True
        return False

    def _trainer_event(self, now: float) -> None:
        if self._training is None:  # the handover has ended
            for engine in self._engines:
                engine.advance(now)
            # the explorer's work with the version that is replaced now
            begin, before = self._loaded
            busy_s = sum(engine.busy_s for engine in self._engines)
            share = (busy_s - before) / (len(self._engines) * (now - begin)) if now > begin else 0.0
            self._lanes.append(Lane("explorer", self._version + 1, self._version, begin, now, share))
            self._loaded = (now, busy_s)
            self._version = self._step
            self._dispatch(now)
            self._train(now)
            return
        self._training, self._step = None, self._step + 1
        self._free = now + self._turn_s + self._speeds.handover_s
        for index, engine in enumerate(self._engines):
            engine.advance(now)
            again = engine.context() / self._speeds.prefill if self._speeds.prefill else 0.0
            engine.pause(self._free - now + again)
            self._plan(index)
        self._marks.append(
            (
                sum(engine.busy_s for engine in self._engines),
                sum(engine.tokens for engine in self._engines),
                now,
            )
        )
        heapq.heappush(self._events, (self._free, next(self._order), -1, 0))
