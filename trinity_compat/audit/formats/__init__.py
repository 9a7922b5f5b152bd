"""One module per output format; each turns an Audit into text."""

from __future__ import annotations

from importlib import import_module

from trinity_compat.audit.model import Audit

FORMATS = ("text", "json", "md", "html", "sarif")


def render(audit: Audit, form: str) -> str:
    """Return the audit in one of FORMATS, ending in a newline.

    Only the module of that format is imported: rich is needed for the terminal alone.
    """
    module = import_module(f"trinity_compat.audit.formats.{form}")
    text: str = module.render(audit)
    return text if text.endswith("\n") else text + "\n"
