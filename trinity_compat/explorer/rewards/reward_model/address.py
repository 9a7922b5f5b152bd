"""How an explorer finds the reward model's server: both have a token from their supervisor, and the server
leaves its address under it in the run's database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import value_at
from trinity_compat.explorer.await_with_checks import LOOK_S, attended

if TYPE_CHECKING:  # a dry run works without the packages of a run
    from trinity_compat.buffer.api import Buffer

ROLE = "reward_model"
TOKEN = "TRINITY_COMPAT_REWARD_MODEL"  # of one start of a run: what an earlier one left is not meant
_KEY = f"{ROLE}/address"


def is_served(verl: Mapping[str, Any]) -> bool:
    """Whether the launch has a reward model."""
    return bool(value_at(verl, "reward.reward_model.enable"))


def tell(buffer: Buffer, address: str, place: int = 0) -> None:
    """Leave ``address`` (host:port) for the explorers of this start.

    ``place``: of the model among those that the run serves.
    """
    buffer.set_state(_key(place), address)


def told(buffer: Buffer, place: int = 0) -> str | None:
    """The address that this start has, None before there is one."""
    found = buffer.get_state(_key(place))
    return None if found is None else str(found)


async def awaited(buffer: Buffer, check: Callable[[], None], *, timeout_s: float, place: int = 0) -> str:
    """The address, once the model is served; ``check`` is called meanwhile.

    Raises UserError where nobody serves it, RunError after ``timeout_s`` seconds, and what ``check`` raises.
    """
    if TOKEN not in os.environ:
        raise UserError(
            "reward.reward_model.enable: the reward model is served by `trinity-compat run`, not by an"
            " explorer alone",
            hint="start the explorer with `trinity-compat run --mode explore`",
        )
    late = RunError(
        f"the reward model is not served after {timeout_s:g} s", hint=f"see log/{ROLE}.log; it starts beside"
    )
    return await attended(_until_told(buffer, place), check, limit_s=timeout_s, late=lambda: late)


async def _until_told(buffer: Buffer, place: int) -> str:
    while (address := told(buffer, place)) is None:
        await asyncio.sleep(LOOK_S)
    return address


def _key(place: int) -> str:
    start = f"{_KEY}/{os.environ.get(TOKEN, '')}"
    return f"{start}/{place}" if place else start
