"""Stragglers: groups that take too long are cancelled and made later, so that a step is not held up."""

from __future__ import annotations

from collections.abc import Iterable

from trinity_compat.explorer.scheduling.commit_queue import CommitQueue
from trinity_compat.explorer.scheduling.pool import WorkPool
from trinity_compat.job.run_spec import RunSpec


class StragglerPolicy:
    """Names the training tasks to cancel; each once only, since else the longest answers would never finish.

    ``enabled``: the run sets veRL's ``rollout.over_sample_rate`` or ``trinity_compat.group_timeout``, and its
    steps are not ``whole``.
    """

    def __init__(self, spec: RunSpec, *, whole: bool) -> None:
        self._rate, self._timeout_s = spec.over_sample_rate, spec.group_timeout_s
        self.enabled = not whole and bool(self._rate or self._timeout_s)
        self._cancelled: set[int] = set()

    def find(self, pool: WorkPool, queue: CommitQueue, step: int | None) -> list[int]:
        """Return the tasks to cancel now.

        ``step`` is the step of which more tasks are to begin, None when there is none.
        """
        late = {*(pool.longer_than(self._timeout_s) if self._timeout_s else ())}
        if self._rate:
            late.update(queue.stragglers(self._rate, step))
        return sorted(late - self._cancelled)

    def note_cancelled(self, tasks: Iterable[int]) -> None:
        """Exempt cancelled tasks from being cancelled again."""
        self._cancelled.update(tasks)
