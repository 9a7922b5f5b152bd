"""The end of a launch, in a module without dependencies, for commands that only read a script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """The end of one launch, for the last message of the outer process."""

    code: int
    job: str | None
    message: str | None = None
