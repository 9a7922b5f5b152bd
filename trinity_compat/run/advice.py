"""Advice on the modes of a launch: its plan in each mode, and the simulation of that plan.

Every mode is planned as `run` would plan it, so a split that cannot run is refused in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_compat.advise import cards, lengths, memory, report, speeds
from trinity_compat.advise.cards import Card
from trinity_compat.advise.lengths import AnswerLengths
from trinity_compat.advise.memory import EngineMemory, ModeMemory, Training
from trinity_compat.advise.model import (
    Advice,
    ModeAdvice,
    Prediction,
    Schedule,
    Speeds,
    SplitAdvice,
    Workload,
)
from trinity_compat.advise.model_shape import ModelShape
from trinity_compat.advise.simulate import SEED, simulate
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.job.gpus import ENGINES, check_gpus, engine_count, engine_width, shares, trainer_gpus
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir import measured
from trinity_compat.run.plan import estimates, gpu_split, ignored_keys, single_side
from trinity_compat.run.plan.build_plan import make_plan
from trinity_compat.run.plan.estimates import size
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.run.plan.verl_view import ROLLOUT, VerlView
from trinity_compat.synchronizer.policy import explorer_interval, trainer_interval

STOCK, COLOCATE, ONE_STEP_OFF = "stock veRL, lockstep", "turns on all GPUs", "veRL's one_step_off_policy"
FOLLOWS = "fully_async"
_SEARCHED = 8  # splits that are simulated at most
SEARCH_STEPS = 4
_PLANNED = 64  # splits that are planned at most
_MOST_GPUS = 4096
SHORTER = 0.97  # of a step, for a mode to be called faster
_DEFAULT_MEAN = 3 / 16  # of the longest answer, where no lengths are given
_STALENESS = (1, 2, 3)
_FITTED, _SLOWEST = 16, 1e9  # bisections of a factor of time, and the largest one


@dataclass(frozen=True, slots=True)
class Question:
    """Facts that the user gives; None where they come from the launch, a job, or an assumption.

    ``answer_length``: mean and 99th percentile in tokens. ``tokens_per_s``: made by one GPU of an engine with
    all slots in use; ``train_tokens_per_s``: trained by one GPU. ``model_size``: parameters.
    """

    gpus: int | None = None
    answer_length: tuple[float, float] | None = None
    prompt_length: float | None = None
    tokens_per_s: float | None = None
    train_tokens_per_s: float | None = None
    model_size: float | None = None
    card: str | None = None
    card_gb: float | None = None
    job: Path | None = None
    seed: int = SEED


@dataclass(frozen=True, slots=True)
class Facts:
    """A launch as the simulation takes it, with the sentences that say where the numbers come from."""

    work: Workload
    speeds: Speeds  # of an engine of one GPU
    shape: ModelShape
    card: Card
    training: Training | None  # None: memory of the launch's training engine is not estimated
    utilization: float
    longest: int
    assumptions: tuple[str, ...]

    def engine(self, schedule: Schedule) -> EngineMemory:
        """Return the memory of an engine's GPU in a mode."""
        return memory.of_engine(
            self.shape,
            width=schedule.width,
            slots=self.speeds.slots,
            utilization=self.utilization,
            card_gib=self.card.memory_gib,
        )

    def memory(self, schedule: Schedule, verl: Tree | None = None) -> ModeMemory:
        """Return the memory of both sides. ``verl``: of a trainer that keeps its state beside the engines."""
        sizes = self.training
        trainer = memory.of_trainer(self.shape, sizes, schedule.trainer) if sizes else None
        stays = 0.0
        if sizes and verl:
            stays = memory.resident(self.shape, estimates.resident_parts(verl, sizes), schedule.trainer)
        return ModeMemory(trainer, self.engine(schedule), self.card.memory_gib, stays, self.longest)


def gpu_sets(question: Question) -> tuple[str, ...]:
    """Return the settings that give the launch the GPUs of the question, in nodes of up to eight."""
    if question.gpus is None:
        return ()
    each = min(8, question.gpus)
    if question.gpus % each:
        raise UserError(
            f"--gpus {question.gpus}: not whole nodes of 8 GPUs", hint="write a multiple of 8, or at most 8"
        )
    return (f"trainer.nnodes={question.gpus // each}", f"trainer.n_gpus_per_node={each}")


def advise(source: Source, options: RunOptions, question: Question, *, name: str) -> Advice:
    """Return the modes of one launch side by side. ``name``: of the launch, for the commands.

    Raises UserError for a launch that no mode can run, and for one without answers to generate.
    """
    base = ignored_keys.plan_source(source, options, cwd=Path.cwd()).spec
    _refuse_without_answers(base)
    if (gpus := gpus_of(base)) > _MOST_GPUS:
        raise UserError(f"{gpus} GPUs: advise is for {_MOST_GPUS} at most", hint="--gpus N gives fewer")
    modes = Modes(source, options, base, gpus)
    facts = facts_of(base, question)
    return _side_by_side(modes, facts, name, question.seed)


def remarks(spec: RunSpec, source: Source, options: RunOptions, name: str) -> Iterator[str]:
    """Yield three lines for a dry run: the plan's use of its GPUs, the fastest mode, and the assumptions.

    Every mode is taken at the plan's own split. A plan that is not `predictable` has no such lines.
    """
    if (own := predictable(spec)) is None:
        return
    question = Question()
    modes = Modes(source, options, spec, gpus_of(spec))
    try:
        facts = facts_of(spec, question)
        advised = _side_by_side(modes, facts, name, question.seed, own=own)
    except UserError as error:
        yield f"uses      not predicted: {error.message}"
        return
    turn_s = turn_s_of(facts, spec) if own.in_turns else 0.0
    now = simulated(facts, own, question.seed, turn_s=turn_s)
    yield f"uses      about {_use(now)}, on {place(own)}"
    best = report.fastest(advised)
    if best and best.prediction and best.prediction.step_s < SHORTER * now.step_s:
        given = " ".join(best.settings or ())
        in_turns = best.schedule is not None and best.schedule.in_turns
        untried = f" ({unproven(modes)})" if in_turns and not own.in_turns and modes.gpus > 1 else ""
        yield f"faster    {best.name}: about {_use(best.prediction)}: `{given}`{untried}"
    else:
        which = (
            "no other mode of `run` on these GPUs"
            if own.in_turns
            else "no mode of `run` at this split of the GPUs"
        )
        yield f"faster    {which}, by more than 3 %"
    yield (
        f"predicted {'; '.join(advised.assumptions[:3])}; `trinity-compat advise` takes lengths and speeds,"
        " and tries other splits"
    )


def predictable(spec: RunSpec) -> Schedule | None:
    """Return the schedule of a plan with both sides on GPUs; None for another, and for one not simulated."""
    both = spec.device == "cuda" and not spec.rows and spec.mode in ("both", "colocate")
    return schedule_of(spec) if both else None


def unproven(modes: Modes) -> str:
    """Return a note on turns on the launch's GPUs."""
    return gpu_split.unproven(modes.gpus, int(value_at(modes.base.verl, "trainer.nnodes") or 1))


def place(own: Schedule) -> str:
    """Return the GPUs of a schedule in words."""
    in_turns = "1 GPU" if own.gpus == 1 else f"{own.gpus} GPUs"
    return f"{in_turns} in turns" if own.in_turns else f"{report.gpus(own)} GPUs"


def _use(found: Prediction) -> str:
    stale = f", {found.staleness:.1f} steps stale" if found.staleness else ""
    return f"{found.used:.0%} of all GPU time, {found.step_s:.3g} s a step{stale}"


def schedule_of(spec: RunSpec) -> Schedule | None:
    """Return the schedule of a plan or a job; None for a style that is not simulated."""
    sync = spec.sync
    if (
        sync.style not in ("fixed", "fully_async")
        or explorer_interval(sync) != 1
        or trainer_interval(sync) != 1
    ):
        return None
    rollout = section_at(spec.verl, ROLLOUT)
    return Schedule(
        "",
        engine_count(rollout, spec.device) * spec.explorers,
        engine_width(rollout, spec.device),
        trainer_gpus(spec.verl),
        in_turns=spec.mode == "colocate",
        offset=sync.offset,
        follows=sync.style == "fully_async",
        staleness=spec.max_staleness,
    )


def _refuse_without_answers(spec: RunSpec) -> None:
    if spec.rows or spec.mode in ("bench", "serve", "train"):
        raise UserError(
            "this launch generates no answers to train on: it has one side, and no mode to choose",
            hint="advise is for launches that sample answers (main_ppo and its asynchronous relatives)",
        )


def gpus_of(spec: RunSpec) -> int:
    """Return the GPUs of both sides; those of served models are beside them."""
    found = shares(spec.verl, device="cuda", mode=spec.mode, explorers=spec.explorers)
    return found["trainer"] + found.get("explorer", 0)


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
        check_gpus(spec, "trainer", self.gpus + _beside(self.base))
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


def _beside(spec: RunSpec) -> int:
    """Return the GPUs of models that are served beside the policy."""
    found = shares(spec.verl, device="cuda", mode=spec.mode, explorers=spec.explorers)
    return sum(found.values()) - found["trainer"] - found.get("explorer", 0)


def _engines(spec: RunSpec) -> int:
    return engine_count(section_at(spec.verl, ROLLOUT), "cuda") * spec.explorers


def _width(spec: RunSpec) -> int:
    return engine_width(section_at(spec.verl, ROLLOUT), "cuda")


def _side_by_side(modes: Modes, facts: Facts, name: str, seed: int, *, own: Schedule | None = None) -> Advice:
    """Return every mode at its fastest split, or at the split of ``own``."""
    stock, turns, *following = all_in_turns(modes, facts, seed)
    rows, splits = _split_modes(modes, facts, seed, own)
    untried = [f"{COLOCATE}: {unproven(modes)}"] if turns.schedule and modes.gpus > 1 else []
    return Advice(
        name,
        modes.gpus,
        facts.work,
        facts.speeds,
        (stock, turns, *following, *rows),
        splits,
        (*facts.assumptions, *untried),
        seed,
    )


def all_in_turns(
    modes: Modes, facts: Facts, seed: int, limits: Sequence[int] = _STALENESS
) -> list[ModeAdvice]:
    """Return stock veRL's turns on the launch's GPUs; and those of a run, or its reason against them.

    ``limits``: of the staleness under fully_async.
    """
    turns = modes.in_turns() or modes.base
    facts = replace(facts, utilization=estimates.utilization(turns.verl))
    return [_stock(modes, facts, seed, _width(turns)), *_turn_modes(modes, facts, seed, limits)]


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
        found = simulated(facts, placed, seed, turn_s=turn_s_of(facts, spec))
        memory = facts.memory(placed, None if spec.offloads else spec.verl)
        yield ModeAdvice(title, words, placed, found, memory=memory)


def _stock(modes: Modes, facts: Facts, seed: int, width: int) -> ModeAdvice:
    """Return stock veRL's turns on the launch's GPUs, with engines of ``width`` GPUs."""
    schedule = Schedule(STOCK, max(1, modes.gpus // width), width, modes.gpus, in_turns=True)
    found = simulated(facts, schedule, seed, turn_s=turn_s_of(facts, replace(modes.base, offloads=False)))
    return ModeAdvice(STOCK, None, schedule, found, memory=facts.memory(schedule, modes.base.verl))


def turn_s_of(facts: Facts, spec: RunSpec) -> float:
    """Return the seconds in which the trainer's state leaves the devices of turns, or comes back."""
    offloads = spec.offloads or estimates.offloads(spec.verl)
    return speeds.offload_s(facts.shape, gpus_of(spec)) if offloads else 0.0


def as_words(sets: Sequence[str]) -> list[str]:
    """Return settings as words of the command line."""
    return [f"--set {item}" for item in sets]


def simulated(
    facts: Facts, schedule: Schedule, seed: int, *, steps: int | None = None, turn_s: float = 0.0
) -> Prediction:
    """Simulate a schedule. ``turn_s``: seconds in which the trainer leaves the devices, or returns."""
    held = facts.engine(schedule).kv_tokens / (facts.work.prompt + facts.work.lengths.mean)
    slots = max(1, min(facts.speeds.slots, int(held)))
    of_engine = replace(speeds.of_width(facts.speeds, schedule.width), turn_s=turn_s, slots=slots)
    return simulate(facts.work, of_engine, schedule, seed=seed, steps=steps)


def _split_modes(
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
            why = splits[0][3] if splits else "one GPU has no second side"
            rows.append(ModeAdvice(title, words, why=why))
            continue
        best = None
        for engines, width, left, _ in chosen:
            placed = replace(schedule, engines=engines, width=width, trainer=left)
            step_s = simulated(facts, placed, seed, steps=SEARCH_STEPS).step_s
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
    engines = f"{ENGINES}={schedule.engines}"
    if words is not None:
        words = (*words, f"--set {engines}")
        try:
            planned = modes.plan("both", [*sets, engines])
            facts = replace(facts, utilization=estimates.utilization(planned.verl))
        except UserError as error:
            return ModeAdvice(title, words, why=error.message)
    found = facts.memory(schedule)
    return ModeAdvice(title, words, schedule, simulated(facts, schedule, seed), memory=found)


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


def facts_of(spec: RunSpec, question: Question) -> Facts:
    """Return the launch's facts: of the question, else of the job, else assumed."""
    verl = spec.verl
    found = measured.read(question.job) if question.job else None
    answer, of_answers = _answers(verl, question, found)
    prompt, of_prompts = _prompt(verl, question, found)
    card = cards.named(question.card or cards.DEFAULT)
    if question.card_gb:
        card = replace(card, memory_gib=question.card_gb)
    shape, of_model = estimates.shape_of(verl, Path.cwd(), question.model_size)
    work = Workload(size(verl, "data.train_batch_size"), size(verl, f"{ROLLOUT}.n"), prompt, answer)
    slots = size(verl, f"{ROLLOUT}.max_num_seqs", 1024)
    context = prompt + answer.mean / 2
    made = speeds.estimated(shape, card, estimates.passes_of(verl), context=context, slots=slots)
    made, of_speeds = _speeds(made, question, found, card)
    beside = _beside(spec)
    served = [f"{beside} GPU(s) of served models are beside these and not counted"] if beside else []
    training, of_memory = estimates.training_of(verl)
    return Facts(
        work,
        made,
        shape,
        card,
        training,
        estimates.utilization(verl),
        size(verl, "data.max_prompt_length") + answer.limit,
        (of_answers, of_prompts, of_model, *of_speeds, of_memory, *served, *_ALWAYS),
    )


_ALWAYS = (
    f"weights reach the engines at {speeds.HANDOVER_GBS:g} GB/s; an offloading trainer moves"
    f" {speeds.STATE_BYTES} bytes a parameter to host memory and back at {speeds.OFFLOAD_GBS:g} GB/s a GPU",
    "GPUs of an engine, and of the trainer, share their work evenly; scoring and tools take no time;"
    " evaluations and checkpoints are left out",
)


def _answers(verl: Tree, question: Question, found: measured.Measured | None) -> tuple[AnswerLengths, str]:
    limit = size(verl, "data.max_response_length")
    if question.answer_length:
        given = lengths.by_mean_and_p99(*question.answer_length, limit)
        return given, f"answers: {_tokens(given)}, lognormal, by --answer-length"
    if found:
        taken = lengths.of_measured(found.answers, limit)
        return taken, f"answers: {_tokens(taken)}, those of {len(found.answers)} answers of the job"
    assumed = lengths.by_mean_and_p99(max(1.0, limit * _DEFAULT_MEAN), limit, limit)
    return assumed, (
        f"answers: {_tokens(assumed)}, lognormal, assumed from data.max_response_length={limit};"
        " --answer-length MEAN,P99 gives them, or --job DIR"
    )


def _tokens(found: AnswerLengths) -> str:
    return f"{found.mean:.0f} tokens in the mean, {found.p99:.0f} at the 99th percentile"


def _prompt(verl: Tree, question: Question, found: measured.Measured | None) -> tuple[float, str]:
    if question.prompt_length is not None:
        return question.prompt_length, f"prompts: {question.prompt_length:g} tokens, by --prompt-length"
    if found:
        return found.prompt, f"prompts: {found.prompt:.0f} tokens in the mean, the job's"
    limit = size(verl, "data.max_prompt_length")
    return limit / 2, f"prompts: {limit / 2:g} tokens, half of data.max_prompt_length={limit}, assumed"


def _speeds(
    made: Speeds, question: Question, found: measured.Measured | None, card: Card
) -> tuple[Speeds, list[str]]:
    """Return the speeds by the question and the job, where these say any, with a sentence on each side."""
    made, engines = _generation(made, question, found, card)
    if question.train_tokens_per_s:
        made, origin = replace(made, training=question.train_tokens_per_s), "by --train-tokens-per-s"
    elif found and found.training:
        made, origin = replace(made, training=found.training), "the job's"
    else:
        arithmetic = f"{speeds.TRAINING:.0%} of the {card.name}'s arithmetic"
        origin = f"{arithmetic}; --train-tokens-per-s gives it, or --job DIR"
    return made, [engines, f"the trainer: {made.training:,.0f} tokens a second and GPU: {origin}"]


def _generation(
    made: Speeds, question: Question, found: measured.Measured | None, card: Card
) -> tuple[Speeds, str]:
    if question.tokens_per_s:
        made, origin = speeds.generating(made, question.tokens_per_s), "by --tokens-per-s"
    elif found and found.step_s:
        made, origin = fitted_to(made, found)
    else:
        origin = (
            f"{speeds.DECODING_S * 1000:g} ms a decoding step, {speeds.BANDWIDTH:.0%} of the {card.name}'s"
            f" bandwidth and {speeds.PREFILL:.0%} of its arithmetic; --tokens-per-s gives it, or --job DIR"
        )
    return made, (
        f"the engines: {made.full_rate:,.0f} tokens a second and GPU with all {made.slots} slots in use,"
        f" {1 / made.decoding_s(1):,.0f} for one answer alone: {origin}"
    )


def fitted_to(made: Speeds, found: measured.Measured) -> tuple[Speeds, str]:
    """Return the speeds with which the job's own schedule takes the time that it took."""
    verl = found.spec.verl
    limit = size(verl, "data.max_response_length")
    work = Workload(
        size(verl, "data.train_batch_size"),
        size(verl, f"{ROLLOUT}.n"),
        found.prompt,
        lengths.of_measured(found.answers, limit),
    )
    own = schedule_of(found.spec)
    if own is None:
        style = f"sync_style {found.spec.sync.style} with its intervals"
        return made, f"as assumed: the job's {style} is not simulated"
    of_job = replace(
        made,
        handover_s=0.0,
        training=found.training or made.training,
        slots=size(verl, f"{ROLLOUT}.max_num_seqs", made.slots),
    )

    def predicted(factor: float) -> Prediction:
        return simulate(work, speeds.of_width(speeds.slower(of_job, factor), own.width), own)

    if found.generation_s:  # proportional to the factor: nothing else is in flight
        factor = found.generation_s / predicted(1.0).generation_s
        origin = f"fitted to the job's {found.generation_s:.3g} s of generation a step"
        return speeds.slower(made, factor), origin
    assert found.step_s is not None
    low, high = 1e-6, 1.0
    while predicted(high).step_s < found.step_s and high < _SLOWEST:
        low, high = high, high * 4
    for _ in range(_FITTED):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if predicted(middle).step_s < found.step_s else (low, middle)
    return speeds.slower(made, high), f"fitted to the job's {found.step_s:.3g} s a step"
