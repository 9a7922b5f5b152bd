"""The form's functions with JSON in and out, for a process of its own that reads what others have written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.translate.form.expert import made_of_fields, texts_of
from trinity_compat.translate.form.inverse import form_of
from trinity_compat.translate.form.loaded import changes_since, loaded
from trinity_compat.translate.form.made import FormRemark, FormResult, made_from

Answer = dict[str, Any]
ARGUMENTS = "arguments.json"  # the file with the arguments of a call


def files_of_form(texts: Mapping[str, str]) -> Answer:
    """Return the files of the beginner's form, as ``result_in`` reads them."""
    return _plain(made_from(texts))


def files_of_fields(texts: Mapping[str, str], target: str, origin: str) -> Answer:
    """Return the files of the fields, and ``changes`` since the text ``origin`` was loaded, '' for none.

    A change is (path, value before, value now), a value its text or None where there is none.
    """
    result, changes = made_of_fields(texts, target), []
    if origin and result.works:
        try:
            changes = changes_since(origin, target, result.config)
        except UserError as error:
            result = FormResult(remarks=(FormRemark("error", f"the text that was loaded: {error}"),))
    shown = [[path, *(None if each is None else str(each) for each in pair)] for path, *pair in changes]
    return {**_plain(result), "changes": shown}


def fields_of_text(text: str, target: str) -> Answer:
    """Return the texts of the fields that a pasted script or YAML sets, and its release. Raises UserError."""
    found = loaded(text, target)
    return {"texts": texts_of(found.config, found.target), "target": found.target}


def form_of_text(text: str, target: str) -> Answer:
    """Return the beginner's form of a pasted script or YAML, field → text, and what it does not hold.

    The latter as (path, value loaded, value of the form), a value its text or None. Raises UserError.
    """
    found = loaded(text, target)
    form = form_of(found.config, found.target)
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
        return {"error": {"message": "the text is too deep", "hint": "shorten it", "place": ""}}


def result_in(answer: Answer) -> FormResult:
    """Return the files and remarks of an answer."""
    remarks = tuple(FormRemark(**each) for each in answer["remarks"])
    return FormResult(answer["yaml"], answer["script"], remarks=remarks)


def _plain(result: FormResult) -> Answer:
    return {
        "yaml": result.yaml,
        "script": result.script,
        "remarks": [asdict(each) for each in result.remarks],
    }
