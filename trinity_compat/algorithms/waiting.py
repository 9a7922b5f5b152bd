"""What trinity-rft 0.6.0 has and a run here cannot train yet, each with its reason."""

from functools import partial

from trinity_compat.algorithms.model import FUNCTIONS, Arguments, Function, Kind, algorithm

_TEACHER = "it needs a teacher's log-probabilities of each answer"
_STEPS = "it needs the state of the environment at each step, which the buffer does not hold"
_CLIPS = "it needs the entropy of each token, which veRL gives no estimator"

algorithm("gigpo", "GiGPO", paper="2505.10978", advantage_fn="gigpo", lacks=_STEPS)
algorithm("on_policy_distill", "on-policy distillation", advantage_fn="on_policy_distill", lacks=_TEACHER)
algorithm("jsd", "distillation by JSD", advantage_fn="jsd", lacks=_TEACHER)


def _lacking(kind: Kind, reasons: dict[str, str]) -> None:
    for name, reason in reasons.items():
        FUNCTIONS[kind][name] = Function(kind, name, "", lacks=partial(_because, reason))


def _because(reason: str, arguments: Arguments) -> str:
    return reason


_lacking(
    "advantage_fn",
    {"gigpo": _STEPS, "on_policy_distill": _TEACHER, "jsd": _TEACHER, "clipb": _CLIPS, "clipv": _CLIPS},
)
