"""A launch as the user's rules (``--rules``) teach us to read it.

Before it is composed, so that they count for what Hydra would refuse as well as for what becomes of a key.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trinity_compat.launch.model import Launch, Word, WordPart
from trinity_compat.translate.rows import MappingTable, load_rows, rules_of
from trinity_compat.translate.unknown import USER_RULE
from trinity_compat.translate.user_rules import Rules
from trinity_compat.verl_config import FLAVOURS
from trinity_compat.verl_config.releases import key_index
from trinity_compat.verl_config.upgrade import is_well_known

_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.@/-]*)(?==)")


def apply_rules(launch: Launch, rules: str | None) -> Launch:
    """Return ``launch`` with the user's rules applied to its keys.

    Keys that rules rename get veRL's names. Keys that only a rule covers, or that are well known from forks,
    get ``++``: Hydra's configuration has no such keys, and the rule says what becomes of them.
    """
    said, rows = rules_of(rules), load_rows(rules)
    return replace(launch, arguments=tuple(_word(word, said, rows) for word in launch.arguments))


def _word(word: Word, said: Rules, rows: MappingTable) -> Word:
    first = word.parts[0] if word.parts else WordPart("")
    match = _OVERRIDE.match(first.text) if first.source is None else None
    if match is None:
        return word
    mark, spelled = match[1] or "", match[2]
    key = renamed(spelled, said)
    if key == spelled and mark in ("", "+") and (is_well_known(key) or _only_a_rule_knows(key, rows)):
        mark = "++"
    text = f"{mark}{key}{first.text[match.end() :]}"
    return replace(word, parts=(replace(first, text=text), *word.parts[1:]))


def renamed(key: str, said: Rules) -> str:
    """Return veRL's name of ``key``; of nested sections the innermost that a rule names counts."""
    if key in said.renamed:
        return said.renamed[key]
    above = max((name for name in said.sections if key.startswith(f"{name}.")), key=len, default=None)
    return key if above is None else said.sections[above] + key[len(above) :]


def by_a_rule(key: str, rows: MappingTable) -> bool:
    """Return True if a rule of the user's decides what becomes of ``key``."""
    row = rows.find(key)
    return row is not None and row.code == USER_RULE


def _only_a_rule_knows(key: str, rows: MappingTable) -> bool:
    index = key_index()
    return by_a_rule(key, rows) and not any(key in index[flavour] for flavour in (*FLAVOURS, "groups"))
