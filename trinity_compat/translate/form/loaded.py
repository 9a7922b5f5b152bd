"""A pasted script or YAML as a Trinity configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import leaves
from trinity_compat.common.releases import TARGETS, VERL
from trinity_compat.launch import read_text, refuse_lost_arguments
from trinity_compat.translate.form.made import SCRIPT
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.pipeline import translate_config, translate_launch
from trinity_compat.trinity.config.read import load_value, parse
from trinity_compat.trinity.config.validate import validate
from trinity_compat.verl_config.from_yaml import config_from_tree

_VERL = "actor_rollout_ref"
_TRINITY = ("algorithm", "buffer", "explorer", "model", "cluster", "trainer")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and its release; ``source`` says what the text was."""

    config: Mapping[str, object]
    target: str
    source: str


def loaded(text: str, target: str) -> Loaded:
    """Return the configuration that a text means: a Trinity YAML, a YAML of veRL, or a script.

    ``target`` is the release that a script is translated for; a Trinity YAML keeps its own. Raises UserError.
    """
    tree = _tree(text)
    if tree is not None and _VERL in tree:
        options = TranslateOptions(target=target, minimal=True)
        return Loaded(
            translate_config(config_from_tree(dict(tree), VERL), options)[0].config, target, "veRL YAML"
        )
    if tree is not None:
        release = next((each for each in TARGETS if not validate(tree, each)), target)
        return Loaded(parse(text, "pasted.yaml", release), release, "Trinity YAML")
    reading = read_text(text, name=SCRIPT)
    refuse_lost_arguments(reading)
    if not reading.launches:
        hint = "paste a script with python3 -m verl.trainer.main_ppo, or a YAML with its sections"
        raise UserError(
            "neither a launch of veRL nor a YAML of Trinity or veRL", where=Where("pasted"), hint=hint
        )
    options = TranslateOptions(target=target, minimal=True)
    return Loaded(translate_launch(reading.launches[0], options)[0].config, target, "script")


def _tree(text: str) -> Mapping[str, object] | None:
    """Return the sections of a YAML text, None for another one."""
    try:
        found = load_value(text, "pasted.yaml")
    except UserError:
        return None
    if isinstance(found, Mapping) and any(name in found for name in (_VERL, *_TRINITY)):
        return found
    return None


FieldChange = tuple[str, object, object]  # path, value before, value now


def changed(before: Mapping[str, object], now: Mapping[str, object]) -> list[FieldChange]:
    """Return every difference; a value is None where one has none."""
    old, new = dict(leaves(before)), dict(leaves(now))
    paths = dict.fromkeys((*old, *new))
    return [(path, old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)]


def changes_since(text: str, target: str, now: Mapping[str, object]) -> list[FieldChange]:
    """Return the differences of a configuration from the text that was loaded. Raises UserError."""
    return changed(loaded(text, target).config, now)
