"""The page of every field of a Trinity YAML: new, from the form, or from a pasted script or YAML.

Its texts come as a POST, which has room for a script. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import TRINITY
from trinity_compat.studio.configure_page import FILES, download, loaded, made, refused, texts_of
from trinity_compat.studio.pages import form_of, page, studio_of, texts_in
from trinity_compat.translate.form import FormRemark, FormResult
from trinity_compat.translate.form.answers import FieldChange, result_in
from trinity_compat.translate.form.expert import by_path, expert_fields, numbers_of
from trinity_compat.trinity.workflows.registry import PROGRAM, REWARDS, VERL, WORKFLOWS

_LARGEST = 1 << 20  # bytes of a request
_FIELD = "v:"  # before a path in the name of an input


async def expert(request: Request) -> Response:
    """Show the fields: a new configuration, that of a form (GET), or those of this page's form (POST)."""
    if request.method != "POST":
        return await run_in_threadpool(_new, request)
    given = await _given(request)
    given_of = (_fields(given), given.get("origin", ""), "part" in given)
    return await run_in_threadpool(_shown, request, *given_of)


async def load(request: Request) -> Response:
    """Show the fields of a pasted script or YAML, or the beginner's form of it."""
    given = await _given(request)
    text = given.get("text", "")
    if given.get("form") == "beginner":
        return await run_in_threadpool(loaded, request, text)
    try:
        found = await run_in_threadpool(studio_of(request).text_server.call, "fields_of_text", text)
    except UserError as error:
        remark = FormRemark("error", str(error))
        return _page(request, FormResult(remarks=(remark,)), {}, origin=text, pasted=text)
    return await run_in_threadpool(_shown, request, found["texts"], text, False)


async def file(request: Request) -> Response:
    """Return the YAML or the script of the fields as a download. Raises HTTPException 400 without one."""
    return download(*await text_of_fields(request))


async def text_of_fields(request: Request) -> tuple[str, str]:
    """Return the YAML or the script of the fields, and its name. Raises HTTPException 400 without one."""
    kind = request.path_params["kind"]
    given = await _given(request)
    result, _ = await run_in_threadpool(_made, request, _fields(given))
    text = {"yaml": result.yaml, "script": result.script}.get(kind)
    if not text:
        raise HTTPException(400, "These fields make no such file: check them first.")
    return text, FILES[kind]


def _new(request: Request) -> Response:
    if not request.query_params:
        return _shown(request, {}, "", False)
    form = made(request, texts_of(request.query_params))
    if not form.works:
        return _page(request, form, {})
    origin = form.script if form.script and not form.sets else form.yaml
    short = studio_of(request).text_server.call("fields_of_text", origin)
    return _shown(request, short["texts"], origin, False)


def _made(
    request: Request, texts: Mapping[str, str], origin: str = ""
) -> tuple[FormResult, list[FieldChange]]:
    """Return the files of the fields, and the changes since ``origin`` was loaded."""
    try:
        answer = studio_of(request).text_server.call("files_of_fields", dict(texts), origin)
    except UserError as error:
        return refused(error), []
    return result_in(answer), answer["changes"]


def _shown(request: Request, texts: Mapping[str, str], origin: str, part: bool) -> Response:
    result, changes = _made(request, texts, origin)
    return _page(request, result, texts, origin=origin, changes=changes, part=part)


def _page(
    request: Request,
    result: FormResult,
    texts: Mapping[str, str],
    *,
    origin: str = "",
    pasted: str = "",
    changes: list[FieldChange] | tuple[()] = (),
    part: bool = False,
) -> Response:
    known = by_path()
    # A place inside a field is marked at the field.
    wrong = {
        path
        for remark in result.remarks
        if remark.rank == "error"
        for path in (*known, *texts)
        if remark.name == path or remark.name.startswith(f"{path}.")
    }
    named = [path for path, text in texts.items() if text.strip()] + list(wrong)
    given = {path for path in known if any(name == path or name.startswith(f"{path}.") for name in named)}
    values = {"sections": expert_fields(), "texts": texts, "made": result, "wrong": wrong, "given": given}
    values |= {"origin": origin, "pasted": pasted, "changes": changes, "post": True, "address": ""}
    values |= {"trinity": TRINITY, "numbers": numbers_of(named)}
    values |= {"workflows": [*WORKFLOWS, PROGRAM, VERL], "rewards": REWARDS}
    return page(request, "configure_result.html" if part else "expert.html", values)


def _fields(given: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_FIELD): text for name, text in given.items() if name.startswith(_FIELD)}


async def _given(request: Request) -> dict[str, str]:
    """Return the fields of a form of this page. Raises HTTPException 413 and 403."""
    return texts_in(await form_of(request, _LARGEST))
