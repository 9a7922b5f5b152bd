"""Sizes of published models by their names, for rules and checks where the model is not on this machine."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from trinity_compat.common.nested import Tree, section_at

_FILE = Path(__file__).with_name("known_models.json")
_ABOUT = ("name", "match", "base", "generic")  # of an entry, beside what config.json holds


@dataclass(frozen=True, slots=True)
class StandInModel:
    """``config``: what its config.json holds. ``generic``: the name says nothing of the model."""

    name: str
    config: Tree
    generic: bool = False

    def is_named_in(self, path: str) -> bool:
        """Return whether ``path`` has each word of the name: `Qwen3-4B-Instruct-2507` is Qwen3-4B-2507."""
        words = (re.sub(r"(?<=[a-z])(?=\d)", "-?", re.escape(word)) for word in self.name.lower().split("-"))
        return not self.generic and all(
            re.search(rf"(?<![a-z0-9.]){word}(?![a-z0-9])", path.lower()) for word in words
        )


def stand_in(path: str) -> StandInModel:
    """The stand-in for a model's path or name."""
    table = _table()
    entry = next(each for each in table["models"] if re.search(str(each["match"]), path, re.IGNORECASE))
    facts = {key: value for key, value in entry.items() if key not in _ABOUT}
    base = table["bases"][str(entry["base"])]
    if "text_config" in base:  # a model of images and text: the sizes are its language model's
        facts = {"text_config": {**section_at(base, "text_config"), **facts}}
    return StandInModel(str(entry["name"]), {**base, **facts}, bool(entry.get("generic")))


class _Table(TypedDict):
    """known_models.json. ``bases``: name → what models of a kind share; ``models``: their own facts."""

    bases: dict[str, dict[str, object]]
    models: list[dict[str, object]]


@functools.cache
def _table() -> _Table:
    table: _Table = json.loads(_FILE.read_text(encoding="utf-8"))
    return table
