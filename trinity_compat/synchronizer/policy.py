"""When weights move. Units: veRL steps; version v is the policy after step v, 0 the initial one.

Styles, after Trinity-RFT's ``synchronizer.sync_style``:

* fixed: the trainer publishes every ``interval`` steps, and each explorer step has one version that it
  must use: it waits for it. Same seed, same rollouts.
* trainer_driven: the trainer publishes every ``interval`` steps; the explorer takes the newest version at
  its next step and never waits for more than the first.
* explorer_driven: the trainer publishes after each step; the explorer takes the newest version every
  ``interval`` of its own steps, after its first ``offset``.
* fully_async: as trainer_driven, and the explorer may change weights within a step.
"""

from __future__ import annotations

from trinity_compat.spec import SyncSpec


def publishes(sync: SyncSpec, step: int) -> bool:
    """Whether the trainer publishes version ``step`` after its step ``step`` (0: before the first)."""
    return step == 0 or sync.style == "explorer_driven" or step % sync.interval == 0


def required_version(sync: SyncSpec, step: int) -> int | None:
    """The version that explorer step ``step`` (from 1) has to use; None: the newest one there is."""
    if sync.style != "fixed":
        return None
    return max(0, (step - 1 - sync.offset) // sync.interval * sync.interval)


def takes_newest(sync: SyncSpec, step: int) -> bool:
    """Whether an explorer that is not ``fixed`` looks for new weights before its step ``step``."""
    if sync.style != "explorer_driven":
        return True
    done = step - 1 - sync.offset
    return done <= 0 or done % sync.interval == 0


def oldest_needed(sync: SyncSpec, step: int) -> int:
    """After trainer step ``step``: no explorer asks for a version below this one any more."""
    required = required_version(sync, step + 1)
    return step - sync.interval if required is None else required


def expected_lag(sync: SyncSpec, step: int) -> int | None:
    """Steps between the policy that trainer step ``step`` starts from and the one that generated its
    batch, under ``fixed`` (None otherwise: it depends on speed)."""
    version = required_version(sync, step)
    return None if version is None else step - 1 - version
