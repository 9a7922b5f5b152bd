"""Algorithms of trinity-rft 0.6.0 that a run here cannot train yet, each with its reason."""

from functools import partial

from trinity_compat.trinity.algorithms.model import FUNCTIONS, Arguments, Kind, RegisteredFunction

_SIGNAL = "it reads a column, necs, that trinity-rft 0.6.0 fills nowhere: it ends there with a KeyError"


def _lacking(kind: Kind, reasons: dict[str, str]) -> None:
    for name, reason in reasons.items():
        FUNCTIONS[kind][name] = RegisteredFunction(kind, name, "", lacks=partial(_because, reason))


def _because(reason: str, arguments: Arguments) -> str:
    return reason


_lacking("advantage_fn", {"clipv": _SIGNAL})
