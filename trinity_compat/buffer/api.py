"""The buffer's interface: the operations that explorer, trainer and supervisor use.

One implementation over SQLAlchemy serves SQLite and PostgreSQL; ``open_buffer(url)`` returns it.
Every method is one transaction. Guarantee: delivery at least once, effect exactly once per optimizer
step: a group is in the ledger once per (history, use), and a resume voids what lost weights produced.
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
    """The lease lapsed and another trainer has claimed the groups: do not train on them."""


class Buffer(Protocol):
    """The store of groups, tasks, weight versions and state.

    All methods may be called from several processes at once, and repeated after a crash.
    """

    # -- experiences ------------------------------------------------------------------------
    def put_groups(
        self, groups: Sequence[Group], *, history: int | None = None, holder: LeaseHolder | None = None
    ) -> int:
        """Store complete groups in one transaction and return the number of new ones.

        A group whose key is live (neither void nor stale) is left as it is. ``history`` is the one in which
        the groups were built: HistoryChanged is raised once a resume has started another. The leases that
        ``holder`` has on these tasks end in the same transaction. Raises BufferFull on a full disk, with
        nothing written, and ValueError for a group without experiences or with arrays of unequal lengths.
        """

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
        """Lease exactly ``count`` ready groups, or return None when fewer are ready.

        Order: priority (highest first), then task number, so a rebuilt group takes its task's place.
        With ``min_version``, ready groups whose oldest token is older are dropped (state "stale") and their
        tasks are missing again. Groups of a lapsed lease are ready again without a call. With ``replay`` the
        order is that of its priorities (``buffer/replay.py``), and trained groups compete with ready ones.
        """

    def renew(self, claim: Claim, *, lease_s: float = 60.0) -> None:
        """Prolong the lease, also a lapsed one whose groups were not claimed again. Raises ClaimLost."""

    def mark_trained(self, claim: Claim, *, step: int) -> None:
        """Enter the claim's groups in the ledger under ``step``; a repeated call enters nothing.

        Raises ClaimLost. Call before the checkpoint of ``step`` is written.
        """

    def release(self, claim: Claim) -> None:
        """Return the groups, ready and in their old order. No-op for ended claims."""

    def groups(self, kind: str, *, limit: int | None = None) -> list[Group]:
        """Live groups of one kind in task order, e.g. all of ``eval:7``."""

    def experiences(self, *, limit: int | None = None, after_id: int = 0) -> list[tuple[int, Experience]]:
        """(experience id, Experience) pairs in order of id."""

    def depth(self, kind: str = "train") -> Mapping[str, int]:
        """Number of groups of one kind by state: ready, claimed, trained, stale, void."""

    # -- the task stream ----------------------------------------------------------------------
    def missing_tasks(self, *, upto: int, limit: int) -> list[int]:
        """Task numbers below ``upto`` without a live group, in order: those to be sampled (again)."""

    def enter(self, holder: LeaseHolder, *, ready: bool, lease_s: float) -> None:
        """Take ``holder``'s place among several explorers for ``lease_s``; its former holder loses all tasks.

        ``ready``: the holder takes tasks from now on.
        """

    def keep(self, holder: LeaseHolder, *, lease_s: float) -> bool:
        """Prolong the lease on the place. False once another holder has the place."""

    def leave(self, holder: LeaseHolder) -> None:
        """End the leases on the place and its tasks."""

    def places(self) -> Mapping[int, bool]:
        """Places with a holder, and readiness of each."""

    def free_tasks(self, asked: TaskQuery, *, limit: int) -> list[int]:
        """The first tasks that the holder may take, in order."""

    def lease_tasks(self, asked: TaskQuery, *, limit: int, version: int, history: int) -> list[int]:
        """Lease up to ``limit`` free tasks, in order, until the holder loses its place.

        Without ``by_place`` the holder gets fewer where other ready explorers would have less than an equal
        part. ``version`` of the weights is stored for ``pending``. Raises HistoryChanged.
        """

    def pending(self, holder: LeaseHolder, *, upto: int) -> PendingTasks:
        """Stored training tasks below ``upto``, and leases of other holders."""

    def settle_drawing(
        self, kept: Sequence[Group], *, kind: str, then: Mapping[str, object], history: int
    ) -> bool:
        """End the drawing ``kind`` (draw:STEP) in one transaction; False if it was ended before.

        Its groups ``kept``, which have their training tasks and keys already, become training groups, the
        others void; ``then`` is written to the state. Raises HistoryChanged.
        """

    def position(self, *, step: int) -> StreamPosition:
        """Position in the task stream after ``step``, for its checkpoint, so that another database can go on.

        Call between ``mark_trained`` of ``step`` and the next one.
        """

    # -- weights --------------------------------------------------------------------------------
    def publish_version(self, version: WeightVersion) -> None:
        """Announce a version.

        Versions grow within a history; a smaller one raises ValueError, the same one again (or one of an
        earlier history) is replaced.
        """

    def latest_version(self) -> WeightVersion | None:
        """The newest version that no resume has voided."""

    def get_version(self, version: int) -> WeightVersion | None:
        """One version, if published and not voided."""

    def glance(self) -> BufferState:
        """``history``, the state ``finished``, ``next_eval`` and ``latest_version`` in one statement."""

    # -- evaluation -----------------------------------------------------------------------------
    def request_eval(self, *, step: int, version: int) -> EvalRequest:
        """Request an evaluation of ``version``; a repeated (history, step) returns the first request."""

    def next_eval(self) -> EvalRequest | None:
        """The oldest open request."""

    def finish_eval(self, request: EvalRequest) -> None:
        """Close the request. Call once all groups of kind ``eval:<request_id>`` are stored."""

    def eval_done(self, request: EvalRequest) -> bool:
        """Return whether ``finish_eval`` was called."""

    # -- liveness, state, metrics ---------------------------------------------------------------
    def beat(self, role: str, name: str, *, state: str, detail: Mapping[str, object] | None = None) -> None:
        """Write the heartbeat of (role, name), with the database's clock."""

    def participants(self) -> list[Participant]:
        """All processes with a heartbeat in the current history."""

    def forget_participants(self) -> None:
        """Delete all heartbeats, at the start of a job whose earlier processes have ended.

        A process that lives nevertheless reappears with its next heartbeat.
        """

    def set_state(self, key: str, value: object) -> None:
        """Store a JSON value under ``key``."""

    def get_state(self, key: str, default: object = None) -> Any:
        """Read the value that ``set_state`` stored."""

    def log_metrics(self, role: str, step: int, metrics: Mapping[str, float]) -> None:
        """Store one step's metrics, in place of earlier ones of the same (role, step)."""

    def read_metrics(self, role: str, *, after_step: int = -1) -> list[tuple[int, dict[str, float]]]:
        """(step, metrics) in order of step, of the current history and those that it continues."""

    # -- resume ---------------------------------------------------------------------------------
    def history(self) -> int:
        """Id of the current history, from 1."""

    def reconcile(
        self, *, step: int, position: StreamPosition | None = None, remake: bool = False
    ) -> ResumeResult:
        """Start a new history that continues from the checkpoint of ``step`` (0: from the start).

        Groups trained after it, or untrained, are ready again if their max_model_version ≤ step and void
        otherwise; groups trained at or before it stay trained; later weight versions are void, and open
        claims are lost. A group whose tokens were pruned is void instead of ready. ``ready_again`` counts
        the groups that are ready now.

        ``position`` is that of the checkpoint, None for a checkpoint of this database. Where it belongs to
        another database, or to a branch that this one has left, all groups, uses, versions and metrics
        become void and the tasks go on at the position. ``remake``: groups that were not trained up to the
        checkpoint become void whatever their weights, and no trained group is replayed.
        """

    def close(self) -> None:
        """Close the database connections."""
