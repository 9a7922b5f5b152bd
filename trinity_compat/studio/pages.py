"""Shared parts of all pages: escaped templates, and the job that an address names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from trinity_compat import __version__
from trinity_compat.compare import names
from trinity_compat.studio.assets import assets_digest
from trinity_compat.studio.guard import Listener, is_secret
from trinity_compat.studio.jobs import Job, Jobs
from trinity_compat.studio.run_index import RunIndex
from trinity_compat.studio.run_state import GOES_ON, MEANS, spark_points
from trinity_compat.studio.series import SeriesCache
from trinity_compat.studio.summaries import Summaries
from trinity_compat.studio.text_server import TextServer

if TYPE_CHECKING:
    from trinity_compat.studio.comparisons import Comparisons

View = Callable[[Request], Response]
HERE = Path(__file__).parent
_LARGEST = 2**63 - 1  # of a database column
_LARGEST_FORM = 256 << 10  # bytes


@dataclass(frozen=True, slots=True)
class Studio:
    """The studio's state that pages use: jobs, caches, listener, templates."""

    jobs: Jobs
    listener: Listener
    store: SeriesCache
    summaries: Summaries
    comparisons: Comparisons
    templates: jinja2.Environment
    text_server: TextServer

    @classmethod
    def over(cls, root: Path, listener: Listener, comparisons: Comparisons) -> Studio:
        """Return a studio of the jobs in ``root``."""
        summaries = Summaries(RunIndex())
        return cls(
            Jobs(root), listener, SeriesCache(), summaries, comparisons, _templates(listener), TextServer()
        )


def _templates(listener: Listener) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure, "path": lambda name: quote(str(name)), "spark": spark_points}
    environment.filters["key"] = lambda name: Markup(re.sub(r"([._/])(?=\w)", r"\1<wbr>", str(escape(name))))
    environment.globals |= {"version": __version__, "means": MEANS, "goes_on": GOES_ON}
    environment.globals |= {"about": about, "group_of_metric": names.group_of}
    environment.globals |= {"base": listener.base, "assets": assets_digest(), "read_only": listener.read_only}
    return environment


def about(metric: str) -> tuple[str, str]:
    """Return a metric's name for readers and its meaning; two empty texts for an unknown one."""
    titles = names.table().titles.items()
    return next((told for pattern, told in titles if fnmatchcase(metric, pattern)), ("", ""))


def group_of(request: Request) -> int:
    """Return the group that an address names. Raises HTTPException 400."""
    return whole_number(request.query_params.get("id", ""), "id")


def whole_number(text: str, name: str) -> int:
    """Return a non-negative 64-bit number. Raises HTTPException 400 naming the field."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST)) and int(text) <= _LARGEST:
        return int(text)
    raise HTTPException(400, f"{name}: {_beginning(text)} is not a whole number from 0 to {_LARGEST}.")


def finite_number(text: str, name: str) -> float:
    """Return a finite number. Raises HTTPException 400 naming the field."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if math.isfinite(found):
        return found
    raise HTTPException(400, f"{name}: {_beginning(text)} is not a finite number.")


def bounds_of(given: QueryParams, names: Iterable[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return (name → least, name → most) of an address's ``NAME_min`` and ``NAME_max``; empty ones have none.

    Raises HTTPException 400 for a value that is not a finite number.
    """
    least, most = (
        {
            name: finite_number(text, f"{name}_{end}")
            for name in names
            if (text := given.get(f"{name}_{end}", "").strip())
        }
        for end in ("min", "max")
    )
    return least, most


def place_of(given: QueryParams) -> tuple[float, int] | None:
    """Return (value, id) of the row after which a page begins; None for the first page.

    Raises HTTPException 400 for another text.
    """
    if "after" not in given:
        return None
    value, _, number = given["after"].rpartition(",")
    return finite_number(value, "after"), whole_number(number, "after")


def _beginning(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def figure(value: object) -> str:
    """Format a number for reading: four digits, thousands separated, – for None."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if not math.isfinite(value):
        return str(value).replace("nan", "NaN").replace("inf", "∞").replace("-", "−")
    if size >= 10_000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.2e}" if 0 < size < 1e-3 else f"{value:.4g}"


def studio_of(request: Request) -> Studio:
    """Return the studio that serves the request."""
    found: Studio = request.app.state.studio
    return found


async def form_of(request: Request, largest: int = _LARGEST_FORM) -> FormData:
    """Return the fields of a form that this process made, of at most ``largest`` bytes.

    Raises HTTPException 413 before the form is read, 403 without the secret that only this process's pages
    contain, 400 for a form with a file.
    """
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > largest:
        raise HTTPException(413, f"The form has more than {largest >> 10} KiB.")
    form = await request.form(max_files=0, max_part_size=largest)
    if not is_secret(form.get("csrf"), studio_of(request).listener.csrf):
        raise HTTPException(403, "This form was not made by this start of the studio. Open its page again.")
    return form


def texts_in(form: FormData) -> dict[str, str]:
    """Return the texts of a form; one of several of a name is the last."""
    # A browser sends the lines of a textarea with CR LF, which bash takes for part of a word.
    return {name: value.replace("\r\n", "\n") for name, value in form.items() if isinstance(value, str)}


def job_of(request: Request) -> Job:
    """Return the job that the address names. Raises HTTPException 404."""
    return job_named(request, request.path_params["job"])


def page_of(request: Request, kind: str, job: Job) -> str:
    """Return the address of a job's page."""
    return f"{studio_of(request).listener.base}/{kind}/{quote(job.name)}"


def job_named(request: Request, name: str) -> Job:
    """Return the studio's job of that name. Raises HTTPException 404."""
    job = studio_of(request).jobs.get(name)
    if job is None:
        raise HTTPException(404, f"No job {name!r} in the studio's folder.")
    return job


def reading(view: View) -> View:
    """Decorate a view of a job so that all its reads are in one transaction."""

    @wraps(view)
    def read(request: Request) -> Response:
        with job_of(request).database().at_once():
            return view(request)

    return read


def page(request: Request, template: str, values: Mapping[str, object], *, status: int = 200) -> HTMLResponse:
    """Render the template with ``values``; every text in it is escaped."""
    studio = studio_of(request)
    given = {
        "root": str(studio.jobs.root),
        "csrf": studio.listener.csrf,
        "here": template.removesuffix(".html"),
    }
    return _html(studio.templates.get_template(template).render({**given, **values}), status)


def refusal(request: Request, status: int, text: str) -> HTMLResponse:
    """Return a page for a request without the token. It contains no data of the user's."""
    template = studio_of(request).templates.get_template("refused.html")
    return _html(template.render(status=status, text=text), status)


def _html(text: str, status: int) -> HTMLResponse:
    # Lone surrogates, which JSON and file names can contain, cannot be encoded.
    return HTMLResponse(text.encode(errors="replace"), status)


def as_json(value: object) -> Response:
    """Return ``value`` as ASCII JSON (names may hold lone surrogates); see ``to_json``."""
    return Response(to_json(value), media_type="application/json")


def to_json(value: object) -> str:
    """Return ``value`` as JSON, which lacks NaN and infinities: a page gets their names as strings."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=str), allow_nan=False)
