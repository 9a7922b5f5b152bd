"""The buffer's interface: what explorer, trainer and runtime may ask of it.

One implementation over SQLAlchemy serves SQLite and PostgreSQL; ``open_buffer(url)`` gives it.
Every method is one transaction. Promise: delivery at least once, effect exactly once per optimizer
step: a group stands in the ledger once per (history, use), and a resume voids what lost weights made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trinity_compat.buffer.model import (
    BufferState,
    Claim,
    EvalRequest,
    Experience,
    Group,
    LeaseHolder,
    Participant,
    PendingTasks,
    ResumeResult,
    TaskQuery,
    WeightVersion,
)
from trinity_compat.buffer.stream_position import StreamPosition
from trinity_compat.job.run_spec import ReplaySpec


class ClaimLost(RuntimeError):
    """The lease ran out and somebody else holds the groups now: do not train on them."""


class Buffer(Protocol):
    """All methods are safe to call from several processes at once, and after a crash again."""

    # -- experiences ------------------------------------------------------------------------
    def put_groups(
        self, groups: Sequence[Group], *, history: int | None = None, holder: LeaseHolder | None = None
    ) -> int:
        """Store complete groups in one transaction; groups whose key lives already (not void, not
        stale) are left as they are. Returns how many were new. With ``history``, the one they were made
        in, raises HistoryChanged once a resume has started another. ``holder``'s leases of their tasks end
        with it. Raises BufferFull on a full disk, with nothing half-written, and ValueError for a group
        without experiences or of unequal lengths."""

    def claim_groups(
        self,
        count: int,
        *,
        owner: str,
        step: int,
        kind: str = "train",
        min_version: int | None = None,
        lease_s: float = 60.0,
        replay: ReplaySpec | None = None,
    ) -> Claim | None:
        """Lease exactly ``count`` ready groups, or None when fewer are ready.

        Order: priority (highest first), then task number, so a group made again comes in its task's place.
        With ``min_version``, ready groups whose oldest token is older are dropped (state "stale") and their
        tasks are missing again. A lapsed lease makes groups ready again by itself. With ``replay`` the order
        is its priority's (``buffer/replay.py``), and trained groups stand in it beside the ready ones.
        """

    def renew(self, claim: Claim, *, lease_s: float = 60.0) -> None:
        """Prolong the lease, also a lapsed one that nobody took over. Raises ClaimLost."""

    def mark_trained(self, claim: Claim, *, step: int) -> None:
        """Enter the claim's groups in the ledger under ``step``; the same claim and step twice enter once.

        Raises ClaimLost. Call before the checkpoint of ``step`` is written.
        """

    def release(self, claim: Claim) -> None:
        """Give the groups back, ready, in their old order. Of a claim that ended, nothing happens."""

    def groups(self, kind: str, *, limit: int | None = None) -> list[Group]:
        """Live groups of one kind in task order, e.g. all of ``eval:7``."""

    def experiences(self, *, limit: int | None = None, after_id: int = 0) -> list[tuple[int, Experience]]:
        """(experience id, Experience) pairs in order of id."""

    def depth(self, kind: str = "train") -> Mapping[str, int]:
        """Groups of one kind by state: ready, claimed, trained, stale, void."""

    # -- the task stream ----------------------------------------------------------------------
    def missing_tasks(self, *, upto: int, limit: int) -> list[int]:
        """Task numbers < ``upto`` that have no live group (void and stale ones are dead), in order:
        what an explorer has to make (again)."""

    def enter(self, holder: LeaseHolder, *, ready: bool, lease_s: float) -> None:
        """Have ``holder``'s place among several explorers for so long; whoever had it has no task any more.

        ``ready``: it takes tasks from now on.
        """

    def keep(self, holder: LeaseHolder, *, lease_s: float) -> bool:
        """Prolong it. False once another has the place."""

    def leave(self, holder: LeaseHolder) -> None:
        """Give place and tasks back."""

    def places(self) -> Mapping[int, bool]:
        """Places that somebody has now, and whether he is ready."""

    def free_tasks(self, asked: TaskQuery, *, limit: int) -> list[int]:
        """The first tasks that the holder may take, in order."""

    def lease_tasks(self, asked: TaskQuery, *, limit: int, version: int, history: int) -> list[int]:
        """Lease up to ``limit`` free tasks, in order; fewer where others who are ready have
        not as many (not so ``by_place``). Nobody else gets them while the holder keeps its place; ``version``
        of the weights is told to others. Raises HistoryChanged."""

    def pending(self, holder: LeaseHolder, *, upto: int) -> PendingTasks:
        """What is stored of the training tasks below ``upto``, and what others have leased."""

    def settle_drawing(
        self, kept: Sequence[Group], *, kind: str, then: Mapping[str, object], history: int
    ) -> bool:
        """End the drawing ``kind`` (draw:STEP) in one transaction: its groups ``kept``, which carry their
        training tasks and keys already, become training groups, the others void; ``then`` is written to
        the state. False, and nothing done, when it has been ended before. Raises HistoryChanged."""

    def position(self, *, step: int) -> StreamPosition:
        """What the checkpoint of ``step`` has to keep, so that another database can go on from it.

        Call between ``mark_trained`` of ``step`` and the next one.
        """

    # -- weights --------------------------------------------------------------------------------
    def publish_version(self, version: WeightVersion) -> None:
        """Announce a version.

        Versions grow within a history; a smaller one raises ValueError, the same one again (or one that an
        earlier history left) is replaced.
        """

    def latest_version(self) -> WeightVersion | None:
        """The newest version that no resume has voided."""

    def get_version(self, version: int) -> WeightVersion | None:
        """One version, if published and not voided."""

    def glance(self) -> BufferState:
        """``history``, the state ``finished``, ``next_eval`` and ``latest_version`` in one statement."""

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
    def beat(self, role: str, name: str, *, state: str, detail: Mapping[str, object] | None = None) -> None:
        """Say that (role, name) lives. Uses the database's clock."""

    def participants(self) -> list[Participant]:
        """Everybody who ever beat in the current history."""

    def forget_participants(self) -> None:
        """Drop everybody who ever beat: a job starts again, and nobody of an earlier start lives.

        Whoever does live after all is back with its next beat.
        """

    def set_state(self, key: str, value: object) -> None:
        """Store a JSON value under ``key``."""

    def get_state(self, key: str, default: object = None) -> Any:
        """Read what ``set_state`` stored."""

    def log_metrics(self, role: str, step: int, metrics: Mapping[str, float]) -> None:
        """Keep one step's metrics; the same (role, step) replaces."""

    def read_metrics(self, role: str, *, after_step: int = -1) -> list[tuple[int, dict[str, float]]]:
        """(step, metrics) in order of step: the current history's, and what it continues from."""

    # -- resume ---------------------------------------------------------------------------------
    def history(self) -> int:
        """Id of the current history, from 1."""

    def reconcile(
        self, *, step: int, position: StreamPosition | None = None, remake: bool = False
    ) -> ResumeResult:
        """Start a new history that continues from the checkpoint of ``step`` (0: from the start).

        Groups trained after it, or untrained, are ready again if their max_model_version ≤ step and void
        otherwise; nothing trained at or before it returns; later weight versions are void, and open claims
        are lost. A group whose tokens were pruned is void instead of ready. ``ready_again`` counts the groups
        that are ready now.

        ``position`` is what the checkpoint keeps. Where it is of another database, or of a branch that
        this one has left, nothing here counts any more: all groups, uses, versions and metrics are void
        and the tasks go on at the position. None: the checkpoint is this database's own. ``remake``: no group
        that was not trained up to the checkpoint counts, whatever made it, and none is used again.
        """

    def close(self) -> None:
        """Give the connections back."""
