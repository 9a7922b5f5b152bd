"""What all our HTML is made of: one style sheet, one code for charts.

The studio serves these files; a report of ``compare`` or ``audit`` is one file and has them inside.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"


@cache
def style() -> str:
    """The style sheet of every page: colours for light and dark, tables, charts."""
    return (ASSETS / "base.css").read_text(encoding="utf-8")


@cache
def chart_style() -> str:
    """What uPlot's curves need besides."""
    return (ASSETS / "vendor" / "uPlot.min.css").read_text(encoding="utf-8")


@cache
def charts() -> str:
    """The scripts that make ``Charts``: uPlot, with the licence that it asks for, and ours."""
    vendor = ASSETS / "vendor"
    notice, *scripts = (
        path.read_text(encoding="utf-8")
        for path in (vendor / "uPlot.LICENSE", vendor / "uPlot.iife.min.js", ASSETS / "charts.js")
    )
    return "\n".join([f"/*\n{notice}*/", *scripts])
