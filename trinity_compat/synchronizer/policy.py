"""Schedule of weight updates. Units: veRL steps; version v is the policy after step v, 0 the initial one.

Styles, after Trinity-RFT's ``synchronizer.sync_style`` (trinity-rft 0.6.0, explorer.py and trainer.py,
``need_sync``):

* fixed: the trainer publishes every ``interval`` steps, and each explorer step has one version that it
  must use and waits for. On a CPU the same seed gives the same rollouts.
* trainer_driven: the trainer publishes every ``interval`` steps; the explorer takes the newest version at
  its next step, and waits for the first version only.
* explorer_driven: the explorer requests weights every ``interval`` of its steps after the first ``offset``;
  the trainer publishes on request, between two steps or while it waits for groups.
* fully_async: as trainer_driven, and the explorer's engines change weights while they generate answers.

``trainer_interval`` and ``explorer_interval`` replace ``interval`` on one side.
"""

from __future__ import annotations

from trinity_compat.job.run_spec import SyncSpec


def trainer_interval(sync: SyncSpec) -> int:
    """Return the steps between two publications."""
    return sync.trainer_interval or sync.interval


def explorer_interval(sync: SyncSpec) -> int:
    """Return the explorer steps between two requests for weights, or checks for newer ones."""
    return sync.explorer_interval or sync.interval


def publishes(sync: SyncSpec, step: int) -> bool:
    """Return whether the trainer publishes version ``step`` without a request (0: before the first step)."""
    return step == 0 or (sync.style != "explorer_driven" and step % trainer_interval(sync) == 0)


def required_version(sync: SyncSpec, step: int) -> int | None:
    """Return the version that explorer step ``step`` (from 1) has to use; None: the newest one."""
    if sync.style != "fixed":
        return None
    return max(0, steps_at_sync(sync, step) // trainer_interval(sync) * trainer_interval(sync))


def steps_at_sync(sync: SyncSpec, step: int) -> int:
    """Return the explorer steps, without the offset, that were done at the last sync before ``step``."""
    return (step - 1 - sync.offset) // explorer_interval(sync) * explorer_interval(sync)


def requests_weights(sync: SyncSpec, step: int) -> bool:
    """Return whether the explorer requests weights before its step ``step``, and waits for the answer."""
    done = step - 1 - sync.offset
    return sync.style == "explorer_driven" and done > 0 and done % explorer_interval(sync) == 0


def takes_newest(sync: SyncSpec, step: int) -> bool:
    """Return whether the explorer takes the newest version before its step ``step``, without a request.

    It does before each step, unless ``explorer_interval`` is set.
    """
    if sync.style == "explorer_driven":
        return False
    done = step - 1 - sync.offset
    return sync.explorer_interval is None or (done > 0 and done % sync.explorer_interval == 0)


def last_step(sync: SyncSpec, max_staleness: int | None, in_place: int) -> int:
    """Return the last explorer step that may begin with version ``in_place``.

    ``fixed``: the last whose required version is not a later one. Else, as in AReaL (arXiv 2505.24298): the
    last that, were steps trained in their order, would be trained ``max_staleness`` steps after it; by
    default the trainer's interval plus the offset, at least 1.
    """
    if sync.style != "fixed":
        ahead = max(1, trainer_interval(sync) + sync.offset) if max_staleness is None else max_staleness
        return in_place + 1 + ahead
    step = in_place + 1
    while (required_version(sync, step + 1) or 0) <= in_place:
        step += 1
    return step


def changes_within_a_step(sync: SyncSpec) -> bool:
    """Return whether newer weights are loaded while answers are being generated."""
    return sync.style == "fully_async"


def oldest_needed(sync: SyncSpec, step: int, before: int) -> int:
    """Return the oldest version that an explorer may still open.

    Version ``step`` was published just now, ``before`` before it. Where the newest is taken, an explorer may
    be about to open the one before.
    """
    required = required_version(sync, step + 1)
    return min(before, step - trainer_interval(sync)) if required is None else required


def expected_lag(sync: SyncSpec, step: int) -> int | None:
    """Return the steps between the policy of trainer step ``step`` and the one that generated its batch.

    Only under ``fixed``; None otherwise, since it depends on speed.
    """
    version = required_version(sync, step)
    return None if version is None else step - 1 - version
