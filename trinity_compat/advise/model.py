"""Input and output of the simulation: the work of a step, the speeds of both sides, and the mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.advise.lengths import AnswerLengths
from trinity_compat.advise.memory import ModeMemory


@dataclass(frozen=True, slots=True)
class Workload:
    """One veRL step: ``groups`` prompts of ``prompt`` tokens, ``answers`` to each."""

    groups: int
    answers: int
    prompt: float
    lengths: AnswerLengths


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of both sides.

    A decoding step of an engine with b answers takes ``overhead_s`` + ``step_s`` + ``answer_s`` × b seconds
    and gives each a token; an engine's GPUs share the last two. ``slots`` answers at most are decoded at a
    time. ``prefill`` is an engine's tokens a second where it computes prompts, None for no time; ``training``
    the tokens a second of one trainer GPU over everything that a step trains. ``handover_s``: a version's way
    into the engines; ``turn_s``: the change from one side to the other on shared GPUs.
    """

    step_s: float
    answer_s: float
    slots: int
    training: float
    prefill: float | None = None
    handover_s: float = 0.0
    turn_s: float = 0.0
    overhead_s: float = 0.0

    @property
    def full_rate(self) -> float:
        """Tokens a second of an engine whose slots are all in use."""
        return self.slots / self.decoding_s(self.slots)

    def decoding_s(self, answers: int) -> float:
        """Seconds of a decoding step of so many answers."""
        return self.overhead_s + self.step_s + self.answer_s * answers


@dataclass(frozen=True, slots=True)
class Schedule:
    """A mode of running.

    ``in_turns``: both sides use the same GPUs, ``engines`` × ``width`` of them, one after the other; else the
    trainer has ``trainer`` GPUs of its own. ``offset``: steps that generation is ahead (style fixed).
    ``staleness``: the limit of style fully_async, in steps. With ``follows`` alone the only limit is the lead
    of ``offset`` + 1. ``together``: both sides stop for a handover, as in veRL's one_step_off_policy.
    """

    name: str
    engines: int
    width: int
    trainer: int
    in_turns: bool = False
    offset: int = 0
    follows: bool = False
    staleness: int | None = None
    together: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of both sides."""
        own = self.engines * self.width
        return max(own, self.trainer) if self.in_turns else own + self.trainer


@dataclass(frozen=True, slots=True)
class Lane:
    """Work of one kind in the timeline: ``side`` is explorer or trainer, ``step`` the step worked for.

    ``version``: of the weights that it began with. Seconds from the start of the run. ``busy``: share of the
    side's GPU time that has work. ``lag``: of a trainer's step, the steps between the policy that it trains
    and the oldest weights of its answers. Under style fully_async the explorer works for several steps at
    once: its lanes are of one version each, and their step is the one trained from that version.
    """

    side: str
    step: int
    version: int
    begin: float
    end: float
    busy: float = 1.0
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Outcome of a simulation, over the measured steps.

    ``used``: share of the GPUs' time in which they have work. ``engines_full``: tokens made, of those that
    the engines could have made in that time with all slots in use. ``staleness``: steps between the policy
    that a batch trains and the oldest weights of an answer, mean and highest. ``step_s``: seconds a step, of
    which a step trains ``training_s`` and generates ``generation_s`` (from its first task to its last
    answer).
    """

    step_s: float
    used: float
    engines_full: float
    staleness: float
    staleness_max: int
    training_s: float
    generation_s: float
    lanes: tuple[Lane, ...] = ()


@dataclass(frozen=True, slots=True)
class ModeAdvice:
    """Advice on one mode, at the split of the GPUs that is fastest for it.

    ``schedule`` and ``prediction`` are None where the mode cannot run here, as ``why`` says. ``settings``:
    what `run` is given for it beside the launch; None where it is not a mode of `run`.
    """

    name: str
    settings: tuple[str, ...] | None
    schedule: Schedule | None = None
    prediction: Prediction | None = None
    why: str = ""
    memory: ModeMemory | None = None


@dataclass(frozen=True, slots=True)
class SplitAdvice:
    """Advice on one split of the GPUs. ``step_s``: mode → seconds a step; empty where ``why`` refuses it."""

    explorer: int
    trainer: int
    step_s: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """Modes of a launch side by side.

    ``assumptions``: sources of the numbers, in sentences. ``options`` and ``arguments``: words of the user's
    that the command of each mode repeats, the arguments behind ``--``. ``launch``: the launch as it is
    written, None where that is not simulated.
    """

    source: str
    gpus: int
    work: Workload
    speeds: Speeds
    modes: tuple[ModeAdvice, ...]
    splits: tuple[SplitAdvice, ...]
    assumptions: tuple[str, ...]
    seed: int
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    launch: ModeAdvice | None = None

    @property
    def stock(self) -> ModeAdvice:
        """Return stock veRL in lockstep, with which the others are compared."""
        return self.modes[0]
