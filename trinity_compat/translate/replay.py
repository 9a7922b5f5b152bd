"""Trinity's replay buffer, as a run follows it (``buffer/replay.py`` orders the groups).

Source: trinity-rft 0.6.0 and 0.4.1, ``buffer/storage/queue.py`` (AsyncPriorityQueue and its priority
functions): a priority function takes its own arguments only, each with a default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trinity_compat.common.errors import UserError
from trinity_compat.common.plain_numbers import is_number, is_whole
from trinity_compat.job.run_spec import ReplaySpec
from trinity_compat.translate.trinity_reader import TrinityReader

_SECTION = "buffer.trainer_input.experience_buffer.replay_buffer"
_CAPACITY = "buffer.trainer_input.experience_buffer.capacity"
_UNLIMITED = 2**31 - 1
_LINEAR, _LIMITED = "linear_decay", "decay_limit_randomization"
PRIORITY_ARGUMENTS: Mapping[str, Mapping[str, float]] = {
    _LINEAR: {"decay": 2.0},
    _LIMITED: {"decay": 2.0, "use_count_limit": 3, "sigma": 0.0},
}


def replay_of(
    config: Mapping[str, object], *, updates: int = 1, seed: int = 0, steps: int | None = None
) -> ReplaySpec | None:
    """Return how groups are used again, None where each is trained once, in the order of its task.

    ``updates`` are one veRL step, ``steps`` all of the run's, None where they are open. Raises UserError for
    a priority function or an argument that upstream does not know either, a ``capacity`` that would count
    there, and under ``sync_style: fixed``, where each step is trained on the groups made for it, unless the
    buffer orders them so.
    """
    reading = TrinityReader(config)
    if not reading.get(f"{_SECTION}.enable"):
        return None
    arguments = _arguments(reading)
    if keeps_generation_order(config):
        return None
    if reading.get("synchronizer.sync_style", "fixed") == "fixed":
        raise UserError(
            f"{_SECTION}.enable=true: under sync_style fixed a step is trained on the groups made for it",
            hint="write synchronizer.sync_style=trainer_driven, explorer_driven or fully_async,"
            " or leave the replay buffer out",
        )
    cooldown = reading.get(f"{_SECTION}.reuse_cooldown_time")
    if steps is not None and cooldown is not None:
        # Upstream's queue holds so many of the explorer's steps, and drops that of the lowest priority then.
        capacity = reading.get(_CAPACITY)
        if capacity is not None and capacity < steps:
            raise UserError(
                f"{_CAPACITY}={capacity}: groups that may be trained again are never dropped from the buffer",
                hint=f"write at least {steps}, the run's steps, or leave it out",
            )
    limit = max(0, int(arguments.get("use_count_limit", 0)))  # 0: none, as upstream has it
    return ReplaySpec(
        max_uses=1 if cooldown is None else limit or _UNLIMITED,
        cooldown_s=0.0 if cooldown is None else _seconds(cooldown),
        decay=arguments["decay"],
        sigma=max(0.0, arguments.get("sigma", 0.0)),  # a negative one draws nothing upstream
        updates_per_version=updates,
        seed=seed,
    )


def keeps_generation_order(config: Mapping[str, object]) -> bool:
    """Return True if upstream's buffer would give the groups in the order of their generation, each once.

    Both sides sync after the same steps then, so that all waiting groups have one version, and those of equal
    priority come in the order in which they were put (AsyncPriorityQueue), of which a full one drops the
    first.
    """
    reading = TrinityReader(config)
    if not reading.get(f"{_SECTION}.enable") or reading.get("synchronizer.sync_style", "fixed") != "fixed":
        return False
    every = reading.get("synchronizer.sync_interval", 1)
    intervals = {
        reading.get(f"synchronizer.{name}", every)
        for name in ("explorer_sync_interval", "trainer_sync_interval")
    }
    waiting = every * reading.get("buffer.batch_size", 1)
    return (
        reading.get(f"{_SECTION}.reuse_cooldown_time") is None
        and not reading.get("synchronizer.sync_offset")
        and len(intervals) == 1
        and reading.get(_CAPACITY, _UNLIMITED) >= waiting
        and _arguments(reading).get("sigma", 0.0) <= 0
    )


def note_of(config: Mapping[str, object], replay: ReplaySpec | None) -> str:
    """A line about the run's replay for the user; "" where there is none to say."""
    if replay is None and keeps_generation_order(config):
        return (
            f"{_SECTION}.enable: the groups between two syncs have one version and are trained once each, so"
            " they come in the order of their tasks"
        )
    if replay is None:
        return ""
    order = "replay buffer: groups of the highest priority first, the version of their weights"
    drawn = f" and normal noise of standard deviation {replay.sigma:g}" if replay.sigma else ""
    if replay.max_uses == 1:
        return f"{order}{drawn}; each is trained once, as reuse_cooldown_time is not set"
    often = "any number of" if replay.max_uses == _UNLIMITED else f"at most {replay.max_uses}"
    return (
        f"{order} less {replay.decay:g} for each use{drawn}; a trained group comes back"
        f" {replay.cooldown_s:g} s after its last use, {often} times in all"
    )


def _arguments(reading: TrinityReader) -> dict[str, float]:
    """All arguments of the priority function, with upstream's defaults."""
    function = reading.get(f"{_SECTION}.priority_fn") or _LINEAR
    if function not in PRIORITY_ARGUMENTS:
        raise UserError(f"{_SECTION}.priority_fn={function}: it may be {' or '.join(PRIORITY_ARGUMENTS)}")
    known = PRIORITY_ARGUMENTS[function]
    given = reading.get(f"{_SECTION}.priority_fn_args") or {}
    for name, value in given.items():
        said = f"{_SECTION}.priority_fn_args.{name}={value}"
        if name not in known:
            raise UserError(f"{said}: {function} has no such argument", hint=f"it has {', '.join(known)}")
        whole = name == "use_count_limit"
        if not (is_whole(value) if whole else is_number(value) and math.isfinite(value)):
            raise UserError(f"{said}: write a {'whole ' if whole else ''}number")
    return {**known, **given}


def _seconds(value: object) -> float:
    if not is_number(value) or not 0 <= value < float("inf"):
        raise UserError(f"{_SECTION}.reuse_cooldown_time={value}: write a number of seconds, 0 or more")
    return float(value)
