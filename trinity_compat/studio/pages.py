"""What every page needs: templates with all text escaped, and the job that an address names."""

from __future__ import annotations

import json
import math
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
from trinity_compat.studio.guard import Listener
from trinity_compat.studio.jobs import Job, Jobs
from trinity_compat.studio.run_state import MEANS, Summaries, spark_points
from trinity_compat.studio.series import SeriesCache

if TYPE_CHECKING:
    from trinity_compat.studio.comparisons import Comparisons

View = Callable[[Request], Response]
HERE = Path(__file__).parent
_LARGEST = 2**63 - 1  # that a database takes


@dataclass(frozen=True, slots=True)
class Studio:
    """What a page can ask: the jobs, what was read of them, where the studio listens."""

    jobs: Jobs
    door: Listener
    store: SeriesCache
    summaries: Summaries
    comparisons: Comparisons
    templates: jinja2.Environment

    @classmethod
    def over(cls, root: Path, door: Listener, comparisons: Comparisons) -> Studio:
        """A studio over the jobs below ``root``."""
        return cls(Jobs(root), door, SeriesCache(), Summaries(), comparisons, _templates())


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
    """The group that an address names. Raises HTTPException 400."""
    return whole_number(request.query_params.get("id", ""), "id")


def whole_number(text: str, name: str) -> int:
    """A number from 0 up that a database takes. Raises HTTPException 400 naming the field."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST)) and int(text) <= _LARGEST:
        return int(text)
    raise HTTPException(400, f"{name}: {_beginning(text)} is not a whole number from 0 to {_LARGEST}.")


def finite_number(text: str, name: str) -> float:
    """A finite number. Raises HTTPException 400 naming the field."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if math.isfinite(found):
        return found
    raise HTTPException(400, f"{name}: {_beginning(text)} is not a finite number.")


def _beginning(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


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


def page_of(kind: str, job: Job) -> str:
    """The address of a job's page."""
    return f"/{kind}/{quote(job.name)}"


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
    return _html(studio.templates.get_template(template).render({**given, **values}), status)


def refusal(request: Request, status: int, text: str) -> HTMLResponse:
    """A page for somebody who has not shown the token: nothing of the user's is on it."""
    template = studio_of(request).templates.get_template("refused.html")
    return _html(template.render(status=status, text=text), status)


def _html(text: str, status: int) -> HTMLResponse:
    # Half a character, which JSON and file names can hold, cannot be sent.
    return HTMLResponse(text.encode(errors="replace"), status)


def as_json(value: object) -> Response:
    """``value`` in ASCII, since a name in it may hold half a character; null for what is not finite."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(json.loads(json.dumps(value))), allow_nan=False)
    return Response(text, media_type="application/json")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
