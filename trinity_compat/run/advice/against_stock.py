"""The plan of a run beside stock veRL's turns on the same GPUs, before anything starts.

A split that the user asks for without a number of engines gets the one with the shortest predicted step. A
plan that is predicted slower says so in one line, with what to write instead. A split is refused where its
memory does not fit, as estimated, and that of stock's turns does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trinity_compat.advise.model import ModeAdvice, Prediction, Schedule
from trinity_compat.advise.simulate import SEED
from trinity_compat.common.errors import UserError
from trinity_compat.job.gpus import ENGINES
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.advice.advise import place
from trinity_compat.run.advice.facts import Facts, Question, facts_of, gpus_of, predictable
from trinity_compat.run.advice.modes import SEARCH_STEPS, SHORTER, Modes, all_in_turns, as_words, tried
from trinity_compat.run.plan import devices, estimates
from trinity_compat.run.plan.gpu_split import sets_engines
from trinity_compat.run.plan.plan_run import make_plan, plan_source
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.translate.verl_from_trinity import takes_turns

_LONGEST = 1.10  # of stock's step: turns above it say so


@dataclass(frozen=True, slots=True)
class StockComparison:
    """A plan beside stock's turns and those that the run could take, with assumed lengths and speeds."""

    modes: Modes
    facts: Facts
    own: Schedule
    now: Prediction
    stock: ModeAdvice
    turns: ModeAdvice

    @property
    def share(self) -> float:
        """The plan's step time as a share of stock's."""
        assert self.stock.prediction
        return self.now.step_s / self.stock.prediction.step_s

    @property
    def has_turns(self) -> bool:
        """Return whether the run can take turns on all of these GPUs; some may be for rollout alone."""
        return self.turns.schedule is not None and self.turns.schedule.gpus == self.modes.gpus

    def slower_note(self) -> str:
        """Return the share, its reason and what to write instead, where the plan is slower; else ""."""
        if self.share <= (_LONGEST if self.own.in_turns else 1 / SHORTER):
            return ""
        reason = f"{place(self.own)} are in use {self.now.used:.0%} of the time"
        if self.own.in_turns:
            reason = "between turns the trainer's state moves to host memory and back, which takes long here"
        told = f"about {self.share:.2f} times the step of stock veRL's turns, as predicted: {reason}"
        return "; ".join((told, *self.alternatives()))

    def alternatives(self) -> list[str]:
        """Return what to write for a shorter step: turns on all GPUs, or a step ahead at this split."""
        found = list[tuple[Prediction, str]]()
        if self.has_turns and self.turns.prediction and not self.own.in_turns:
            words = " ".join(self.turns.settings or ())
            found.append((self.turns.prediction, f"`{words}` ({self.modes.unproven})"))
        if not (self.own.in_turns or self.own.offset or self.own.follows):
            ahead = " ".join(as_words(self.modes.settings("fixed", 1)))
            overlaps = self.facts.simulated(replace(self.own, offset=1), SEED)
            found.append((overlaps, f"`{ahead}`, with weights one step older"))
        return [
            f"{each.step_s * self.share / self.now.step_s:.2f} by {words}"
            for each, words in found
            if each.step_s < SHORTER * self.now.step_s
        ]

    def memory_problems(self) -> tuple[str, ...]:
        """Return what of a split does not fit, where stock's turns fit and the run can take them."""
        stock = self.stock.memory
        if self.own.in_turns or not self.has_turns or stock is None or stock.problems:
            return ()
        found = self.facts.memory(self.own, self.modes.base.verl)
        return found.problems if found else ()


def compare_with_stock(
    spec: RunSpec, source: Source, options: RunOptions, question: Question
) -> StockComparison | None:
    """Compare a plan with stock's turns; None where it cannot be predicted.

    Raises UserError for a launch whose sizes are not known.
    """
    if (own := predictable(spec)) is None:
        return None
    modes, facts = Modes(source, options, spec, gpus_of(spec)), facts_of(spec, question)
    turn_s = facts.turn_s(spec) if own.in_turns else 0.0
    now = facts.simulated(own, question.seed, turn_s=turn_s)
    stock, turns = all_in_turns(modes, facts, question.seed, ())
    return StockComparison(modes, facts, own, now, stock, turns)


def plan_and_compare(source: Source, options: RunOptions, *, cwd: Path) -> RunPlan:
    """Plan a run as `plan_source` does, by and with its prediction.

    Raises UserError as that does, and for a split that does not fit where turns do.
    """
    plan = plan_source(source, options, cwd=cwd)
    try:
        if engines := _fastest(plan.spec, source, options):
            chosen = f"{ENGINES}={engines}"
            options = replace(options, sets=(*options.sets, chosen))
            plan = plan_source(source, options, cwd=cwd)
            why = {f"--set {chosen}": f"{chosen}: of all splits this one has the shortest predicted step"}
            plan = replace(plan, notes=tuple(why.get(note, note) for note in plan.notes))
        card_gib = devices.card_here() if predictable(plan.spec) else None
        found = compare_with_stock(plan.spec, source, options, Question(card_gb=card_gib))
    except UserError:  # of a file or a size that veRL and vLLM read as well and name
        return plan
    if found is None:
        return plan
    line, problems = found.slower_note(), found.memory_problems()
    if problems and estimates.is_known(plan.spec.verl, cwd) and (card_gib or options.dry_run):
        card = f"a card of {found.facts.card.memory_gib:.0f} GiB"
        turns = " ".join(found.turns.settings or ())
        raise UserError(
            f"{place(found.own)} do not fit {card}, as estimated ({'; '.join(problems)}), and stock's turns"
            f" on all of them do{'; ' * bool(line)}{line}",
            hint=f"write {turns}" if card_gib else f"write {turns}; a run asks its cards for their memory",
        )
    return replace(plan, notes=(*plan.notes, line)) if line else plan


def _fastest(spec: RunSpec, source: Source, options: RunOptions) -> int | None:
    """Return the engines of a split that was asked for without a number; None where it has one.

    The sides' own commands (modes train and explore) get the split of mode both. The card is the assumed one:
    a job that goes on elsewhere has the same split.
    """
    is_split = spec.device == "cuda" and spec.mode in ("both", "train", "explore")
    if not is_split or sets_engines(options.sets) or not takes_turns(source.config):
        return None
    if spec.mode != "both":
        both = replace(options, mode="both", explorer=None)
        spec = make_plan(source.config, both, cwd=Path.cwd(), device="cuda").spec
    found = compare_with_stock(spec, source, options, Question())
    engines = fastest_split(found) if found else None
    return engines if found and engines != found.own.engines else None


def fastest_split(found: StockComparison) -> int | None:
    """Return the engines of the split with the shortest step, of those that fit where some do.

    None where no split can run.
    """
    able = [split for split in found.modes.splits(found.own.width) if not split[3]]
    chosen = [replace(found.own, engines=engines, trainer=left) for engines, _, left, _ in tried(able)]
    verl = found.modes.base.verl
    fitting = [each for each in chosen if (memory := found.facts.memory(each, verl)) and not memory.problems]
    steps = [
        (found.facts.simulated(each, SEED, steps=SEARCH_STEPS).step_s, each.engines)
        for each in fitting or chosen
    ]
    return min(steps)[1] if steps else None
