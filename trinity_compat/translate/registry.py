"""The registry of the functions of ``sections/``: derivations (forth) and ways back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trinity_compat.translate.launch_view import LaunchView, PathValue, Verdict
from trinity_compat.translate.model import Caution
from trinity_compat.translate.trinity_reader import TrinityReader

Derived = Iterator[PathValue | Verdict | Caution]  # of one section of the YAML
VerlSettings = Iterator[tuple[str, object]]  # veRL keys and their values
Derivation = Callable[[LaunchView], Derived]
WayBack = Callable[[TrinityReader], VerlSettings]

DERIVATIONS: dict[str, Derivation] = {}
WAYS_BACK: list[WayBack] = []


def derivation(function: Derivation) -> Derivation:
    """Register a function that reads the launch and yields values, verdicts and warnings.

    A row of ``translators/rows`` names it in ``by``.
    """
    DERIVATIONS[function.__name__] = function
    return function


def way_back(function: WayBack) -> WayBack:
    """Register a function that yields (veRL key, value) pairs of a section of the YAML.

    No two of them yield the same key, so their order does not matter.
    """
    WAYS_BACK.append(function)
    return function
