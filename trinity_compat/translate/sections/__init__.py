"""The derived part of the mapping: one module per section of the Trinity configuration, both directions.

Every module of this folder is imported here and registers its functions: a new section is a new file.
"""

import importlib
import pkgutil
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

    A row of ``translators/by_hand/rows`` names it in ``by``.
    """
    DERIVATIONS[function.__name__] = function
    return function


def way_back(function: WayBack) -> WayBack:
    """Register a function that yields (veRL key, value) pairs of a section of the YAML.

    No two of them yield the same key, so their order does not matter.
    """
    WAYS_BACK.append(function)
    return function


for _module in pkgutil.iter_modules(__path__):  # below what they import of this file
    importlib.import_module(f"{__name__}.{_module.name}")
