"""The buffer's interface: what explorer, trainer and runtime may ask of it.

One implementation over SQLAlchemy serves SQLite and PostgreSQL; ``open_buffer(url)`` gives it.
Every method is one transaction. Promise: delivery at least once, effect exactly once per optimizer
step: a group stands in the ledger once per (history, use), and a resume voids what lost weights made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trinity_compat.buffer.model import (
    Claim,
    EvalRequest,
    Experience,
    Group,
    Participant,
    Reconciled,
    WeightVersion,
)


class ClaimLost(RuntimeError):
    """The lease ran out and somebody else holds the groups now: do not train on them."""


class Buffer(Protocol):
    """All methods are safe to call from several processes at once, and after a crash again."""

    # -- experiences ------------------------------------------------------------------------
    def put_groups(self, groups: Sequence[Group]) -> int:
        """Store complete groups in one transaction; groups whose key is there already are left
        as they are. Returns how many were new."""

    def claim_groups(
        self,
        count: int,
        *,
        owner: str,
        step: int,
        kind: str = "train",
        min_version: int | None = None,
        lease_s: float = 60.0,
    ) -> Claim | None:
        """Lease exactly ``count`` ready groups, first in first out (priority first), or None when
        fewer are ready. With ``min_version``, groups whose oldest token is older are dropped (state
        "stale"). A lapsed lease makes groups ready again by itself."""

    def renew(self, claim: Claim, *, lease_s: float = 60.0) -> None:
        """Prolong the lease. Raises ClaimLost."""

    def mark_trained(self, claim: Claim, *, step: int) -> None:
        """Enter the claim's groups in the ledger under ``step``. Raises ClaimLost. Call before the
        checkpoint of ``step`` is written."""

    def release(self, claim: Claim) -> None:
        """Give the groups back, ready, in their old order."""

    def groups(self, kind: str, *, limit: int | None = None) -> list[Group]:
        """Groups of one kind in task order, e.g. all of ``eval:7``."""

    def experiences(self, *, limit: int | None = None, after_id: int = 0) -> list[tuple[int, Experience]]:
        """(experience id, Experience) pairs in order of id."""

    def depth(self) -> Mapping[str, int]:
        """Groups by state: ready, claimed, trained, stale, void."""

    # -- the task stream ----------------------------------------------------------------------
    def missing_tasks(self, *, upto: int, limit: int) -> list[int]:
        """Task numbers < ``upto`` that have no live group (not void), in order: what an explorer
        has to make (again)."""

    # -- weights --------------------------------------------------------------------------------
    def publish_version(self, version: WeightVersion) -> None:
        """Announce a version. Versions grow within a history; a smaller one raises ValueError."""

    def latest_version(self) -> WeightVersion | None:
        """The newest version of the current history."""

    def get_version(self, version: int) -> WeightVersion | None:
        """One version of the current history, if published."""

    # -- evaluation -----------------------------------------------------------------------------
    def request_eval(self, *, step: int, version: int) -> EvalRequest:
        """Ask the explorers to evaluate ``version``; the same (history, step) asks once."""

    def next_eval(self) -> EvalRequest | None:
        """The oldest request that is not done."""

    def finish_eval(self, request: EvalRequest) -> None:
        """All groups of kind ``eval:<request_id>`` are stored."""

    def eval_done(self, request: EvalRequest) -> bool:
        """Whether ``finish_eval`` was called."""

    # -- liveness, state, metrics ---------------------------------------------------------------
    def beat(self, role: str, name: str, *, state: str, detail: Mapping[str, Any] | None = None) -> None:
        """Say that (role, name) lives. Uses the database's clock."""

    def participants(self) -> list[Participant]:
        """Everybody who ever beat in the current history."""

    def set_state(self, key: str, value: Any) -> None:
        """Store a JSON value under ``key``."""

    def get_state(self, key: str, default: Any = None) -> Any:
        """Read what ``set_state`` stored."""

    def log_metrics(self, role: str, step: int, metrics: Mapping[str, float]) -> None:
        """Keep one step's metrics; the same (role, step) replaces."""

    def read_metrics(self, role: str, *, after_step: int = -1) -> list[tuple[int, dict[str, float]]]:
        """(step, metrics) of the current history, in order."""

    # -- resume ---------------------------------------------------------------------------------
    def history(self) -> int:
        """Id of the current history, from 1."""

    def reconcile(self, *, step: int) -> Reconciled:
        """Start a new history that continues from the checkpoint of ``step`` (0: from the start).
        Groups trained after it, or untrained, are ready again if their max_model_version ≤ step and
        void otherwise; nothing trained at or before it returns; later weight versions are void."""

    def close(self) -> None:
        """Give the connections back."""
