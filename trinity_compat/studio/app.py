"""The studio's routes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trinity_compat.buffer.errors import BufferError
from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import shown
from trinity_compat.studio import (
    advise_page,
    compare_page,
    configure_page,
    control,
    experiences,
    expert_page,
    group_page,
    groups_page,
    live,
    run_pages,
    runs_page,
    start_page,
    translate_page,
    workspace_page,
)
from trinity_compat.studio.assets import mounts
from trinity_compat.studio.baselines import Baselines
from trinity_compat.studio.comparisons import Comparisons
from trinity_compat.studio.guard import Listener, RequestGuard
from trinity_compat.studio.pages import Studio, page, refusal
from trinity_compat.studio.panels import Panels
from trinity_compat.studio.start_drafts import StartDrafts


def create_app(root: Path, listener: Listener, baselines: Mapping[str, Path] | None = None) -> Starlette:
    """Return the application for the jobs in ``root``, guarded by ``listener``.

    ``baselines``: name → absolute path without links, beside those below ``root``.
    """
    app = Starlette(
        routes=[
            Route("/", runs_page.runs),
            Route("/run/{job:path}", run_pages.run),
            Route("/metrics/{job:path}", run_pages.metrics),
            Route("/seconds/{job:path}", run_pages.seconds),
            Route("/look/{job:path}", live.look),
            Route("/log/{job:path}", run_pages.log),
            Route("/configuration/{job:path}", run_pages.configuration),
            Route("/proof/{job:path}", run_pages.proof),
            Route("/experiences/{job:path}", experiences.experiences),
            Route("/groups/{job:path}", groups_page.groups),
            Route("/group/{job:path}", group_page.group),
            Route("/tokens/{job:path}", group_page.answer_part),
            Route("/image/{job:path}", experiences.image),
            Route("/selection/{job:path}", experiences.selection),
            Route("/compare", workspace_page.workspace),
            Route("/overlay", workspace_page.workspace),  # its address before the two pages were one
            Route("/panels", workspace_page.panels, methods=["POST"]),
            Route("/baseline", workspace_page.baseline),
            Route("/verdict", compare_page.verdict),
            Route("/curves", compare_page.curves),
            Route("/report", compare_page.report),
            Route("/answers", compare_page.same_task),
            Route("/configure", configure_page.configure),
            Route("/configure/file/{kind}", configure_page.file),
            Route("/configure/expert", expert_page.expert, methods=["GET", "POST"]),
            Route("/configure/expert/file/{kind}", expert_page.file, methods=["POST"]),
            Route("/configure/check", start_page.check_configured, methods=["POST"]),
            Route("/configure/check/{check}", start_page.check_configured),
            Route("/configure/figures", advise_page.figures, methods=["POST"]),
            Route("/configure/load", expert_page.load, methods=["POST"]),
            Route("/advise", advise_page.advise, methods=["GET", "POST"]),
            Route("/stop/{job:path}", control.stop, methods=["GET", "POST"]),
            Route("/resume/{job:path}", control.resume, methods=["GET", "POST"]),
            Route("/translate", translate_page.translate_page, methods=["GET", "POST"]),
            Route("/start", start_page.start, methods=["GET", "POST"]),
            Route("/start/expert/{kind}", start_page.expert, methods=["POST"]),
            Route("/start/{draft}", start_page.draft, methods=["GET", "POST"]),
            Route("/keys", translate_page.keys),
            Route("/alive", _alive),
            *mounts(),
        ],
        lifespan=_lifespan,
        middleware=[Middleware(RequestGuard, listener=listener, refusal=refusal)],
        exception_handlers={
            HTTPException: _problem_page,
            UserError: _problem_page,
            BufferError: _problem_page,
            SQLAlchemyError: _problem_page,
            sqlite3.Error: _problem_page,
        },
    )
    app.state.studio = Studio.over(root, listener, Comparisons(Baselines(root, baselines or {})))
    app.state.panels = Panels(root)
    app.state.drafts = StartDrafts(root.absolute())
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    app.state.studio.text_server.close()
    app.state.drafts.close()


async def _alive(request: Request) -> Response:
    """Answer an open page that asks whether the studio is there."""
    return Response(status_code=204)


def _problem_page(request: Request, error: Exception) -> Response:
    """Return a page with the error's message, never a traceback."""
    status = error.status_code if isinstance(error, HTTPException) else 503
    # SQLAlchemy's own text has the whole statement.
    cause = error.orig if isinstance(error, DBAPIError) else error
    text = error.detail if isinstance(error, HTTPException) else str(cause)
    return page(request, "problem.html", {"problem": shown(text), "status": status}, status=status)
