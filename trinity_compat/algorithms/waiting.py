"""What trinity-rft 0.6.0 has and a run here cannot train yet, each with its reason."""

from functools import partial

from trinity_compat.algorithms.model import FUNCTIONS, Arguments, Function, Kind, algorithm

_STEPS = "it needs the state of the environment at each step, which the buffer does not hold"
_CLIPS = "it needs the entropy of each token, which veRL gives no estimator"

algorithm("gigpo", "GiGPO", paper="2505.10978", advantage_fn="gigpo", lacks=_STEPS)


def _lacking(kind: Kind, reasons: dict[str, str]) -> None:
    for name, reason in reasons.items():
        FUNCTIONS[kind][name] = Function(kind, name, "", lacks=partial(_because, reason))


def _because(reason: str, arguments: Arguments) -> str:
    return reason


_lacking(
    "advantage_fn",
    {"gigpo": _STEPS, "clipb": _CLIPS, "clipv": _CLIPS},
)
