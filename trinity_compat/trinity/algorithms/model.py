"""The parts of an algorithm, and the tables in which each file of this package registers its own.

Nothing here imports torch: a function of an algorithm uses methods of the tensors that it receives, so a
name, its arguments and their checks are known without torch. ``trainer/algorithms.py`` passes them to veRL.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

Tensor: TypeAlias = Any  # torch.Tensor, not imported
Arguments: TypeAlias = Mapping[str, Any]
Kind = Literal["advantage_fn", "policy_loss_fn", "kl_penalty_fn", "kl_loss_fn", "entropy_loss_fn"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# veRL 0.9.1's (workers/config/actor.py); Trinity has all but token-sum (algorithm/utils.py).
Aggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
PREFIX = "trinity_"  # of our functions' names in veRL's registries
CLASSES = "trinity_compat.trainer.algorithms"  # where veRL finds our kinds of its sections
# trinity-rft's sample_strategy that trains an expert's rows beside fresh answers.
MIX = "mix"
# In ``info`` of a row that was made of a run's experiences (trinity/workflows/run_rows.py): what each said of
# itself.
STEPS = "steps"
BY_STEP = ("step_wise_grpo", "gigpo")  # advantages that read it
# What a trainer's rows are (trinity-rft: AlgorithmType.schema): answers of an explorer, or rows of a file.
Schema = Literal["experience", "sft", "cpt", "dpo"]


@dataclass(frozen=True, slots=True)
class AdvantageInput:
    """The data that an advantage is computed from.

    ``rewards``: float [N], one for each answer; ``groups``: the positions of the answers to each task. For an
    advantage that names the column, each [N, T]: ``old_log_prob``, the trainer's at the step's start or the
    rollout's; ``rollout_log_prob``, the rollout's; ``ref_log_prob``, the reference model's; ``entropy``,
    nats, the policy's at the step's start; ``mask``, bool, true for the tokens that count. ``info``: for each
    answer what its scoring returned beside the reward.
    """

    rewards: Tensor
    groups: Sequence[Sequence[int]]
    mask: Tensor = None
    info: Sequence[Mapping[str, Any]] = ()
    old_log_prob: Tensor = None
    ref_log_prob: Tensor = None
    rollout_log_prob: Tensor = None
    entropy: Tensor = None


@dataclass(frozen=True, slots=True)
class MaskedAdvantages:
    """An advantage that also chooses the trained tokens.

    ``advantages`` [N, T]; ``mask``, bool [N, T], replaces the batch's; ``metrics``, its figures.
    """

    advantages: Tensor
    mask: Tensor
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The data that a policy loss is computed from, each [N, T].

    ``mask`` is bool, true for the tokens that count; ``old_log_prob`` is the trainer's at the step's start or
    the rollout's, as the run says. For a loss that names the column: ``ref_log_prob``, the reference model's;
    ``expert_mask`` [N], true for an expert's rows; ``step`` [N], the trainer's step from 1, the same for all.
    """

    log_prob: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    mask: Tensor
    ref_log_prob: Tensor = None
    expert_mask: Tensor = None
    step: Tensor = None

    @property
    def log_ratio(self) -> Tensor:
        """Return log π − log π_old, [N, T]."""
        return self.log_prob - self.old_log_prob


@dataclass(frozen=True, slots=True)
class Loss:
    """The result of a policy loss.

    ``values``: [N, T], or [N] where a row has one loss as a whole: the mean over the rows counts then.
    ``clipped``: [N, T], tokens whose gradient the algorithm cut off; ``aggregation``: the only one that the
    algorithm has; ``metrics``: further figures, each a scalar. Of an algorithm with several losses each has
    the ``rows`` that it is averaged over (bool [N]), its ``weight`` and its ``name``, under which it is
    logged.
    """

    values: Tensor
    clipped: Tensor | None = None
    aggregation: Aggregation | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Tensor | None = None
    weight: float = 1.0
    name: str = ""


Verl: TypeAlias = Callable[[Arguments], Mapping[str, object] | None]


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """One of Trinity's functions.

    ``call`` is ours, None where veRL's own is always taken. ``columns``: of ``Tokens`` or ``Answers``, those
    that it needs beyond the first ones. ``without_arguments``: what Trinity sets where
    the YAML gives no arguments at all (``default_args``), over the defaults of the signature. ``verl``:
    arguments → veRL's keys where a function of veRL's gives the same numbers, else None. ``check``:
    arguments → what is wrong with them together, "" when nothing is. ``lacks``: arguments → why they cannot
    be run here, "" when they can. ``of_plugin``: whether it is a plugin's (``of_plugins``), whose
    arguments only its own signature knows.
    """

    kind: Kind
    name: str
    source: str  # below trinity/algorithm of trinity-rft 0.6.0
    call: Callable[..., Any] | None = None
    signature: Mapping[str, inspect.Parameter] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    without_arguments: Arguments = field(default_factory=dict)
    verl: Verl = lambda arguments: None
    check: Callable[[Arguments], str] = lambda arguments: ""
    lacks: Callable[[Arguments], str] = lambda arguments: ""
    of_plugin: bool = False

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of single arguments that the YAML leaves out while it gives others."""
        return {name: parameter.default for name, parameter in self.signature.items()}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of Trinity's ``algorithm_type``: the functions that it stands for.

    ``paper``: arXiv's number, or a URL. ``schema``: the rows that it trains on; ``sample_strategy``: how they
    are taken. ``lacks``: why it cannot be run here; "" when it can.
    """

    name: str
    title: str
    paper: str = ""
    advantage_fn: str = "ppo"
    policy_loss_fn: str = "ppo"
    kl_penalty_fn: str = "none"
    kl_loss_fn: str = "k2"
    entropy_loss_fn: str = "default"
    schema: Schema = "experience"
    sample_strategy: str = "default"
    lacks: str = ""


ALGORITHMS: dict[str, Algorithm] = {}
FUNCTIONS: dict[Kind, dict[str, RegisteredFunction]] = {kind: {} for kind in KINDS}
Call = TypeVar("Call", bound=Callable[..., Any])


def algorithm(name: str, title: str, **fields: Any) -> None:
    """Register an ``algorithm_type``; ``fields`` as ``Algorithm`` has them."""
    ALGORITHMS[name] = Algorithm(name, title, **fields)


def advantage(name: str, source: str, **fields: Any) -> Callable[[Call], Call]:
    """Register a function (AdvantageInput, **arguments) → advantages without gradient.

    [N], or for a function that names columns [N, T] or MaskedAdvantages.
    """
    return _entered("advantage_fn", name, source, fields, computes=True)


def policy_loss(name: str, source: str, **fields: Any) -> Callable[[Call], Call]:
    """Register a function (Tokens, **arguments) → Loss, or several for parts of the rows.

    An argument ``loss_agg_mode`` is veRL's to apply.
    """
    return _entered("policy_loss_fn", name, source, fields, computes=True)


def kl_loss(name: str, source: str, **fields: Any) -> Callable[[Call], Call]:
    """Register a function (log_prob, ref_log_prob, old_log_prob) → KL [N, T]."""
    return _entered("kl_loss_fn", name, source, fields, computes=True)


def of_verl(kind: Kind, name: str, source: str, **fields: Any) -> Callable[[Call], Call]:
    """Register a function that veRL has.

    The decorated function has its arguments' names, types and defaults only, and returns veRL's keys for
    them.
    """
    return _entered(kind, name, source, fields, computes=False)


def _entered(
    kind: Kind, name: str, source: str, fields: Mapping[str, Any], *, computes: bool
) -> Callable[[Call], Call]:
    """``like`` among ``fields``: a function that has the arguments in place of the one that is decorated."""

    def enter(function: Call) -> Call:
        """Register ``function``."""
        own = {key: value for key, value in fields.items() if key != "like"}
        made: dict[str, Any] = {"call": function} if computes else {"verl": lambda args: function(**args)}
        made["signature"] = arguments_of(fields.get("like", function))
        FUNCTIONS[kind][name] = RegisteredFunction(kind, name, source, **{**made, **own})
        return function

    return enter


def arguments_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments of a function, with their types."""
    given = inspect.signature(function, eval_str=True).parameters
    return {name: each for name, each in given.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}
