"""The page that makes a launch and its YAML from nothing.

A form is a GET, so its address holds it. The files are made by the text server, since any setting of veRL may
stand in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.common.errors import UserError
from trinity_compat.studio.pages import page, studio_of
from trinity_compat.translate.form import BASIC, FIELDS, MORE, SIDES, FormRemark, FormResult, defaults
from trinity_compat.translate.form.answers import result_in

FILES = {"yaml": "trinity.yaml", "script": "run.sh"}


def texts_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return field → text of a request; a new form's without any field."""
    if not FIELDS.keys() & given.keys():
        return defaults()
    # A browser leaves out a flag that is off.
    return {
        name: given.get(name, "" if field.kind == "flag" else field.default) for name, field in FIELDS.items()
    }


def made(request: Request, texts: Mapping[str, str]) -> FormResult:
    """Return the files of a form."""
    try:
        return result_in(studio_of(request).text_server.call("files_of_form", dict(texts)))
    except UserError as error:
        return refused(error)


def refused(error: UserError) -> FormResult:
    """Return a result without files, for fields that could not be read."""
    return FormResult(remarks=(FormRemark("error", error.message, error.hint or ""),))


def configure(request: Request) -> Response:
    """Show the form with its remarks and files; with ``part`` only these, for a page that is open."""
    texts = texts_of(request.query_params)
    template = "configure_result.html" if "part" in request.query_params else "configure.html"
    return page(request, template, _values(request, texts))


def loaded(request: Request, text: str) -> Response:
    """Show the form of a pasted script or YAML, with what it does not hold; or why there is none."""
    try:
        found = studio_of(request).text_server.call("form_of_text", text)
    except UserError as error:
        values = _values(request, defaults()) | {"pasted": text, "problem": str(error)}
    else:
        values = _values(request, found["texts"]) | {"loaded": text, "lost": found["lost"]}
    return page(request, "configure.html", values)


def _values(request: Request, texts: Mapping[str, str]) -> dict[str, object]:
    result = made(request, texts)
    values = {"basic": BASIC, "sides": SIDES, "more": MORE, "texts": texts, "made": result, "post": False}
    values |= {"wrong": {remark.name for remark in result.remarks if remark.rank == "error"}}
    values |= {"address": urlencode(texts, errors="replace"), "origin": "", "pasted": "", "problem": ""}
    changed = sum(texts[field.name] != field.default for field in MORE)
    return values | {"changed": changed, "loaded": "", "lost": []}


def file(request: Request) -> Response:
    """Return one file of a form as a download. Raises HTTPException 404 and 400."""
    return download(*text_of_form(request, request.path_params["kind"])[:2])


def text_of_form(request: Request, kind: str) -> tuple[str, str, tuple[str, ...]]:
    """Return one file of a form, its name, and what a start sets. Raises HTTPException 404, 400."""
    if kind not in FILES:
        raise HTTPException(404, f"No file {kind!r}: the files are {', '.join(FILES)}.")
    result = made(request, texts_of(request.query_params))
    if not result.works:
        raise HTTPException(
            400, "; ".join(remark.message for remark in result.remarks if remark.rank == "error")
        )
    if kind == "yaml":
        return result.yaml, FILES[kind], ()
    return result.script, FILES[kind], result.sets


def download(text: str, name: str) -> Response:
    """Return a file that a browser saves and never shows."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text.encode(errors="backslashreplace"), media_type="text/plain", headers=headers)
