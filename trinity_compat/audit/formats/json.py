"""The audit for programs: ``{"version": 1, "launches": […]}``; its fields are a promise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from trinity_compat.audit.model import Audit, LaunchAudit
from trinity_compat.audit.phrases import origin
from trinity_compat.audit.summary import outcome
from trinity_compat.translate.model import Finding
from trinity_compat.verl_config.model import Fork


def render(audit: Audit) -> str:
    """Return the audit as JSON."""
    return json.dumps(as_data(audit), indent=1, ensure_ascii=False)


def as_data(audit: Audit) -> dict[str, object]:
    """Return the audit in plain containers that JSON can hold."""
    data: dict[str, object] = {"version": 1, "launches": [_launch(launch) for launch in audit.launches]}
    if audit.problems:
        data["problems"] = dict(audit.problems)
    if audit.empty:
        data["without_launches"] = list(audit.empty)
    return data


def _launch(launch: LaunchAudit) -> dict[str, object]:
    return {
        "source": launch.source,
        "line": launch.where.line,
        "module": launch.module,
        "verl_version": {"value": launch.version.value, "why": launch.version.why},
        **({"fork": _fork(launch.fork, launch.version.value)} if launch.fork else {}),
        "outcome": outcome(launch),
        "refused": launch.refused,
        "keys": launch.keys,
        "counts": {status.value: number for status, number in launch.counts.items()},
        "findings": [_finding(finding, launch) for finding in launch.findings],
        "warnings": [
            {
                "code": w.code,
                "rank": w.rank.value,
                "message": w.message,
                "source": str(w.where) if w.where else None,
                "hint": w.hint,
            }
            for w in launch.warnings
        ],
        "diagnostics": [
            {"code": d.code, "severity": d.severity, "message": d.message, "source": str(d.where)}
            for d in launch.diagnostics
        ],
    }


def _fork(fork: Fork, nearest: str) -> dict[str, object]:
    return {
        "folder": fork.folder,
        "nearest": nearest,
        "added": {key: str(place.where) for key, place in fork.added.items()},
        "removed": list(fork.removed),
        "changed": {key: [plain(own), plain(other)] for key, (own, other) in fork.changed.items()},
        "fork_keys": list(fork.keys),
    }


def _finding(finding: Finding, launch: LaunchAudit) -> dict[str, object]:
    data = {
        "code": finding.code,
        "status": finding.status.value,
        "key": finding.key,
        "value": plain(finding.value),
        "source": origin(finding, launch),
        "target": finding.target,
        "target_value": plain(finding.target_value),
        "reason": finding.reason,
    }
    if finding.key in launch.silenced:
        data["silenced"] = True
    return data


def plain(value: object) -> object:
    """Return the value as JSON has it: infinities and what is no JSON type as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
