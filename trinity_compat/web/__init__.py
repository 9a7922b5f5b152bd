"""The style sheet and chart code of all our HTML.

The studio serves these files; reports of ``compare`` and ``audit`` are single files that contain them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"


@cache
def style() -> str:
    """Return the style sheet of every page: colours for light and dark, tables, charts."""
    return (ASSETS / "base.css").read_text(encoding="utf-8")


@cache
def chart_style() -> str:
    """Return uPlot's style sheet."""
    return (ASSETS / "vendor" / "uPlot.min.css").read_text(encoding="utf-8")


@cache
def charts() -> str:
    """Return the scripts that define ``Charts``: uPlot, with its licence, and ours."""
    vendor = ASSETS / "vendor"
    notice, *scripts = (
        path.read_text(encoding="utf-8")
        for path in (vendor / "uPlot.LICENSE", vendor / "uPlot.iife.min.js", ASSETS / "charts.js")
    )
    return "\n".join([f"/*\n{notice}*/", *scripts])
