"""The studio's addresses."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from trinity_compat.buffer.errors import BufferError
from trinity_compat.errors import UserError
from trinity_compat.secret import shown
from trinity_compat.studio import comparing, control, experiences, images, live, runs
from trinity_compat.studio.guard import Door, Guard
from trinity_compat.studio.pages import HERE, Studio, page, refusal
from trinity_compat.web import ASSETS


def create_app(root: Path, door: Door) -> Starlette:
    """The application over the jobs below ``root``, behind ``door``."""
    app = Starlette(
        routes=[
            Route("/", runs.runs),
            Route("/run/{job:path}", runs.run),
            Route("/metrics/{job:path}", runs.metrics),
            Route("/seconds/{job:path}", runs.seconds),
            Route("/events/{job:path}", live.events),
            Route("/configuration/{job:path}", runs.configuration),
            Route("/experiences/{job:path}", experiences.experiences),
            Route("/group/{job:path}", experiences.group),
            Route("/image/{job:path}", images.image),
            Route("/selection/{job:path}", experiences.selection),
            Route("/note/{job:path}", experiences.note, methods=["POST"]),
            Route("/compare", comparing.comparison),
            Route("/curves", comparing.curves),
            Route("/report", comparing.report),
            Route("/answers", comparing.same_task),
            Route("/stop/{job:path}", control.stop, methods=["GET", "POST"]),
            Route("/resume/{job:path}", control.resume, methods=["GET", "POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
            Mount("/shared", StaticFiles(directory=ASSETS)),
        ],
        middleware=[Middleware(Guard, door=door, refusal=refusal)],
        exception_handlers={
            HTTPException: _told,
            UserError: _told,
            BufferError: _told,
            SQLAlchemyError: _told,
            sqlite3.Error: _told,
        },
    )
    app.state.studio = Studio.over(root, door, comparing.Comparisons())
    return app


def _told(request: Request, error: Exception) -> Response:
    """A page that says what is wrong; never a traceback."""
    status = error.status_code if isinstance(error, HTTPException) else 503
    text = error.detail if isinstance(error, HTTPException) else str(error)
    return page(request, "problem.html", {"problem": shown(text), "status": status}, status=status)
