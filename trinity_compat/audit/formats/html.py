"""The audit as one HTML file for whoever decides: no script, no network, prints well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape

from trinity_compat import __version__
from trinity_compat.audit.formats.style import CSS
from trinity_compat.audit.model import WHOLE_LAUNCH, Audit, LaunchAudit
from trinity_compat.audit.phrases import STATUS_MEANS, assignment, origin, plural, target
from trinity_compat.audit.summary import OUTCOMES, AuditSummary, ChangeCause, name, outcome, summarise
from trinity_compat.launch import merged
from trinity_compat.translate.explain import codes
from trinity_compat.translate.model import Finding, Status
from trinity_compat.web import style

_FULL_LISTS_UP_TO = 20  # launches; beyond, keys that keep their meaning are only counted


def render(audit: Audit) -> str:
    summary = summarise(audit)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_headline(summary)}</title><style>{style()}{CSS}</style></head><body><main>",
        *_head(summary),
        *_not_read(audit),
        *_without_launch(audit),
        *_refusals(summary),
        *_causes(summary),
        *_warnings(summary),
        *_launches(audit),
        *_legend(),
        f"<footer>trinity-compat {escape(__version__)}</footer>",
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _headline(summary: AuditSummary) -> str:
    return f"{plural(summary.launches, 'veRL launch')} on Trinity-RFT"


def _head(summary: AuditSummary) -> Iterator[str]:
    yield f"<h1>{_headline(summary)}</h1>"
    yield f"<p class=lead>{escape(_verdict(summary))}</p>"
    shares = [(name, number) for name, number in summary.outcomes.items() if number]
    bar = "".join(f'<span class="{_css(name)}" style="flex:{number}"></span>' for name, number in shares)
    yield f'<div class=bar role=img aria-label="{escape(_verdict(summary))}">{bar}</div>'
    yield "<dl class=outcomes>"
    for label, number in shares:
        yield f'<div><dt><i class="{_css(label)}"></i>{number} <b>{escape(label)}</b></dt>'
        yield f"<dd>{escape(OUTCOMES[label])}</dd></div>"
    yield "</dl>"


def _verdict(summary: AuditSummary) -> str:
    same, total = summary.outcomes["same"], summary.launches
    if total == 0:
        return "No launch of a training was found."
    if total == 1:
        return next(f"It {OUTCOMES[name]}." for name, number in summary.outcomes.items() if number)
    needs = summary.outcomes["open"] + summary.outcomes["refused"]
    runs = total - needs
    ours = summary.outcomes["ours only"]
    more = f"{ours} more on trinity-compat's runtime only, " if ours else ""
    return (
        f"{runs - ours} of {total} can run on Trinity-RFT, {more}"
        f"{needs} wait{'s' * (needs == 1)} for a decision. In {same} every key keeps its exact meaning."
    )


def _not_read(audit: Audit) -> Iterator[str]:
    if audit.problems:
        yield "<h2>Not read</h2>"
        yield from _table(("file", "why"), ((escape(s), escape(p)) for s, p in audit.problems.items()))


def _without_launch(audit: Audit) -> Iterator[str]:
    if audit.empty:
        yield "<h2>Starts no training</h2>"
        yield from _table(("file", "why"), ((escape(s), escape(why)) for s, why in audit.empty.items()))


def _refusals(summary: AuditSummary) -> Iterator[str]:
    if summary.refusals:
        yield "<h2>Cannot be translated yet</h2>"
        rows = ((str(len(w)), escape(why), _places(w)) for why, w in summary.refusals.items())
        yield from _table(("launches", "why", "where"), rows)


def _causes(summary: AuditSummary) -> Iterator[str]:
    if not summary.causes:
        return
    yield "<h2>What changes, and why</h2>"
    rows = (
        (
            _how_many(c),
            _status(c.status),
            f"<code>{escape(c.key)}</code> <small>{escape(c.code)}</small>",
            escape(c.reason),
            _places(c.set_in + c.default_in),
        )
        for c in summary.causes
    )
    yield from _table(("launches", "what happens", "key", "why", "where"), rows)


def _how_many(cause: ChangeCause) -> str:
    """Launches that set the key, and those that have it by default."""
    by_default = f"<small>{len(cause.default_in)} by default</small>" if cause.default_in else ""
    set_here = str(len(cause.set_in)) if cause.set_in or not by_default else ""
    return " + ".join(filter(None, (set_here, by_default)))


def _warnings(summary: AuditSummary) -> Iterator[str]:
    if summary.warnings:
        yield "<h2>Known to hurt</h2>"
        yield "<p>What has surprised people after such a move, and what was done about it.</p>"
        by_code: dict[str, dict[str, tuple[str, ...]]] = {}
        for (code, message), places in summary.warnings.items():
            by_code.setdefault(code, {})[message] = places
        first = sorted(by_code, key=lambda code: not codes().get(code, {}).get("hint"))
        rows = (_warning(code, by_code[code]) for code in first)  # those that ask for something first
        yield from _table(("launches", "what", "warning", "where"), rows)


def _warning(code: str, messages: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """One row per code: the most frequent wording, the others folded away with their places."""
    first, *others = messages
    everywhere = tuple(dict.fromkeys(place for found in messages.values() for place in found))
    about = codes().get(code, {})
    cure = about.get("hint", "").replace("`", "")
    told = escape(first) + (f"<br><b>What to do:</b> {escape(cure)}" if cure else "")
    if others:
        listed = "".join(
            f"<li>{escape(other)}<br><small>{escape(', '.join(messages[other]))}</small></li>"
            for other in others
        )
        label = plural(len(others), "other wording")
        told += f"<details><summary>{label}</summary><ul>{listed}</ul></details>"
    what = f"{escape(about.get('title', ''))} <small>{escape(code)}</small>"
    return str(len(everywhere)), what, told, _places(everywhere)


def _launches(audit: Audit) -> Iterator[str]:
    if audit.launches:
        yield "<h2>Launch by launch</h2>"
    for launch in audit.launches:
        label = outcome(launch)
        yield "<details class=launch><summary>"
        yield f'<i class="{_css(label)}"></i><b>{escape(name(launch))}</b> '
        yield f"<span>{escape(label)}</span> <small>{escape(_sums(launch))}</small></summary>"
        yield f"<p><code>{escape(launch.module)}</code>, verl {escape(launch.version.value)}: "
        yield f"{escape(launch.version.why)}</p>"
        if launch.refused is not None:
            yield f"<p class=refused>Cannot be translated: {escape(launch.refused)}</p>"
        notes = [f"{w.code} {w.message}{f' ({w.hint})' * bool(w.hint)}" for w in launch.warnings]
        notes += [f"{d.where}: {d.code} {d.message}" for d in merged(launch.diagnostics)]
        if notes:
            yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"
        yield from _findings(launch, everything=len(audit.launches) <= _FULL_LISTS_UP_TO)
        yield "</details>"


def _sums(launch: LaunchAudit) -> str:
    sums = ", ".join(f"{number} {status.value}" for status, number in launch.counts.items())
    return f"{plural(launch.keys, 'key')}: {sums}"


def _findings(launch: LaunchAudit, everything: bool) -> Iterator[str]:
    changed = launch.changed()
    if changed:
        yield from _finding_table(changed, launch)
    rest = [finding for finding in launch.findings if finding not in changed]
    if everything and rest:
        whole = any(finding.code in WHOLE_LAUNCH for finding in rest)
        what = "not translated, for the reason above" if whole else "that keep their meaning or cannot matter"
        label = f"{plural(len(rest), 'key')} {what}"
        yield f"<details><summary>{label}</summary>"
        yield from _finding_table(rest, launch)
        yield "</details>"


def _finding_table(findings: list[Finding], launch: LaunchAudit) -> Iterator[str]:
    rows = (
        (
            escape(f.code),
            _status(f.status),
            f"<code>{escape(assignment(f))}</code>",
            escape(origin(f, launch)),
            f"<code>{escape(target(f))}</code>" if f.target else "",
            escape(f.reason),
        )
        for f in findings
    )
    yield from _table(("code", "status", "key", "where", "becomes", "why"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Cells are HTML already."""
    titles = "".join(f"<th>{cell}</th>" for cell in head)
    yield f"<div class=wide tabindex=0><table><thead><tr>{titles}</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
    yield "</tbody></table></div>"


def _places(places: tuple[str, ...]) -> str:
    if len(places) <= 2:
        return "<br>".join(map(escape, places))
    return f"<details><summary>{len(places)} places</summary>{'<br>'.join(map(escape, places))}</details>"


def _status(status: Status) -> str:
    return f'<span class="status {status.value.replace("_", "-")}">{escape(STATUS_MEANS[status])}</span>'


def _css(label: str) -> str:
    return "o-" + label.replace(" ", "-")


def _legend() -> Iterator[str]:
    yield "<h2>Words</h2>"
    rows = ((_status(s), f"<code>{s.value}</code>") for s in Status)
    yield from _table(("what happens", "as --fail-on and JSON spell it"), rows)
