"""Evaluations that the trainer requests: one explorer serves them all, the oldest first."""

from __future__ import annotations

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import BufferState, EvalRequest
from trinity_compat.explorer.data.tasks import TaskStream
from trinity_compat.explorer.scheduling.step_work import StepWork, eval_work
from trinity_compat.explorer.scheduling.task_allocation import TaskAllocation
from trinity_compat.job.run_spec import RunSpec


class Evaluations:
    """The open evaluation requests of a run; ``rows``: the validation tasks."""

    def __init__(
        self, spec: RunSpec, buffer: Buffer, allocation: TaskAllocation, rows: TaskStream | None
    ) -> None:
        self._spec, self._buffer, self._allocation, self._rows = spec, buffer, allocation, rows
        self._oldest: EvalRequest | None = None

    def observe(self, state: BufferState) -> None:
        """Take note of the buffer's latest state."""
        self._oldest = state.evaluation

    def next(self) -> EvalRequest | None:
        """Return the oldest open request, if this explorer is the one that serves them."""
        return self._oldest if self._oldest and self._allocation.evaluates() else None

    def work(self, request: EvalRequest) -> StepWork:
        """Return the work that answers a request."""
        return eval_work(self._spec, request, self._rows)

    def finish(self, request: EvalRequest) -> None:
        """Mark a request answered."""
        self._buffer.finish_eval(request)
        self._oldest = None
