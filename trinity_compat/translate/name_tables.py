"""Tables of things that veRL and Trinity have under different names; they serve both directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.translate.launch_view import PathValue

Names = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldPair:
    """A field of Trinity's at a dotted ``path`` and veRL's ``key``, whose value is the same."""

    path: str
    key: str

    def put(self, value: object, note: str | None = None) -> PathValue:
        """Write ``value``, because of the key."""
        return PathValue(self.path, value, (self.key,), note)


@dataclass(frozen=True, slots=True)
class NameTable:
    """Names of the same thing. ``forth``: veRL's → Trinity's. ``back``: Trinity's → veRL's."""

    forth: Mapping[str, str]
    back: Mapping[str, str]

    @classmethod
    def of(cls, *things: tuple[Names, Names]) -> NameTable:
        """Each thing as (veRL's names, Trinity's names); the first of each side is written."""
        pairs = [(_tuple(verl), _tuple(trinity)) for verl, trinity in things]
        return cls(
            forth={name: trinity[0] for verl, trinity in pairs for name in verl},
            back={name: verl[0] for verl, trinity in pairs for name in trinity},
        )


def _tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
