"""A launch as ``--rules`` teach us to read it, and with veRL's keys of ``--set`` as its last overrides.

Before it is composed, so that they count for what Hydra would refuse as well as for what becomes of a key.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trinity_compat.common.errors import Where
from trinity_compat.launch.model import Launch, Word, WordPart
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.rows import MappingTable, load_rows, rules_of
from trinity_compat.translate.unknown import USER_RULE
from trinity_compat.translate.user_rules import Rules
from trinity_compat.trinity.config import schema
from trinity_compat.verl_config.infer import keys_of
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS, FLAVOURS, key_index
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


_WHERE = Where("--set")


def with_assigned_keys(launch: Launch, options: TranslateOptions) -> tuple[Launch, TranslateOptions]:
    """Return the launch and the options with the assignments of veRL's keys moved into the launch.

    They become its last overrides. A name that both veRL and Trinity have is Trinity's.
    """
    verls = [key for key in options.assignments if is_verl_key(key, options.trinity)]
    if not verls:
        return launch, options
    words = [Word((WordPart(f"{key}={options.assignments[key]}"),), _WHERE) for key in verls]
    rest = {key: value for key, value in options.assignments.items() if key not in verls}
    # Hydra takes no override after a flag that follows overrides.
    arguments = launch.arguments
    overrides = [i for i, word in enumerate(arguments) if "=" in word.text and not word.text.startswith("-")]
    end = overrides[-1] + 1 if overrides else len(arguments)
    return replace(launch, arguments=(*arguments[:end], *words, *arguments[end:])), replace(
        options, assignments=rest
    )


def is_verl_key(key: str, target: str) -> bool:
    """Return True for a key that a veRL release has and trinity-rft ``target`` lacks, and for a new one."""
    if key.startswith("+"):
        return True
    return schema(target).find(key) is None and any(
        key in keys_of(flavour) for flavour in (*FLAVOURS, *ENGINE_FLAVOURS)
    )
