"""When weights move. Units: veRL steps; version v is the policy after step v, 0 the initial one.

Styles, after Trinity-RFT's ``synchronizer.sync_style`` (trinity-rft 0.6.0, explorer.py and trainer.py,
``need_sync``):

* fixed: the trainer publishes every ``interval`` steps, and each explorer step has one version that it
  must use: it waits for it. Same seed, same rollouts.
* trainer_driven: the trainer publishes every ``interval`` steps; the explorer takes the newest version at
  its next step and never waits for more than the first.
* explorer_driven: the explorer asks, every ``interval`` of its own steps after its first ``offset``; the
  trainer publishes when it is asked, between two steps or while it waits for groups.
* fully_async: as trainer_driven, and the explorer's engines change weights in the middle of their answers.

``trainer_interval`` and ``explorer_interval`` take the place of ``interval`` on one side.
"""

from __future__ import annotations

from trinity_compat.job.run_spec import SyncSpec


def trainer_interval(sync: SyncSpec) -> int:
    """Steps between two publications."""
    return sync.trainer_interval or sync.interval


def explorer_interval(sync: SyncSpec) -> int:
    """Explorer steps between two looks for weights."""
    return sync.explorer_interval or sync.interval


def publishes(sync: SyncSpec, step: int) -> bool:
    """Whether the trainer publishes version ``step`` unasked after step ``step`` (0: before the first)."""
    return step == 0 or (sync.style != "explorer_driven" and step % trainer_interval(sync) == 0)


def required_version(sync: SyncSpec, step: int) -> int | None:
    """The version that explorer step ``step`` (from 1) has to use; None: the newest one there is."""
    if sync.style != "fixed":
        return None
    looked = (step - 1 - sync.offset) // explorer_interval(sync) * explorer_interval(sync)
    return max(0, looked // trainer_interval(sync) * trainer_interval(sync))


def asks(sync: SyncSpec, step: int) -> bool:
    """Whether the explorer asks for weights before its step ``step``, and waits for the answer."""
    done = step - 1 - sync.offset
    return sync.style == "explorer_driven" and done > 0 and done % explorer_interval(sync) == 0


def looks(sync: SyncSpec, step: int) -> bool:
    """Whether the explorer takes the newest version before its step ``step``, asking nobody.

    Each step is one to look at, unless an ``explorer_interval`` of its own says otherwise.
    """
    if sync.style == "explorer_driven":
        return False
    done = step - 1 - sync.offset
    return sync.explorer_interval is None or (done > 0 and done % sync.explorer_interval == 0)


def last_step(sync: SyncSpec, max_staleness: int | None, in_place: int) -> int:
    """The last explorer step that may begin on version ``in_place``.

    ``fixed``: the last whose required version is not a later one. Else, as in AReaL (arXiv 2505.24298): the
    last that, were steps trained in their order, would be trained ``max_staleness`` steps after it; by
    default as many as the trainer's interval and the offset make, at least 1.
    """
    if sync.style != "fixed":
        ahead = max(1, trainer_interval(sync) + sync.offset) if max_staleness is None else max_staleness
        return in_place + 1 + ahead
    step = in_place + 1
    while (required_version(sync, step + 1) or 0) <= in_place:
        step += 1
    return step


def changes_within_a_step(sync: SyncSpec) -> bool:
    """Whether newer weights are put in place while answers are being generated."""
    return sync.style == "fully_async"


def oldest_needed(sync: SyncSpec, step: int, before: int) -> int:
    """Once version ``step`` is published, the one before it being ``before``: no explorer opens a version
    below this one any more. Where the newest is taken, one may be about to open the one before."""
    required = required_version(sync, step + 1)
    return min(before, step - trainer_interval(sync)) if required is None else required


def expected_lag(sync: SyncSpec, step: int) -> int | None:
    """Steps between the policy that trainer step ``step`` starts from and the one that generated its
    batch, under ``fixed`` (None otherwise: it depends on speed)."""
    version = required_version(sync, step)
    return None if version is None else step - 1 - version
