"""Position in the task stream that a checkpoint keeps, and its relation to this database.

A checkpoint's own database has groups, uses and missing tasks. Another one (a new ``--database``, another
job's checkpoint, a branch that a resume has left) has nothing valid for it, and goes on at the position.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import sqlalchemy as sa

from trinity_compat.buffer import queries
from trinity_compat.buffer.key_value import TransactionState
from trinity_compat.buffer.queries import query
from trinity_compat.job.state_cell import StateCell

NOBODYS = ""  # no buffer's id: what it goes on from is not here, whatever is


@dataclass(frozen=True, slots=True)
class AdoptedPosition:
    """The position at which a branch of another database was adopted, and what it had trained by then."""

    step: int = 0
    history: int = 0
    below: int = 0
    beyond: Sequence[int] = ()


ADOPTED = StateCell("adopted", AdoptedPosition)
FIRST_TASK = StateCell[int]("stream")  # of a step with filter_groups
_ID = StateCell[str]("buffer_id")


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Tasks that a checkpoint has trained: all below ``below``, and those in ``beyond``.

    ``buffer`` and ``history`` identify the branch of the ledger, None for a checkpoint of stock veRL;
    ``stream`` is the first task that the next step draws, with filter_groups.
    """

    below: int
    beyond: tuple[int, ...] = ()
    buffer: str | None = None
    history: int = 0
    stream: int | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Decode from JSON."""
        return cls(**{**data, "beyond": tuple(data.get("beyond", ()))})

    def as_json(self) -> dict[str, object]:
        """Encode as JSON."""
        return {**asdict(self), "beyond": list(self.beyond)}


def take(conn: sa.Connection, *, step: int, history: int, missing: int) -> StreamPosition:
    """The position after ``step``, whose uses are in the ledger; ``missing``: the first missing task."""
    state, others = TransactionState(conn), adopted(conn)
    waiting = conn.execute(query(queries.FIRST_UNTRAINED), {"first": others.below}).scalar_one()
    below = missing if waiting is None else min(missing, waiting)
    beyond = conn.execute(query(queries.TRAINED_BEYOND), {"below": below}).scalars()
    others_beyond = (task for task in others.beyond if task > below)
    if (own_id := _ID.get(state)) is None:
        own_id = uuid.uuid4().hex
        _ID.set(state, own_id)
    stream = FIRST_TASK.at(step + 1).get(state)
    return StreamPosition(below, tuple(sorted({*beyond, *others_beyond})), own_id, history, stream)


def is_ours(conn: sa.Connection, *, step: int, position: StreamPosition) -> bool:
    """Return whether the ledger's current line runs through the checkpoint."""
    base = adopted(conn)
    if step < base.step:
        return False
    if position.buffer is None:
        trained = conn.execute(query(queries.ANY_USE_AT), {"step": step}).first() is not None
        return trained or step == base.step
    if position.buffer != _ID.get(TransactionState(conn)) or position.history < base.history:
        return False
    left = {"history": position.history, "step": step}
    return conn.execute(query(queries.LEFT_BEFORE), left).first() is None


def adopt(conn: sa.Connection, *, step: int, history: int, position: StreamPosition) -> None:
    """Go on at ``position``; the caller has voided what was here."""
    conn.execute(query(queries.SET_COUNTER), {"name": "complete_below", "value": position.below})
    state = TransactionState(conn)
    ADOPTED.set(state, AdoptedPosition(step, history, position.below, position.beyond))
    if position.stream is not None:
        FIRST_TASK.at(step + 1).set(state, position.stream)


def adopted(conn: sa.Connection) -> AdoptedPosition:
    """Return the position before this database was used."""
    return ADOPTED.get(TransactionState(conn)) or AdoptedPosition()
