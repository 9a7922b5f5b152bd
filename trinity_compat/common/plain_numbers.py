"""Numbers of a configuration or a JSON file: a bool, which Python takes for an int, is none of them."""

from __future__ import annotations

from typing import TypeGuard


def is_whole(value: object, *, least: int | None = None) -> TypeGuard[int]:
    """Return whether a value is an int, of ``least`` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is an int or a float; infinite ones and NaN count."""
    return isinstance(value, int | float) and not isinstance(value, bool)
