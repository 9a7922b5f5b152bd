"""``Exchange`` over rows of files.

The rows of a step follow from its number, so nothing is claimed, and the database holds metrics only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.buffer.store import Buffer
from trinity_compat.buffer.stream_position import StreamPosition
from trinity_compat.common.nested import Tree
from trinity_compat.job.state_cell import FINISHED
from trinity_compat.synchronizer.engine_dtypes import Dtypes
from trinity_compat.trainer.adapter import Claimed, FindScores, LogProbScorer, SendWeights
from trinity_compat.trainer.exchange import numbers, tokens_per_second
from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat
from trinity_compat.trainer.supervised.files import FileRows
from trinity_compat.trainer.supervised.formats import Formatter
from trinity_compat.trainer.supervised.order import RowOrder

_log = logging.getLogger(__name__)

# Metrics of rewards and of the sampling policy, which rows of files lack.
_OF_ANSWERS = (
    "critic/",
    "actor/ppo_kl",
    "actor/pg_",
    "actor/entropy",
    "num_turns",
    "tool_call",
    "variance_proxy",
    "timing_s/agent_loop/",
)


class RowsExchange:
    """Exchange of a run on rows: ``rows`` and ``formatter`` make the groups that ``order`` names."""

    def __init__(
        self,
        buffer: Buffer,
        heart: LeaseHeartbeat,
        rows: FileRows,
        formatter: Formatter,
        order: RowOrder,
        validation: FileRows = (),
    ) -> None:
        self._buffer, self._heart = buffer, heart
        self._rows, self._formatter, self._order, self._validation = rows, formatter, order, validation

    def started(self) -> None:
        """Store that the run is not finished."""
        FINISHED.set(self._buffer, False)

    def position(self, step: int) -> Tree:
        """Return the position after ``step``, in the form of a run with an explorer."""
        return StreamPosition(below=step).as_json()

    def resumed(self, step: int, position: Tree | None = None, *, afresh: bool = False) -> None:
        """Begin a new history after ``step``: metrics of later steps no longer count."""
        if step or self._buffer.read_metrics("trainer"):
            done = self._buffer.reconcile(step=step)
            _log.info("history %d continues from step %d", done.history, step)
        self._heart.say("running", step=step)

    def publish(self, step: int, send: SendWeights, scores: LogProbScorer | None = None) -> None:
        """No-op: there is no explorer."""

    def engine_dtypes(self) -> Dtypes:
        """Nothing: no engine loads a version."""
        return {}

    def before_leaving(self, leave_device: Callable[[], None]) -> None:
        """No-op: the trainer never gives its device to an explorer."""

    def claim(self, step: int) -> Claimed:
        """Return the groups of the step's rows at once."""
        self._heart.say("running", step=step)
        return Claimed(tuple(self.group(number) for number in self._order.rows_of(step)), waited_s=0.0)

    def group(self, number: int) -> Group:
        """Return the group of the row with that number. Raises UserError."""
        made = self._formatter.experiences(self._rows[number], number)
        return Group(f"row-{number}", number, {}, 0, made, kind="rows")

    def validation(self, ranks: int) -> Iterator[list[Experience]]:
        """The validation rows, in batches of the training batch's size.

        The last rows that the ranks cannot share evenly are left out.
        """
        made = [
            experience
            for number in range(len(self._validation))
            for experience in self._formatter.experiences(self._validation[number], number)
        ]
        whole = len(made) // ranks * ranks
        size = max(self._order.batch // ranks, 1) * ranks
        yield from (made[first : min(first + size, whole)] for first in range(0, whole, size))

    def keep_scores(self, find: FindScores) -> None:
        """No-op: rows of files are no answers."""

    def commit(self, step: int) -> None:
        """No-op: the checkpoint's step determines the trained rows."""

    def release(self) -> None:
        """No-op: nothing is claimed."""

    def evaluate(self, step: int, send: SendWeights) -> list[Group]:
        """Raise NotImplementedError: rows of files have no answers."""
        raise NotImplementedError("a run on rows measures the loss of its validation rows, no answers")

    def log(self, step: int, metrics: Tree) -> dict[str, object]:
        """Store the metrics without those of answers, with the loss under Trinity's name."""
        out = {name: value for name, value in metrics.items() if not name.startswith(_OF_ANSWERS)}
        if "actor/pg_loss" in metrics:
            out["train/loss"] = metrics["actor/pg_loss"]
        out |= tokens_per_second(out)
        self._buffer.log_metrics("trainer", step, numbers(out))
        return out
