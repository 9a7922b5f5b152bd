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
    """``launch`` with the keys that rules rename under veRL's names, and with ``++`` before those that only a
    rule knows, or that are well known from forks: Hydra's configuration has no place for them, the rule says
    what becomes of them."""
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
    """``key`` under veRL's name; of sections in each other the innermost that a rule names."""
    if key in said.renamed:
        return said.renamed[key]
    above = max((name for name in said.sections if key.startswith(f"{name}.")), key=len, default=None)
    return key if above is None else said.sections[above] + key[len(above) :]


def by_a_rule(key: str, rows: MappingTable) -> bool:
    """Whether a rule of the user's says what becomes of ``key``."""
    row = rows.find(key)
    return row is not None and row.code == USER_RULE


def _only_a_rule_knows(key: str, rows: MappingTable) -> bool:
    index = key_index()
    return by_a_rule(key, rows) and not any(key in index[flavour] for flavour in (*FLAVOURS, "groups"))
