"""What is wrong with one place of a Trinity configuration."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """``path`` is dotted, list positions as numbers: ``buffer.explorer_input.eval_tasksets.0.path``."""

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else "")


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return ``did you mean 'x'?`` for the nearest known spelling, None when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None
