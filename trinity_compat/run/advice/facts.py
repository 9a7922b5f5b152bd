"""Facts of a launch for its prediction: work, speeds, model, card and memory, each with where it comes from.

Of the question, else of a job, else assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trinity_compat.advise import cards, lengths, memory, speeds
from trinity_compat.advise.cards import Card
from trinity_compat.advise.lengths import AnswerLengths
from trinity_compat.advise.memory import EngineMemory, ModeMemory
from trinity_compat.advise.model import Prediction, Schedule, Speeds, Workload
from trinity_compat.advise.model_shape import ModelShape
from trinity_compat.advise.simulate import SEED, simulate
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.job.gpus import engine_count, engine_width, shares, trainer_gpus
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.advice import measured
from trinity_compat.run.plan import estimates
from trinity_compat.run.plan.estimates import size
from trinity_compat.run.plan.verl_view import ACTOR, ROLLOUT, VerlView
from trinity_compat.synchronizer.policy import explorer_interval, trainer_interval

_DEFAULT_MEAN = 3 / 16  # of the longest answer, where no lengths are given
_FITTED, _SLOWEST = 16, 1e9  # bisections of a factor of time, and the largest one
# What every prediction takes for granted.
_ALWAYS = (
    f"weights reach the engines at {speeds.HANDOVER_GBS:g} GB/s; an offloading trainer moves"
    f" {speeds.STATE_BYTES} bytes a parameter to host memory and back at {speeds.OFFLOAD_GBS:g} GB/s a GPU",
    "GPUs of an engine, and of the trainer, share their work evenly; scoring and tools take no time;"
    " evaluations and checkpoints are left out",
)


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
    known: bool  # the model's sizes, by its config.json, its name or the user
    tokens_of: Callable[[int], float] | None  # of so many rows; None where their lengths are assumed
    utilization: float
    longest: int
    assumptions: tuple[str, ...]
    update: int  # answers of an update
    sharing: int  # GPUs of a trainer's rank

    def rank_use(self, trainer: int) -> float:
        """Return the share of the ranks' rows in an update that are no fillers."""
        ranks = max(1, trainer // self.sharing)
        return self.update / (ranks * -(-self.update // ranks))

    def engine(self, schedule: Schedule) -> EngineMemory:
        """Return the memory of an engine's GPU in a mode."""
        return memory.of_engine(
            self.shape,
            width=schedule.width,
            slots=self.speeds.slots,
            utilization=self.utilization,
            card_gib=self.card.memory_gib,
        )

    def memory(self, schedule: Schedule, verl: Tree, *, keeps: bool = False) -> ModeMemory | None:
        """Return the memory of both sides under ``verl``; None where the model's sizes are not known.

        ``keeps``: the trainer's state stays beside the engines between its steps, as its flags say.
        """
        if not self.known:
            return None
        sizes, _ = estimates.training_of(verl, self.tokens_of)
        trainer = memory.of_trainer(self.shape, sizes, schedule.trainer) if sizes else None
        stays = 0.0
        if sizes and keeps:
            stays = memory.resident(self.shape, sizes, sizes.stays, schedule.trainer)
        of_engine = replace(self, utilization=estimates.utilization(verl)).engine(schedule)
        is_awake = schedule.in_turns and value_at(verl, f"{ROLLOUT}.free_cache_engine") is False
        awake = of_engine.requested if is_awake else 0.0
        return ModeMemory(trainer, of_engine, self.card.memory_gib, stays, self.longest, awake)

    def simulated(
        self, schedule: Schedule, seed: int, *, steps: int | None = None, turn_s: float = 0.0
    ) -> Prediction:
        """Simulate a schedule. ``turn_s``: seconds in which the trainer leaves the devices, or returns."""
        held = self.engine(schedule).kv_tokens / (self.work.prompt + self.work.lengths.mean)
        slots = max(1, min(self.speeds.slots, int(held)))
        training = self.speeds.training * self.rank_use(schedule.trainer)
        of_engine = speeds.of_width(self.speeds, schedule.width)
        of_engine = replace(of_engine, turn_s=turn_s, slots=slots, training=training)
        return simulate(self.work, of_engine, schedule, seed=seed, steps=steps)

    def turn_s(self, spec: RunSpec) -> float:
        """Return the seconds in which the trainer's state leaves the devices of turns, or comes back."""
        offloads = spec.offloads or estimates.offloads(spec.verl)
        return speeds.offload_s(self.shape, gpus_of(spec)) if offloads else 0.0


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


def predictable(spec: RunSpec) -> Schedule | None:
    """Return the schedule of a plan with both sides on GPUs; None for another, and for one not simulated."""
    both = spec.device == "cuda" and not spec.rows and spec.mode in ("both", "colocate")
    return schedule_of(spec) if both else None


def gpus_of(spec: RunSpec) -> int:
    """Return the GPUs of both sides; those of served models are beside them."""
    found = shares(spec.verl, device="cuda", mode=spec.mode, explorers=spec.explorers)
    return found["trainer"] + found.get("explorer", 0)


def gpus_beside(spec: RunSpec) -> int:
    """Return the GPUs of models that are served beside the policy."""
    found = shares(spec.verl, device="cuda", mode=spec.mode, explorers=spec.explorers)
    return sum(found.values()) - gpus_of(spec)


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
    beside = gpus_beside(spec)
    served = [f"{beside} GPU(s) of served models are beside these and not counted"] if beside else []
    longest = size(verl, "data.max_prompt_length") + answer.limit
    is_measured = bool(question.answer_length or found)
    tokens_of = partial(_tokens_of_rows, work, longest) if is_measured else None
    known = bool(question.model_size) or estimates.is_known(verl, Path.cwd())
    _, of_memory = estimates.training_of(verl, tokens_of)
    if not known:
        of_memory = "memory is not estimated: the model's sizes are not known; give --model-size"
    return Facts(
        work,
        made,
        shape,
        card,
        known,
        tokens_of,
        estimates.utilization(verl),
        longest,
        (of_answers, of_prompts, of_model, *of_speeds, of_memory, *served, *_ALWAYS),
        size(verl, f"{ACTOR}.ppo_mini_batch_size", work.groups) * work.answers,
        VerlView.of(verl).sharing(ACTOR),
    )


def _tokens_of_rows(work: Workload, longest: int, rows: int) -> float:
    """Return the tokens of so many rows, more than which about 1 in 100 sets of them has."""
    wide = (work.lengths.p99 - work.lengths.mean) * math.sqrt(rows)
    return min(rows * longest, rows * (work.prompt + work.lengths.mean) + wide)


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
