"""A problem of one place of a Trinity configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """``path`` is dotted, list positions as numbers: ``buffer.explorer_input.eval_tasksets.0.path``."""

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else "")
