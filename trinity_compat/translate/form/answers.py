"""The form's functions with JSON in and out, for a process of its own that reads what others have written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trinity_compat.common.errors import RunError, UserError, Where
from trinity_compat.common.nested import leaves
from trinity_compat.common.releases import VERL
from trinity_compat.launch import read_text, refuse_lost_arguments
from trinity_compat.translate.form.expert import made_of_fields, texts_of
from trinity_compat.translate.form.inverse import form_of
from trinity_compat.translate.form.made import SCRIPT, made_from
from trinity_compat.translate.form.result import FormRemark, FormResult
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.pipeline import translate_config, translate_launch
from trinity_compat.trinity.config.read import load_value, parse
from trinity_compat.verl_config.from_yaml import config_from_tree

_VERL = "actor_rollout_ref"
_TRINITY = ("algorithm", "buffer", "explorer", "model", "cluster", "trainer")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration; ``source`` says what the text was."""

    config: Mapping[str, object]
    source: str


def loaded(text: str) -> Loaded:
    """Return the configuration of a Trinity YAML, a YAML of veRL or a script. Raises UserError."""
    tree = _tree(text)
    if tree is not None and _VERL in tree:
        options = TranslateOptions(minimal=True)
        return Loaded(translate_config(config_from_tree(dict(tree), VERL), options)[0].config, "veRL YAML")
    if tree is not None:
        return Loaded(parse(text, "pasted.yaml"), "Trinity YAML")
    reading = read_text(text, name=SCRIPT)
    refuse_lost_arguments(reading)
    if not reading.launches:
        hint = "paste a script with python3 -m verl.trainer.main_ppo, or a YAML with its sections"
        raise UserError(
            "neither a launch of veRL nor a YAML of Trinity or veRL", where=Where("pasted"), hint=hint
        )
    options = TranslateOptions(minimal=True)
    return Loaded(translate_launch(reading.launches[0], options)[0].config, "script")


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


def changes_since(text: str, now: Mapping[str, object]) -> list[FieldChange]:
    """Return the differences of a configuration from the text that was loaded. Raises UserError."""
    return changed(loaded(text).config, now)


Answer = dict[str, Any]
ARGUMENTS = "arguments.json"  # the file with the arguments of a call


def files_of_form(texts: Mapping[str, str]) -> Answer:
    """Return the files of the beginner's form, as ``result_in`` reads them."""
    return _plain(made_from(texts))


def files_of_fields(texts: Mapping[str, str], origin: str) -> Answer:
    """Return the files of the fields, and ``changes`` since the text ``origin`` was loaded, '' for none.

    A change is (path, value before, value now), a value its text or None where there is none.
    """
    result, changes = made_of_fields(texts), []
    if origin and result.works:
        try:
            changes = changes_since(origin, result.config)
        except UserError as error:
            result = FormResult(remarks=(FormRemark("error", f"the text that was loaded: {error}"),))
    shown = [[path, *(None if each is None else str(each) for each in pair)] for path, *pair in changes]
    return {**_plain(result), "changes": shown}


def fields_of_text(text: str) -> Answer:
    """Return the texts of the fields that a pasted script or YAML sets. Raises UserError."""
    return {"texts": texts_of(loaded(text).config)}


def form_of_text(text: str) -> Answer:
    """Return the beginner's form of a pasted script or YAML, field → text, and what it does not hold.

    The latter as (path, value loaded, value of the form), a value its text or None. Raises UserError.
    """
    form = form_of(loaded(text).config)
    lost = [[path, *(None if each is None else str(each) for each in pair)] for path, *pair in form.lost]
    return {"texts": dict(form.texts), "lost": lost}


FUNCTIONS: Mapping[str, Callable[..., Answer]] = {
    function.__name__: function for function in (files_of_form, files_of_fields, fields_of_text, form_of_text)
}


def answered(name: str, arguments: list[Any]) -> Answer:
    """Return what a function returns, or ``error``: its ``message``, ``hint`` and ``place``, '' for none."""
    try:
        return FUNCTIONS[name](*arguments)
    except (UserError, RunError) as error:
        place = error.where if isinstance(error, UserError) else None
        return {"error": {"message": error.message, "hint": error.hint or "", "place": str(place or "")}}
    except RecursionError:
        return {"error": {"message": "the text is nested too deeply", "hint": "shorten it", "place": ""}}


def result_in(answer: Answer) -> FormResult:
    """Return the files and remarks of an answer."""
    remarks = tuple(FormRemark(**each) for each in answer["remarks"])
    return FormResult(
        answer["yaml"],
        answer["script"],
        remarks=remarks,
        sets=tuple(answer["sets"]),
        options=tuple(answer["options"]),
    )


def _plain(result: FormResult) -> Answer:
    return {
        "yaml": result.yaml,
        "script": result.script,
        "sets": result.sets,
        "options": result.options,
        "remarks": [asdict(each) for each in result.remarks],
    }
