"""The audit as one HTML file: no script, no network, prints well (``audit.html``, a Jinja template)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_compat import __version__
from trinity_compat.audit.model import WHOLE_LAUNCH, Audit, LaunchAudit
from trinity_compat.audit.phrases import STATUS_MEANS, assignment, key_counts, origin, plural, target
from trinity_compat.audit.summary import OUTCOMES, AuditSummary, outcome, summarise
from trinity_compat.launch import merged
from trinity_compat.translate.explain import codes
from trinity_compat.translate.model import Finding
from trinity_compat.web import style

if TYPE_CHECKING:
    from jinja2 import Template

_HERE = Path(__file__).parent
_FULL_LISTS_UP_TO = 20  # launches; beyond, keys that keep their meaning are only counted


def render(audit: Audit) -> str:
    """Return the audit as an HTML page."""
    summary = summarise(audit)
    return _template().render(
        audit=audit,
        summary=summary,
        headline=f"{plural(summary.launches, 'veRL launch')} on Trinity-RFT",
        verdict=_verdict(summary),
        shares=[(label, number) for label, number in summary.outcomes.items() if number],
        warnings=list(_warnings(summary)),
        full_lists=len(audit.launches) <= _FULL_LISTS_UP_TO,
    )


@cache
def _template() -> Template:
    # Imported here: it takes 40 ms, which the other formats and commands need not wait for.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["css_class"] = lambda label: "o-" + label.replace(" ", "-")
    environment.globals |= {
        "assignment": assignment,
        "key_counts": key_counts,
        "merged": merged,
        "origin": origin,
        "outcome": outcome,
        "outcomes": OUTCOMES,
        "plural": plural,
        "status_means": STATUS_MEANS,
        "style": style() + "\n" + (_HERE / "audit.css").read_text(encoding="utf-8"),
        "target": target,
        "unchanged": _unchanged,
        "version": __version__,
        "why_unchanged": _why_unchanged,
    }
    return environment.get_template("audit.html")


def _verdict(summary: AuditSummary) -> str:
    same, total = summary.outcomes["same"], summary.launches
    if total == 0:
        return "No training launch was found."
    if total == 1:
        return next(f"It {OUTCOMES[label]}." for label, number in summary.outcomes.items() if number)
    needs = summary.outcomes["open"] + summary.outcomes["refused"]
    runs = total - needs
    ours = summary.outcomes["ours only"]
    more = f"{ours} more on trinity-compat only, " if ours else ""
    return (
        f"{runs - ours} of {total} can run on Trinity-RFT, {more}"
        f"{needs} need{'s' * (needs == 1)} a decision. In {same} every key keeps its exact meaning."
    )


def _warnings(summary: AuditSummary) -> Iterator[dict[str, object]]:
    """Yield the warnings of each code; codes with a hint come first.

    ``message`` is the most frequent wording; ``others`` are the other ones with their places.
    """
    by_code: dict[str, dict[str, tuple[str, ...]]] = {}
    for (code, message), places in summary.warnings.items():
        by_code.setdefault(code, {})[message] = places
    for code in sorted(by_code, key=lambda code: not codes().get(code, {}).get("hint")):
        about = codes().get(code, {})
        first, *others = by_code[code]
        yield {
            "code": code,
            "title": about.get("title", ""),
            "hint": about.get("hint", "").replace("`", ""),
            "message": first,
            "others": {message: by_code[code][message] for message in others},
            "places": tuple(dict.fromkeys(place for places in by_code[code].values() for place in places)),
        }


def _unchanged(launch: LaunchAudit) -> list[Finding]:
    changed = launch.changed()
    return [finding for finding in launch.findings if finding not in changed]


def _why_unchanged(findings: list[Finding]) -> str:
    if any(finding.code in WHOLE_LAUNCH for finding in findings):
        return "not translated, for the reason above"
    return "that keep their meaning or have no effect"
