"""Trinity's replay buffer, as a run follows it.

Source: trinity-rft, ``buffer/storage/queue.py`` (AsyncPriorityQueue and its priority functions).
There all groups stand in one queue, by version of their weights less ``decay`` times their uses. Here a
group that was never trained comes before one that was, so that replay fills what is lacking and nothing new
waits behind it; ``decay`` therefore decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.errors import UserError
from trinity_compat.spec import ReplaySpec
from trinity_compat.translate.trinity_reader import TrinityReader

_SECTION = "buffer.trainer_input.experience_buffer.replay_buffer"
_UNLIMITED = 2**31 - 1
_LIMITED = "decay_limit_randomization"
_FUNCTIONS = ("linear_decay", _LIMITED)


def replay_of(config: Mapping[str, object]) -> ReplaySpec | None:
    """Return how groups are used again, None where each is trained once.

    Raises UserError for a priority function or an argument that a run can't follow, and under ``sync_style:
    fixed``, where each step is trained on the groups that were made for it.
    """
    reading = TrinityReader(config)
    if not reading.get(f"{_SECTION}.enable"):
        return None
    if reading.get("synchronizer.sync_style", "fixed") == "fixed":
        raise UserError(
            f"{_SECTION}.enable=true: under sync_style fixed a step is trained on the groups made for it",
            hint="write synchronizer.sync_style=trainer_driven, explorer_driven or fully_async,"
            " or leave the replay buffer out",
        )
    function = reading.get(f"{_SECTION}.priority_fn") or "linear_decay"
    if function not in _FUNCTIONS:
        raise UserError(f"{_SECTION}.priority_fn={function}: it may be {' or '.join(_FUNCTIONS)}")
    cooldown = reading.get(f"{_SECTION}.reuse_cooldown_time")
    limit = _use_limit(reading) if function == _LIMITED else 0
    if cooldown is None:
        return ReplaySpec()
    return ReplaySpec(max_uses=limit or _UNLIMITED, cooldown_s=_seconds(cooldown))


def note_of(replay: ReplaySpec) -> str:
    """What the user should know of it, in a line."""
    order = "replay buffer: groups of the newest weights first"
    if replay.max_uses == 1:
        return f"{order}; each is trained once, as reuse_cooldown_time is not set"
    often = "any number of" if replay.max_uses == _UNLIMITED else f"at most {replay.max_uses}"
    return (
        f"{order}; where too few are ready, trained ones again, least used first, {replay.cooldown_s:g} s"
        f" after their last use, {often} times in all (priority_fn's decay decides nothing here)"
    )


def _use_limit(reading: TrinityReader) -> int:
    """0: no limit. The group leaves the queue once it was used so often."""
    if sigma := reading.get(f"{_SECTION}.priority_fn_args.sigma", 0):
        raise UserError(
            f"{_SECTION}.priority_fn_args.sigma={sigma}: the order is not drawn by chance here",
            hint="write 0.0",
        )
    limit = reading.get(f"{_SECTION}.priority_fn_args.use_count_limit", 3)
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UserError(f"{_SECTION}.priority_fn_args.use_count_limit={limit}: write a whole number")
    return max(0, limit)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UserError(f"{_SECTION}.reuse_cooldown_time={value}: write a number of seconds, 0 or more")
    return float(value)
