"""A Trinity configuration by dotted path, steps in veRL's unit, and tables of names that both sides have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.common.plain_numbers import is_whole
from trinity_compat.translate.launch_view import PathValue
from trinity_compat.translate.update_steps import verl_steps

Names = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldPair:
    """A field of Trinity's at a dotted ``path`` and veRL's ``key``, whose value is the same."""

    path: str
    key: str

    def put(self, value: object, note: str | None = None) -> PathValue:
        """Return the field with ``value``, for the key."""
        return PathValue(self.path, value, (self.key,), note)


@dataclass(frozen=True, slots=True)
class NameTable:
    """Names of the same thing. ``forth``: veRL's → Trinity's. ``back``: Trinity's → veRL's."""

    forth: Mapping[str, str]
    back: Mapping[str, str]

    @classmethod
    def of(cls, *things: tuple[Names, Names]) -> NameTable:
        """Make a table from (veRL's names, Trinity's names) of each thing; the first of a side is written."""
        pairs = [(_tuple(verl), _tuple(trinity)) for verl, trinity in things]
        return cls(
            forth={name: trinity[0] for verl, trinity in pairs for name in verl},
            back={name: verl[0] for verl, trinity in pairs for name in trinity},
        )


def _tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


NEVER = 10**8  # an interval that no run reaches: upstream has no "off"


@dataclass(frozen=True, slots=True)
class TrinityReader:
    """Reads a Trinity configuration that is translated back to veRL.

    ``r`` mini-batches are one veRL step; ``why`` is the source of this number. ``counts_verl`` is true if the
    YAML counts veRL steps (the published guide's way).
    """

    config: Mapping[str, object]
    r: int = 1
    why: str = ""
    counts_verl: bool = False

    def get(self, path: str, default: object = None) -> Any:
        """Return the value at a dotted path, list positions as numbers; ``default`` if there is none."""
        value = value_at(self.config, path)
        return default if value is None else value

    def verl_values(self, *pairs: FieldPair) -> Iterator[tuple[str, object]]:
        """Return (veRL key, value) of every pair whose field the YAML has."""
        for pair in pairs:
            value = self.get(pair.path)
            if value is not None:
                yield pair.key, value

    def steps(self, path: str) -> int | None:
        """Return the count of steps at ``path`` in veRL steps; 0, −1 and None stay as they are.

        Raises UserError when r doesn't divide it.
        """
        count = self.get(path)
        if count is None:
            return None
        if not is_whole(count):
            raise UserError(f"{path} is {count!r}, it should be a whole number of steps")
        if count <= 0 or self.counts_verl:
            return count
        return verl_steps(path, count, self.r, self.why)
