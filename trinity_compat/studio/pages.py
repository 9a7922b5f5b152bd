"""What every page needs: templates with all text escaped, and the job that an address names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from trinity_compat import __version__
from trinity_compat.studio.guard import Door
from trinity_compat.studio.jobs import Job, Jobs
from trinity_compat.studio.series import Store
from trinity_compat.studio.state import MEANS, Summaries, spark_points

if TYPE_CHECKING:
    from trinity_compat.studio.comparing import Comparisons

View = Callable[[Request], Response]
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Studio:
    """What a page can ask: the jobs, what was read of them, where the studio listens."""

    jobs: Jobs
    door: Door
    store: Store
    summaries: Summaries
    comparisons: Comparisons
    templates: jinja2.Environment

    @classmethod
    def over(cls, root: Path, door: Door, comparisons: Comparisons) -> Studio:
        """A studio over the jobs below ``root``."""
        return cls(Jobs(root), door, Store(), Summaries(), comparisons, _templates())


def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"figure": figure, "path": lambda name: quote(str(name)), "spark": spark_points}
    made.globals |= {"version": __version__, "means": MEANS}
    return made


def group_of(request: Request) -> int:
    """The group that an address names. Raises HTTPException 404."""
    number = request.query_params.get("id", "")
    if not number.isdecimal():
        raise HTTPException(404, "Which group? The address has no id.")
    return int(number)


def figure(value: object) -> str:
    """A number as people read it: four digits, thousands apart; – for what is not known."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.2e}" if 0 < size < 1e-3 else f"{value:.4g}"


def studio_of(request: Request) -> Studio:
    """The studio that answers."""
    found: Studio = request.app.state.studio
    return found


def job_of(request: Request) -> Job:
    """The job that the address names. Raises HTTPException 404."""
    return job_named(request, request.path_params["job"])


def job_named(request: Request, name: str) -> Job:
    """The studio's job of that name. Raises HTTPException 404."""
    job = studio_of(request).jobs.get(name)
    if job is None:
        raise HTTPException(404, f"There is no job {name!r} below the studio's folder.")
    return job


def reading(view: View) -> View:
    """A view of a job that reads all it shows in one transaction."""

    @wraps(view)
    def read(request: Request) -> Response:
        with job_of(request).database().at_once():
            return view(request)

    return read


def page(request: Request, template: str, values: Mapping[str, object], *, status: int = 200) -> HTMLResponse:
    """The template with ``values``; every text in it is escaped."""
    studio = studio_of(request)
    given = {"root": str(studio.jobs.root), "csrf": studio.door.csrf, "here": template.removesuffix(".html")}
    return HTMLResponse(studio.templates.get_template(template).render({**given, **values}), status)
