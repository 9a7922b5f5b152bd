"""Address of the reward model's server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.common.nested import value_at
from trinity_compat.explorer.served.address import ServedRole

ROLE = "reward_model"
TOKEN = "TRINITY_COMPAT_REWARD_MODEL"
_ENABLE = "reward.reward_model.enable"
_SERVED = ServedRole(ROLE, TOKEN, key=_ENABLE, subject="the reward model is")

address_cell = _SERVED.cell
wait_for_address = _SERVED.wait


def is_served(verl: Mapping[str, Any]) -> bool:
    """Return whether the launch has a reward model."""
    return bool(value_at(verl, _ENABLE))
