"""How a launch ended. Apart from what runs one: whoever only reads a script imports this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """How one launch ended, for the outer process's last words."""

    code: int
    job: str | None
    message: str | None = None
