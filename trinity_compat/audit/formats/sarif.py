"""The audit as SARIF 2.1.0, for code review tools: keys that change their meaning, and warnings.

Keys that keep their meaning are left out: they need no review.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

from trinity_compat import __version__
from trinity_compat.audit.model import CHANGES_MEANING, Audit, LaunchAudit
from trinity_compat.audit.phrases import assignment, target
from trinity_compat.common.errors import Where
from trinity_compat.common.output_text import sarif
from trinity_compat.translate.model import Severity, Status
from trinity_compat.verl_config.model import default_of

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL = {
    Status.APPROXIMATED: "note",
    Status.UNSUPPORTED_UPSTREAM: "warning",
    Status.UNSUPPORTED: "error",
    Status.FORK_KEY: "error",
    Status.UNKNOWN: "error",
}


_RANK = {Severity.NOTE: "note", Severity.DECIDE: "warning", Severity.ERROR: "error"}


def render(audit: Audit) -> str:
    """Return the audit as a SARIF log."""
    return json.dumps(as_data(audit), indent=1, ensure_ascii=False)


def as_data(audit: Audit) -> dict[str, object]:
    """Return one SARIF log with one run; file names are relative to where the command ran."""
    results = [result for launch in audit.launches for result in _results(launch)]
    rules = list(dict.fromkeys(result["ruleId"] for result in results))
    for result in results:
        result["ruleIndex"] = rules.index(result["ruleId"])
    driver = {
        "name": "trinity-compat",
        "semanticVersion": __version__,
        "rules": [{"id": rule} for rule in rules],
    }
    unread = [
        {"level": "error", "message": {"text": sarif(f"{source}: {why}")}}
        for source, why in audit.problems.items()
    ]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unread}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _results(launch: LaunchAudit) -> Iterator[dict[str, object]]:
    if launch.refused is not None:
        why = f"cannot be translated: {launch.refused}"
        # The line that makes a launch untranslatable: its error's, else the launch's.
        errors = (each for each in launch.diagnostics if each.severity == "error")
        found = (each.where for each in errors if each.message in launch.refused)
        yield _result("TC000", "error", why, next((where for where in found if where), launch.where))
        return
    for warning in launch.warnings:
        yield _result(warning.code, _RANK[warning.rank], warning.message, warning.where or launch.where)
    for diagnostic in launch.diagnostics:
        level = "error" if diagnostic.severity == "error" else "warning"
        yield _result(diagnostic.code, level, diagnostic.message, diagnostic.where)
    for finding in launch.findings:
        if finding.status.rank >= CHANGES_MEANING.rank:
            leads = f" → {target(finding)}" if finding.target else ""
            by_default = "" if finding.where else f" ({default_of(launch.version, launch.fork, finding.key)})"
            text = f"{assignment(finding)}{by_default}: {finding.status.value}: {finding.reason}{leads}"
            result = _result(finding.code, _LEVEL[finding.status], text, finding.where or launch.where)
            result["properties"] = {"key": finding.key, "status": finding.status.value}
            if finding.key in launch.silenced:
                result["suppressions"] = [{"kind": "inSource"}]
            yield result


def _result(rule: str, level: str, text: str, where: Where) -> dict[str, object]:
    place: dict[str, object] = {"artifactLocation": {"uri": quote(where.file)}}
    if where.line:
        place["region"] = {"startLine": where.line}
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": sarif(text)},
        "locations": [{"physicalLocation": place}],
    }
