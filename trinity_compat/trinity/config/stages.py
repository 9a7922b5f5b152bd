"""The stages of a Trinity YAML, each as a configuration of its own.

Source: ``Config.__iter__`` of trinity-rft 0.6.0 (common/config.py). A section of a stage replaces the file's
section entirely: fields that the stage leaves out have trinity-rft's default, not the file's value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, put

# Fields of StageConfig that replace the file's own.
_SECTIONS = ("mode", "algorithm", "buffer", "data_processor", "explorer", "trainer")
_NAME = re.compile(r"[\w.-]+")
_OF_A_JOB = frozenset({".", "..", "config", "buffer", "monitor", "log", "weights", ".locks"})


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. ``number`` counts from 0; ``replaced``: the sections of the file that it replaces."""

    number: int
    name: str
    config: dict[str, object]
    replaced: tuple[str, ...]


def stages_of(config: Mapping[str, object]) -> list[Stage]:
    """Return the stages in the file's order; empty if it has none. Raises UserError for names that clash."""
    given = config.get("stages")
    sections = [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []
    names = [str(section.get("stage_name") or "") for section in sections]
    for number, name in enumerate(names):
        # A stage's job is a folder of this name in that of the run.
        path = f"stages.{number}.stage_name"
        if not _NAME.fullmatch(name) or name in _OF_A_JOB:
            raise UserError(
                f"{path}={name!r}: each stage has a folder of this name in the run's own",
                hint="write letters, digits, _, . and - that name nothing else there",
            )
        if name in names[:number]:
            raise UserError(
                f"{path}={name}: an earlier stage has this name", hint="give each a name of its own"
            )
    return [_stage(config, number, name, sections[number]) for number, name in enumerate(names)]


def _stage(config: Mapping[str, object], number: int, name: str, section: Mapping[str, object]) -> Stage:
    whole = copied({key: value for key, value in config.items() if key != "stages"})
    said = {key: section[key] for key in _SECTIONS if section.get(key) is not None}
    whole |= copied(said)
    whole["name"] = f"{config.get('name') or 'rft'}/{name}"
    # So that the next one can load it, as upstream does.
    put(whole, "trainer.save_hf_checkpoint", "last")
    return Stage(number, name, whole, tuple(said))
