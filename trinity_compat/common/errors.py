"""Errors for users: a message with the place, the problem, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the user's input. ``line`` counts from 1; 0 when the input has no lines."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class UserError(Exception):
    """An error in the user's input or environment; the command line prints it and exits with 2.

    ``message`` is the problem in the user's own spelling, ``where`` the place in their file,
    ``hint`` what to write or run instead.
    """

    def __init__(self, message: str, *, where: Where | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{place}{self.message}{hint}"


class RunError(Exception):
    """A failure of a run that is not an error of the input; printed, exit code 1."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message
