"""The modes of a launch: each planned as `run` would plan it, and simulated.

A split that cannot run is refused in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_compat.advise.model import ModeAdvice, Schedule, SplitAdvice
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import section_at, value_at
from trinity_compat.job.gpus import ENGINES, check_gpus, engine_count, engine_width, trainer_gpus
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.advice.facts import Facts, gpus_beside, gpus_of
from trinity_compat.run.advice.savings import saving
from trinity_compat.run.plan import estimates, gpu_split, single_side
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.run.plan.verl_view import ROLLOUT, VerlView

STOCK, COLOCATE, ONE_STEP_OFF = "stock veRL, lockstep", "turns on all GPUs", "veRL's one_step_off_policy"
FOLLOWS = "fully_async"
_SEARCHED = 8  # splits that are simulated at most
SEARCH_STEPS = 4
_PLANNED = 64  # splits that are planned at most
SHORTER = 0.97  # of a step, for a mode to be called faster
_STALENESS = (1, 2, 3)

Split = tuple[int, int, int, str]  # engines, GPUs of each, GPUs of the trainer, the reason against it


@dataclass(frozen=True, slots=True)
class Modes:
    """Plans of a launch in each mode. ``gpus``: of both sides."""

    source: Source
    options: RunOptions
    base: RunSpec
    gpus: int

    def plan(self, mode: str, sets: Sequence[str]) -> RunSpec:
        """Return the plan of a mode with further settings. Raises UserError where it cannot run."""
        options = replace(self.options, mode=mode, sets=(*self.options.sets, *sets))  # type: ignore[arg-type]
        spec = make_plan(self.source.config, options, cwd=Path.cwd(), device="cuda").spec
        check_gpus(spec, "trainer", self.gpus + gpus_beside(self.base))
        if mode == "colocate" and (why := single_side.fault(VerlView.of(spec.verl), trainer_gpus(spec.verl))):
            raise UserError(
                f"{trainer_gpus(spec.verl)} GPUs in turns: {why}, and veRL ends at its first update"
            )
        return spec

    def settings(self, style: str, offset: int = 0, staleness: int | None = None) -> list[str]:
        """Return the settings of a style that differ from the launch's plan."""
        r, sync = self.base.updates_per_step, self.base.sync
        wanted: list[tuple[str, object, object]] = [
            ("synchronizer.sync_style", style, sync.style),
            ("synchronizer.sync_interval", r, sync.interval * r),
            ("synchronizer.sync_offset", offset * r, sync.offset * r),
        ]
        sets = [f"{key}={value}" for key, value, now in wanted if value != now]
        if staleness is not None:
            sets += [
                "algorithm.sample_strategy=staleness_control",
                f"algorithm.sample_strategy_args.max_staleness={staleness * r}",
            ]
        return sets

    def in_turns(self) -> RunSpec | None:
        """Return the plan of mode colocate; None where there is none."""
        try:
            return self.plan("colocate", self.settings("fixed"))
        except UserError:
            return None

    def words(self, mode: str) -> tuple[str, ...]:
        """Return the option that a mode needs; none for that of the launch's plan."""
        return () if mode == self.base.mode else (f"--mode {mode}",)

    def split(self) -> RunSpec:
        """Return the plan of the split that `run` chooses itself; the launch's plan where there is none."""
        try:
            return self.plan("both", self.settings("fixed"))
        except UserError:
            return self.base

    @property
    def unproven(self) -> str:
        """A note on turns on the launch's GPUs."""
        return gpu_split.unproven(self.gpus, int(value_at(self.base.verl, "trainer.nnodes") or 1))

    def splits(self, width: int) -> list[Split]:
        """Return every split.

        Engines have ``width`` GPUs. Of more than `_PLANNED` splits evenly spaced ones.
        """
        found = []
        most = max(1, (self.gpus - 1) // width)
        for engines in range(1, most + 1, -(-most // _PLANNED)):
            left = self.gpus - engines * width
            try:
                spec = self.plan("both", [*self.settings("fixed"), f"{ENGINES}={engines}"])
                given = (_engines(spec), _width(spec), trainer_gpus(spec.verl))
                is_taken = given == (engines, width, left)
                why = "" if is_taken else f"`run` would take {given[2]} GPUs for training"
            except UserError as error:
                why = error.message.partition(" for the explorer: ")[2] or error.message
            found.append((engines, width, left, why))
        return found


def _engines(spec: RunSpec) -> int:
    return engine_count(section_at(spec.verl, ROLLOUT), "cuda") * spec.explorers


def _width(spec: RunSpec) -> int:
    return engine_width(section_at(spec.verl, ROLLOUT), "cuda")


def all_in_turns(
    modes: Modes, facts: Facts, seed: int, limits: Sequence[int] = _STALENESS
) -> list[ModeAdvice]:
    """Return stock veRL's turns on the launch's GPUs; and those of a run, or its reason against them.

    ``limits``: of the staleness under fully_async.
    """
    turns = modes.in_turns() or modes.base
    facts = replace(facts, utilization=estimates.utilization(turns.verl))
    # Stock veRL's turns on the launch's GPUs, with the engines of `turns`.
    width = _width(turns)
    schedule = Schedule(STOCK, max(1, modes.gpus // width), width, modes.gpus, in_turns=True)
    found = facts.simulated(schedule, seed, turn_s=facts.turn_s(replace(modes.base, offloads=False)))
    memory = saving(facts, schedule, turns.verl, keeps=True)
    return [ModeAdvice(STOCK, None, schedule, found, memory=memory), *_turn_modes(modes, facts, seed, limits)]


def _turn_modes(modes: Modes, facts: Facts, seed: int, limits: Sequence[int]) -> Iterator[ModeAdvice]:
    """Yield each mode in turns, or `run`'s refusal of it."""
    named = [(COLOCATE, Schedule(COLOCATE, 1, 1, 1, in_turns=True), modes.settings("fixed"))]
    for limit in limits:
        title, sets = f"{FOLLOWS} in turns, staleness {limit}", modes.settings(FOLLOWS, 0, limit)
        named.append((title, Schedule(title, 1, 1, 1, in_turns=True, follows=True, staleness=limit), sets))
    for title, schedule, sets in named:
        words = (*modes.words("colocate"), *as_words(sets))
        try:
            spec = modes.plan("colocate", sets)
        except UserError as error:
            yield ModeAdvice(title, words, why=error.message)
            continue
        placed = replace(schedule, engines=_engines(spec), width=_width(spec), trainer=gpus_of(spec))
        found = facts.simulated(placed, seed, turn_s=facts.turn_s(spec))
        memory = saving(facts, placed, spec.verl, keeps=not spec.offloads)
        yield ModeAdvice(title, words, placed, found, memory=memory)


def as_words(sets: Sequence[str]) -> list[str]:
    """Return settings as words of the command line."""
    return [f"--set {item}" for item in sets]


def split_modes(
    modes: Modes, facts: Facts, seed: int, own: Schedule | None
) -> tuple[list[ModeAdvice], tuple[SplitAdvice, ...]]:
    """Return each mode with a split, at its fastest one or that of ``own``, and all splits."""
    split = modes.split()
    facts = replace(facts, utilization=estimates.utilization(split.verl))
    splits = modes.splits(_width(split)) if modes.gpus > 1 else []
    able = [split for split in splits if not split[3]]
    chosen = tried(able)
    if own and chosen:
        half = own.engines if not own.in_turns else own.engines // 2
        chosen = [min(able, key=lambda split: abs(split[0] - half))]
    rows, times = [], dict[int, dict[str, float]]()
    for title, sets, schedule, words in _with_split(modes):
        if not chosen:
            why = splits[0][3] if splits else "one GPU cannot be split"
            rows.append(ModeAdvice(title, words, why=why))
            continue
        best = None
        for engines, width, left, _ in chosen:
            placed = replace(schedule, engines=engines, width=width, trainer=left)
            step_s = facts.simulated(placed, seed, steps=SEARCH_STEPS).step_s
            times.setdefault(engines, {})[title] = step_s
            if best is None or step_s < best[0]:
                best = (step_s, placed)
        assert best is not None
        rows.append(_at_best(modes, facts, seed, title, sets, words, best[1]))
    found = tuple(
        SplitAdvice(engines * width, left, times.get(engines, {}), why)
        for engines, width, left, why in splits
    )
    return rows, found


def tried(able: Sequence[Split]) -> Sequence[Split]:
    """Return `_SEARCHED` of the splits at most, evenly spaced."""
    return able[:: -(-len(able) // _SEARCHED)] if able else []


def _at_best(
    modes: Modes,
    facts: Facts,
    seed: int,
    title: str,
    sets: Sequence[str],
    words: tuple[str, ...] | None,
    schedule: Schedule,
) -> ModeAdvice:
    """Return a mode at its fastest split, or `run`'s refusal of the mode."""
    engines, verl = f"{ENGINES}={schedule.engines}", modes.split().verl
    if words is not None:
        words = (*words, f"--set {engines}")
        try:
            planned = modes.plan("both", [*sets, engines])
            facts, verl = replace(facts, utilization=estimates.utilization(planned.verl)), planned.verl
        except UserError as error:
            return ModeAdvice(title, words, why=error.message)
    found = saving(facts, schedule, verl)
    return ModeAdvice(title, words, schedule, facts.simulated(schedule, seed), memory=found)


def _with_split(
    modes: Modes,
) -> Iterator[tuple[str, list[str], Schedule, tuple[str, ...] | None]]:
    """Yield (title, settings, schedule without GPUs, words of the command) of each mode with a split."""
    both = modes.words("both")
    for offset in (0, 1):
        title, sets = f"split, offset {offset}", modes.settings("fixed", offset)
        yield title, sets, Schedule(title, 1, 1, 1, offset=offset), (*both, *as_words(sets))
    yield ONE_STEP_OFF, [], Schedule(ONE_STEP_OFF, 1, 1, 1, offset=1, together=True), None
    for limit in _STALENESS:
        title, sets = f"{FOLLOWS}, staleness {limit}", modes.settings(FOLLOWS, 0, limit)
        schedule = Schedule(title, 1, 1, 1, follows=True, staleness=limit)
        yield title, sets, schedule, (*both, *as_words(sets))
