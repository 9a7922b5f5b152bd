"""Advice on the modes of a launch: all of them side by side, or in three lines of a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trinity_compat.advise import report
from trinity_compat.advise.memory import ModeMemory
from trinity_compat.advise.model import Advice, ModeAdvice, Prediction, Schedule
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.advice.facts import Facts, Question, facts_of, gpus_of, predictable
from trinity_compat.run.advice.modes import COLOCATE, SHORTER, Modes, all_in_turns, split_modes
from trinity_compat.run.advice.savings import saving
from trinity_compat.run.plan import devices
from trinity_compat.run.plan.error_locations import spelling
from trinity_compat.run.plan.plan_run import plan_source
from trinity_compat.run.plan.source import RunOptions, Source

_MOST_GPUS = 4096


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
    base = plan_source(source, options, cwd=Path.cwd()).spec
    if base.rows or base.mode in ("bench", "serve", "train"):
        raise UserError(
            "this launch generates no answers to train on: it has one side, and no mode to choose",
            hint="advise is for launches that sample answers (main_ppo and its asynchronous relatives)",
        )
    if (gpus := gpus_of(base)) > _MOST_GPUS:
        raise UserError(f"{gpus} GPUs: advise is for {_MOST_GPUS} at most", hint="--gpus N gives fewer")
    modes = Modes(source, options, base, gpus)
    facts = facts_of(base, question)
    found = _side_by_side(modes, facts, name, question.seed)
    own = predictable(base)
    if own is None:
        return found
    return replace(found, launch=_spelled(_launch(modes, facts, own, question.seed), source))


def remarks(spec: RunSpec, source: Source, options: RunOptions, name: str) -> Iterator[str]:
    """Yield lines for a dry run: the plan's use of its GPUs and memory, the fastest mode, the assumptions.

    Every mode is taken at the plan's own split. A plan that is not `predictable` has no such lines.
    """
    if (own := predictable(spec)) is None:
        return
    card_gib = devices.card_here()
    question = Question(card_gb=card_gib)
    modes = Modes(source, options, spec, gpus_of(spec))
    try:
        facts = facts_of(spec, question)
        launch = _launch(modes, facts, own, question.seed)
        advised = _side_by_side(modes, facts, name, question.seed, own=own)
    except UserError as error:
        yield f"uses      not predicted: {error.message}"
        return
    now = launch.prediction
    assert now
    yield f"uses      about {_use(now)}, on {place(own)}"
    yield from _of_memory(launch.memory, card_gib) if launch.memory else ()
    best = report.fastest(advised)
    if best and best.prediction and best.prediction.step_s < SHORTER * now.step_s:
        given = " ".join(best.settings or ())
        in_turns = best.schedule is not None and best.schedule.in_turns
        untried = f" ({modes.unproven})" if in_turns and not own.in_turns and modes.gpus > 1 else ""
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


def _launch(modes: Modes, facts: Facts, own: Schedule, seed: int) -> ModeAdvice:
    """Return the launch as it is written."""
    spec = modes.base
    taken = saving(facts, own, spec.verl, keeps=own.in_turns and not spec.offloads)
    now = facts.simulated(own, seed, turn_s=facts.turn_s(spec) if own.in_turns else 0.0)
    return ModeAdvice("as written", (), own, now, memory=taken)


def _side_by_side(modes: Modes, facts: Facts, name: str, seed: int, *, own: Schedule | None = None) -> Advice:
    """Return every mode at its fastest split, or at the split of ``own``."""
    in_turns = all_in_turns(modes, facts, seed)
    rows, splits = split_modes(modes, facts, seed, own)
    found = tuple(_spelled(each, modes.source) for each in (*in_turns, *rows))
    turns = in_turns[1]
    untried = [f"{COLOCATE}: {modes.unproven}"] if turns.schedule and modes.gpus > 1 else []
    return Advice(
        name,
        modes.gpus,
        facts.work,
        facts.speeds,
        found,
        splits,
        (*facts.assumptions, *untried),
        seed,
    )


def _spelled(mode: ModeAdvice, source: Source) -> ModeAdvice:
    """Return the advice with the keys of its savings as the user's file and release spell them."""
    if mode.memory is None:
        return mode
    named = ((each, spelling(each.key, source)) for each in mode.memory.savings)
    savings = tuple(replace(each, key=name) for each, name in named if name)
    return replace(mode, memory=replace(mode.memory, savings=savings))


def _of_memory(found: ModeMemory, card_gib: float | None) -> Iterator[str]:
    """Yield what a GPU needs while each side works; engines' need, and what fits, on a known card alone."""
    for side, need in found.needs.items():
        if not card_gib and (side == "engine" or found.awake):
            continue
        best = next((f"; {each}" for each in found.savings if each.side == side), "")
        fit = (
            "" if not card_gib else "; fits" if need <= card_gib else f"; does not fit in {card_gib:.0f} GiB"
        )
        yield f"memory    {side}: about {need:.0f} GiB of a GPU{fit}{best}"


def place(own: Schedule) -> str:
    """Return the GPUs of a schedule in words."""
    in_turns = "1 GPU" if own.gpus == 1 else f"{own.gpus} GPUs"
    return f"{in_turns} in turns" if own.in_turns else f"{report.gpus(own)} GPUs"


def _use(found: Prediction) -> str:
    stale = f", staleness {found.staleness:.1f} steps" if found.staleness else ""
    return f"{found.used:.0%} of all GPU time, {found.step_s:.3g} s a step{stale}"
