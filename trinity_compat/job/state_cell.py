"""Values of a job's state in its database: each key is declared once, with its type, for all who use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

_T = TypeVar("_T")


class StateStore(Protocol):
    """The part of the buffer that keeps one JSON value per key; only ``StateCell`` calls it."""

    def get_state(self, key: str) -> Any:
        """Read a value, None without one."""

    def set_state(self, key: str, value: object) -> None:
        """Store a value."""


@dataclass(frozen=True)
class StateCell(Generic[_T]):
    """One value of the state, or one for each place (``at``).

    ``kind`` makes it from the members of a JSON object, as a dataclass does; None for a value that is JSON.
    """

    key: str
    kind: Callable[..., _T] | None = None

    def at(self, place: int | str) -> StateCell[_T]:
        """Return the cell of an explorer, a step or another place."""
        return replace(self, key=f"{self.key}/{place}")

    def get(self, store: StateStore) -> _T | None:
        """Read the value; None before there is one."""
        stored = store.get_state(self.key)
        return stored if stored is None or self.kind is None else self.kind(**stored)

    def set(self, store: StateStore, value: _T | None) -> None:
        """Store a value; None removes the last one."""
        store.set_state(self.key, asdict(cast(Any, value)) if self.kind and value else value)


FINISHED = StateCell[bool]("finished")  # whether the trainer has made its last step
