"""Prompt texts of trinity-rft's workflows, and the units of answers (translators/workflows)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from trinity_compat.common.resources import data_path


@functools.cache
def _texts() -> dict[str, object]:
    found = json.loads(data_path("translators/workflows/texts.json").read_text(encoding="utf-8"))
    return dict(found)


def system_prompt(name: str) -> str:
    """System prompt of a workflow for a taskset without one. Raises KeyError."""
    return str(_texts()[name])


def units() -> Sequence[str]:
    """Words that are taken out of an answer before it is compared: upstream's regular expressions."""
    found = _texts()["units"]
    return [str(unit) for unit in found] if isinstance(found, list) else []
