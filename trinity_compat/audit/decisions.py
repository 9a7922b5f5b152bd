"""A draft of a rules file: the keys that an audit leaves undecided, each with the rules to choose from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trinity_compat.audit.model import WHOLE_LAUNCH, Audit
from trinity_compat.audit.phrases import listed, short
from trinity_compat.common.nested import nested
from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.launch.entrypoints import PPO, is_translated, refusal
from trinity_compat.translate.edited_launch import by_a_rule, renamed
from trinity_compat.translate.model import Finding, Status
from trinity_compat.translate.rows import load_rows, rules_of
from trinity_compat.translate.user_rules import families
from trinity_compat.verl_config import FLAVOURS
from trinity_compat.verl_config.releases import key_index

_REFUSED = re.compile(r"Hydra would refuse ([\w.]+):")
_HEAD = """\
# Rules for {source}, for --rules of translate, audit, run. As it stands, this file changes nothing.
# Uncomment a rule and choose: as (a key of veRL's that means the same), or
# how: copy (to: a path of the Trinity YAML), pass (to trainer_config), keep (kept for trinity-compat),
#      drop (it changes nothing), unsupported (named as such in every audit). why: what a reader should know.
description: rules for {source}
"""


def rules_for(source: str, audit: Audit) -> str:
    """Return the text of a rules file for the undecided keys of ``source``."""
    parts = [_HEAD.format(source=source), *_mains(audit), *_families(audit)]
    keys = _undecided(audit)
    parts += [_rule(finding) for finding in keys.values()]
    if not keys:
        parts.append("# Every key that this source sets has its place already.\n")
    return "\n".join(parts)


def _undecided(audit: Audit) -> dict[str, Finding]:
    """Return the findings that need a decision, the first of each key."""
    found: dict[str, Finding] = {}
    for launch in audit.launches:
        for finding in launch.findings:
            is_open = finding.status.rank >= Status.UNSUPPORTED.rank and finding.code not in WHOLE_LAUNCH
            if is_open and not finding.key.startswith(("-", "~")):
                found.setdefault(finding.key, finding)
        # Sections that Hydra refuses, of which the keys may have a place all the same.
        notes = [note.message for note in launch.diagnostics if note.code == "TP201"]
        for key in (matched[1] for message in notes if (matched := _REFUSED.match(message))):
            below = [finding for finding in launch.findings if finding.key.startswith(f"{key}.")]
            if below and not any(finding.key in found for finding in below):
                value = nested({each.key.removeprefix(f"{key}."): each.value for each in below})
                found[key] = replace(below[0], key=key, value=value)
    return found


def _mains(audit: Audit) -> Iterator[str]:
    own = {launch.module: launch for launch in audit.launches if not is_translated(launch.module)}
    if own:
        head = "# Mains that are not veRL's own, and one of veRL's that each may be taken for:\n"
        for launch in own.values():
            why = refusal(launch.module)
            reason = why if launch.refused and why in launch.refused else f"{launch.module} has veRL's keys"
            head += f"#   {launch.where}: {reason}\n# mains: {{{launch.module}: {PPO}}}\n"
        yield head


def _families(audit: Audit) -> Iterator[str]:
    """Yield the shipped families of rules that cover undecided keys."""
    keys = list(_undecided(audit))
    for name in families():
        rules, rows = rules_of(name), load_rows(name)
        if covered := [key for key in keys if renamed(key, rules) != key or by_a_rule(key, rows)]:
            yield f"# The family {name} has rules for {listed(covered, 4)}:\n# include: [{name}]\n"


def _rule(finding: Finding) -> str:
    """Return the draft for one key: its place, its finding, and rules to choose from, commented out."""
    where = f"{finding.where}: " if finding.where else ""
    near = did_you_mean(finding.key, sorted(key_index()[FLAVOURS[0]]))
    choice = f"# {finding.key}: {{as: {near}}}\n" if near and near != finding.key else ""
    reason = " ".join(finding.reason.split())
    # of a section that Hydra alone refuses the keys have a place, from which no rule for it takes them
    how = "drop" if finding.status.rank >= Status.UNSUPPORTED.rank else "keep"
    return (
        f"# {where}{finding.key}={short(finding.value)}\n#   {finding.status}: {reason}\n"
        f"{choice}# {finding.key}: {{how: {how}, why: ''}}\n"
    )
