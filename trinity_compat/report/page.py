"""A report as HTML: one file without script and network, or a part of the studio's page."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_compat.report.model import RunReport
from trinity_compat.web import style

if TYPE_CHECKING:
    from jinja2 import Template


def as_html(report: RunReport) -> str:
    """Return the page as one file."""
    return _template().render(report=report, style=style())


def as_part(report: RunReport) -> str:
    """Return the sections, to be put into another page with the same style sheet."""
    return _template().render(report=report, style=None)


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # which text and JSON do not need

    here = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=here, autoescape=True, undefined=StrictUndefined).get_template("report.html")
