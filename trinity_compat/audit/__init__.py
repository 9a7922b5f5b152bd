"""The audit: an account of every key of every launch, for one script or for a folder of scripts.

``audit_sources`` reads and translates, ``render`` writes the result as text, JSON, Markdown, HTML or SARIF.
"""

from __future__ import annotations

from trinity_compat.audit.collect import AuditOptions, audit_sources
from trinity_compat.audit.formats import FORMATS, render
from trinity_compat.audit.model import Audit, LaunchAudit
from trinity_compat.audit.summary import AuditSummary, summarise

__all__ = [
    "FORMATS",
    "Audit",
    "AuditOptions",
    "AuditSummary",
    "LaunchAudit",
    "audit_sources",
    "render",
    "summarise",
]
