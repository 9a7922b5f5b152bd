"""Reads a Trinity configuration by dotted path, steps in veRL's unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.translate.name_tables import FieldPair
from trinity_compat.translate.update_steps import verl_steps

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

    def told(self, *pairs: FieldPair) -> Iterator[tuple[str, object]]:
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
        if isinstance(count, bool) or not isinstance(count, int):
            raise UserError(f"{path} is {count!r}, it should be a whole number of steps")
        if count <= 0 or self.counts_verl:
            return count
        return verl_steps(path, count, self.r, self.why)
