"""The page Start: from a script or YAML to a run on this machine.

Its form becomes a draft (``start_drafts.py``), whose page shows command, environment and checks, and starts
it. A studio with --read-only refuses it.
"""

from __future__ import annotations

from dataclasses import fields as names_of
from dataclasses import replace

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import shown
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.studio import configure_page, expert_page, launch_files, run_state
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import form_of, page, page_of, studio_of, texts_in
from trinity_compat.studio.start_drafts import StartDraft, StartDrafts
from trinity_compat.studio.start_plan import DEVICES, MODES, StartFields, free_name, plan_of

_LARGEST_FORM = 12 * launch_files.LARGEST  # bytes: a character is at most nine with its per cent signs
_FIELDS = [field.name for field in names_of(StartFields)]


async def start(request: Request) -> Response:
    """Show the form; on POST with ``check`` plan the run, else show the form with what another page sent."""
    refuse_read_only(request)
    if request.method != "POST":
        return await run_in_threadpool(_new, request)
    given = texts_in(await form_of(request, _LARGEST_FORM))
    fields = StartFields(**{name: given.get(name, "") for name in _FIELDS})
    return await run_in_threadpool(
        _planned, request, fields, given.get("draft", ""), bool(given.get("check"))
    )


async def expert(request: Request) -> Response:
    """Show the form with the YAML or the script of the page that edits every field."""
    refuse_read_only(request)
    text, name = await expert_page.text_of_fields(request)
    return await run_in_threadpool(_form, request, StartFields(text=text, file_name=name))


async def draft(request: Request) -> Response:
    """Show a draft; on POST start its run. A run that has made its job is at its own page."""
    refuse_read_only(request)
    if request.method == "POST":
        await form_of(request)
    return await run_in_threadpool(_draft, request)


async def check_configured(request: Request) -> Response:
    """Begin the dry run of a YAML that the page Configure made; on GET show how far it is."""
    refuse_read_only(request)
    name, drafts = request.path_params.get("check", ""), drafts_of(request)
    if request.method == "POST":
        text = texts_in(await form_of(request, _LARGEST_FORM)).get("text", "")
        try:
            name = await run_in_threadpool(drafts.check_configured, text)
        except OSError as error:
            raise HTTPException(503, f"The dry run cannot start: {error}") from error
    if (check := drafts.configured_check(name)) is None:
        raise HTTPException(404, "This check is not known any more.")
    return page(request, "configure_check.html", {"check": check, "id": name})


def drafts_of(request: Request) -> StartDrafts:
    """Return the studio's drafts."""
    found: StartDrafts = request.app.state.drafts
    return found


def refuse_read_only(request: Request) -> None:
    """Raise HTTPException 403 in a studio that changes nothing."""
    if studio_of(request).listener.read_only:
        raise HTTPException(403, "The studio was started with --read-only: it starts nothing.")


def job_of_draft(request: Request, draft: StartDraft) -> Job | None:
    """Return the job that the draft's run has made, or that of its first stage; None before."""
    if draft.run is None:
        return None
    name, jobs = draft.plan.name, studio_of(request).jobs.all()
    for job in (one for key, one in jobs.items() if key == name or key.startswith(f"{name}/")):
        if not run_state.database_problem(job):
            job.resumed = job.resumed or draft.run
            return job
    return None


def _new(request: Request) -> Response:
    earlier = drafts_of(request).get(request.query_params.get("draft", ""))
    if earlier is not None:
        fields = earlier.plan.fields.hidden()
        return _form(request, fields, draft=earlier.id)
    if kind := request.query_params.get("configured"):
        text, name, sets = configure_page.text_of_form(request, kind)
        return _form(request, StartFields(text=text, file_name=name, settings="\n".join(sets)))
    return _form(request, StartFields(source=request.query_params.get("file", "")))


def _planned(request: Request, fields: StartFields, draft: str, checks: bool) -> Response:
    earlier = drafts_of(request).get(draft)
    if earlier is not None:
        fields = fields.with_secrets_of(earlier.plan.fields)
    if not checks:
        return _form(request, fields.hidden())
    try:
        made = drafts_of(request).add(plan_of(fields, studio_of(request).jobs))
    except UserError as error:
        return _form(request, fields.hidden(), draft=draft, problem=shown(str(error)), status=400)
    return RedirectResponse(_address(request, made), 303)


def _form(
    request: Request, fields: StartFields, *, draft: str = "", problem: str = "", status: int = 200
) -> Response:
    root = studio_of(request).jobs.root
    offered = launch_files.offered(root)
    if fields.source and not fields.text and not fields.name and fields.source in offered:
        fields = replace(fields, name=free_name(root, offered[fields.source].stem))
    elif fields.text and not fields.name:
        fields = replace(fields, name=free_name(root, fields.file_name.partition(".")[0]))
    values = {"fields": fields, "offered": list(offered), "modes": MODES, "devices": DEVICES, "draft": draft}
    values |= {"releases": VERL_RELEASES[::-1], "folder": str(root), "problem": problem}
    return page(request, "start.html", values, status=status)


def _draft(request: Request) -> Response:
    found = drafts_of(request).get(request.path_params["draft"])
    if found is None:
        raise HTTPException(
            404, "This start is not known any more: the studio forgets old ones. Begin again."
        )
    problem, status = "", 200
    job = job_of_draft(request, found)
    if request.method == "POST" and job is None:
        problem = drafts_of(request).start(found)
        if not problem:
            return RedirectResponse(_address(request, found), 303)
        status = 409
    if job is not None and "part" not in request.query_params:
        return RedirectResponse(page_of(request, "run", job), 303)
    values = {"draft": found, "plan": found.plan, "check": found.check, "problem": shown(problem)}
    values |= {"run_page": page_of(request, "run", job) if job else "", "address": _address(request, found)}
    part = "part" in request.query_params
    return page(request, "start_state.html" if part else "start_draft.html", values, status=status)


def _address(request: Request, draft: StartDraft) -> str:
    return f"{studio_of(request).listener.base}/start/{draft.id}"
