"""Trinity's data selectors, as a YAML asks for them (``selectors.py`` draws by them).

Source: trinity-rft 0.6.0 and 0.4.1, ``buffer/selector/selector.py``: each reads its own arguments only, and
has a default for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import UserError
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.translate.sections.data import SELECTORS, TASKSETS
from trinity_compat.translate.trinity_reader import TrinityReader

SEQUENTIAL, SHUFFLE, RANDOM = "sequential", "shuffle", "random"
EASY_TO_HARD, BY_DIFFICULTY = "offline_easy2hard", "difficulty_based"


@dataclass(frozen=True, slots=True)
class _Kind:
    """``keys``: how many columns it looks at (0: none, None: one or more).

    ``arguments`` with their defaults.
    """

    keys: int | None = 0
    arguments: Mapping[str, float | bool] = field(default_factory=dict)


_KINDS: Mapping[str, _Kind] = {
    SEQUENTIAL: _Kind(),
    SHUFFLE: _Kind(),
    RANDOM: _Kind(),
    EASY_TO_HARD: _Kind(keys=None),
    BY_DIFFICULTY: _Kind(
        keys=2,
        arguments={
            "m": 16,
            "lamb": 0.2,
            "rho": 0.2,
            "target_reward": 1.0,
            "tau": 1.0,
            "do_sample": False,
            "adaptive_rho": False,
        },
    ),
}


def selector_of(section: TrinityReader, place: str) -> dict[str, object]:
    """Return the selector of the taskset at ``place``.

    It has ``type`` and ``seed``; for a selector that reads them also ``feature_keys``, their ``place`` in the
    file, and all ``kwargs``. Raises UserError for a selector that trinity-rft does not know, or would fail
    on.
    """
    path = "data_selector" if section.get("data_selector") else "task_selector"
    where = f"{place}.{path}"
    name = section.get(f"{path}.selector_type") or SEQUENTIAL
    if name not in _KINDS:
        raise UserError(
            f"{where}.selector_type={name}: trinity-rft has no selector of that name",
            hint=question(nearest(str(name), _KINDS)) or f"it has {', '.join(_KINDS)}",
        )
    kind, found = _KINDS[name], {"type": name, "seed": section.get(f"{path}.seed", 42)}
    if kind.keys != 0:
        given = section.get(f"{path}.feature_keys")
        keys = [str(each) for each in given] if isinstance(given, list | tuple) else []
        if not keys or (kind.keys and len(keys) != kind.keys):
            wanted = f"{kind.keys} columns" if kind.keys else "one column or more"
            raise UserError(
                f"{where}.feature_keys={given}: {name} reads the difficulty of a row from {wanted}",
                hint=_KEYS_HINT[name],
            )
        found["feature_keys"] = keys
        found["place"] = where
    if kind.arguments:
        found["kwargs"] = _arguments(section.get(f"{path}.kwargs") or {}, kind, name, where)
    return found


def check_of_launch(reading: TrinityReader) -> None:
    """Raise UserError if a file that translate wrote names an order that veRL's sampler lacks."""
    for path in (f"{TASKSETS}.0.{selector}.selector_type" for selector in SELECTORS):
        if (name := reading.get(path)) not in (None, SEQUENTIAL, SHUFFLE):
            raise UserError(
                f"{path}={name}: a launch's rows are shuffled, or taken in the order of the file",
                hint=f"write {SHUFFLE} or {SEQUENTIAL}",
            )


_KEYS_HINT = {
    EASY_TO_HARD: "name the columns; rows of higher values come first",
    BY_DIFFICULTY: "name two columns: the pass rates of a weak model and of a strong one",
}


def _arguments(given: Mapping[str, object], kind: _Kind, name: str, where: str) -> dict[str, object]:
    for key, value in given.items():
        said = f"{where}.kwargs.{key}={value}"
        if key not in kind.arguments:
            raise UserError(
                f"{said}: {name} has no such argument",
                hint=question(nearest(str(key), kind.arguments)) or f"it has {', '.join(kind.arguments)}",
            )
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if isinstance(kind.arguments[key], bool) != isinstance(value, bool) or not is_number:
            wanted = "true or false" if isinstance(kind.arguments[key], bool) else "a number"
            raise UserError(f"{said}: write {wanted}")
    found = {**kind.arguments, **given}
    if float(str(found["tau"])) < 0:
        raise UserError(f"{where}.kwargs.tau={found['tau']}: write 0 or more; 0 takes the best rows alone")
    return found
