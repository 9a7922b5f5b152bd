"""Paths of the data directories ``translators/`` and ``overrides/``, in the wheel and in a checkout."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]


def data_path(name: str) -> Path:
    """Return the path of a shipped data file or directory, e.g. ``translators/by_hand/rows``.

    A wheel holds them under ``trinity_compat/_data/``; an editable install beside the package.
    Raises FileNotFoundError when neither has it: the installation is broken.
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        if (root / name).exists():
            return root / name
    raise FileNotFoundError(f"trinity-compat's data {name!r} is missing: reinstall the package")


@cache
def data_json(name: str) -> Any:
    """Return what a shipped JSON file holds, to read only. Raises FileNotFoundError as ``data_path``."""
    return json.loads(data_path(name).read_text(encoding="utf-8"))
