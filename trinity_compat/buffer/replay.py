"""Replay: a claim takes the groups of the highest priority, trained ones among them.

Source: trinity-rft 0.6.0 and 0.4.1, ``buffer/storage/queue.py`` (``LinearDecayPriority``,
``LinearDecayUseCountControlPriority``, ``AsyncPriorityQueue``). An item of that queue holds the groups of one
explorer step, so all groups of a step share one draw of the random part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from trinity_compat.buffer import queries
from trinity_compat.buffer.queries import of_ids, query
from trinity_compat.job.run_spec import ReplaySpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def priorities(versions: Ints, uses: Ints, steps: Ints, replay: ReplaySpec) -> Floats:
    """Priorities, float64 [N], of N groups with ``versions``, ``uses`` and explorer ``steps``, int64 [N].

    The formula is updates · version − decay · uses + sigma · ε, with ε standard normal: a function of the
    seed, the step and the uses, as upstream draws again each time that an item returns to the queue.
    """
    fixed = (replay.updates_per_version * versions - replay.decay * uses).astype(np.float64)
    return fixed + replay.sigma * _draws(uses, steps, replay.seed) if replay.sigma > 0 else fixed


def _draws(uses: Ints, steps: Ints, seed: int) -> Floats:
    drawn = np.empty(len(uses))
    for count in np.unique(uses):
        same = uses == count
        generator = np.random.default_rng((abs(seed), int(count)))
        drawn[same] = generator.standard_normal(int(steps[same].max()) + 1)[steps[same]]
    return drawn


def take(conn: sa.Connection, bind: dict[str, Any], count: int, replay: ReplaySpec, *, skip: str) -> int:
    """Lease the first ``count`` groups; returns the number leased.

    Groups of equal priority are ordered by uses, then by the time of the last use, then by task.
    """
    rows = conn.execute(query(queries.REPLAYABLE), bind).all()
    if len(rows) < count:
        return len(rows)
    ids, versions, uses, steps = (np.array([row[at] for row in rows], np.int64) for at in range(4))
    order = np.argsort(-priorities(versions, uses, steps, replay), kind="stable")
    chosen = [int(each) for each in ids[order[:count]]]
    taken = of_ids(queries.TAKE_CHOSEN.format(skip_locked=skip))
    return len(conn.execute(taken, {"token": bind["token"], "ids": chosen}).all())
