"""The text of ``explain`` and of the generated reference for a row."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import TRINITY, VERL_RELEASES
from trinity_compat.common.resources import data_json
from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.translate.rows import MappingRow, MappingTable, load_rows, no_effect_when_decoupled
from trinity_compat.translate.size_rules import units
from trinity_compat.translate.trinity_fields import fate_of
from trinity_compat.translate.unknown import reason_without_release
from trinity_compat.trinity.config.schema import schema
from trinity_compat.verl_config import FLAVOURS
from trinity_compat.verl_config.reads import read_of, read_until
from trinity_compat.verl_config.releases import key_index
from trinity_compat.verl_config.upgrade import is_well_known, row_for

HOW_READS: Mapping[str, str] = {
    "copy": "copied",
    "scale": "× updates_per_step (steps)",
    "derive": "derived",
    "pass": "passed to trainer_config",
    "keep": "kept for trinity-compat; Trinity-RFT has no field",
    "drop": "dropped",
    "unsupported": "not supported",
}


# Arguments that veRL hands on: a release lists some, and takes any.
_HANDED_ON = re.compile(r"kwargs\b|\boverride_config\b")


def codes() -> Mapping[str, Mapping[str, str]]:
    """Return every code of a finding or a warning: title, text, hint."""
    return data_json("translators/by_hand/codes.json")


@functools.cache
def all_keys() -> tuple[str, ...]:
    """Return the keys of all releases, both flavours, sorted; sections left out."""
    index = key_index()
    keys = {key for flavour in FLAVOURS for key in index[flavour]}
    sections = {key.rpartition(".")[0] for key in keys}
    return tuple(sorted(keys - sections))


def releases_with(key: str) -> list[str]:
    """Return the veRL releases that have ``key``, oldest first."""
    masks = [key_index()[flavour].get(key, (0, 0))[0] for flavour in FLAVOURS]
    return [version for bit, version in enumerate(VERL_RELEASES) if any(mask >> bit & 1 for mask in masks)]


def reading_codes() -> Mapping[str, str]:
    """Return every code of reading and composing a launch (TP…), with its text."""
    return data_json("translators/by_hand/reading_codes.json")


def explain(name: str, rows: MappingTable) -> str:
    """Return the explanation of ``name``: a veRL key, a path of the Trinity configuration, or a code.

    A key or path may be shortened as messages and comments do (``rollout.n``, ``sync_interval``).

    Raises UserError with the nearest spelling for anything else, also where a rule would cover the misspelled
    key; a key that the launch adds (``+``) is explained by its rule, which the text says.
    """
    if re.fullmatch(r"t[cpw]\d+", name):
        name = name.upper()
    if name in codes():
        entry = codes()[name]
        hint = f"\n  do:      {entry['hint']}" if entry["hint"] else ""
        return f"{name} {entry['title']}\n  {entry['text']}{hint}"
    if name in reading_codes():
        return f"{name}\n  {reading_codes()[name]}"
    if re.fullmatch(r"T[CPW]\d+", name):
        raise UserError(f"there is no code {name}")
    full = _full_names(name, rows)
    if not full:
        return _explained(name, rows)
    if len(full) > 1:
        raise UserError(f"{name} abbreviates several names", hint=f"name one: {', '.join(full)}")
    parts = [f"{name} abbreviates {full[0]}", _explained(full[0], rows)]
    if name in rows.exact:  # a key of another section by that very name
        parts += ["", _explained(name, rows)]
    return "\n".join(parts)


def _full_names(name: str, rows: MappingTable) -> list[str]:
    """Return the full names that end in ``name``; none if it is a full name itself."""
    key = name.lstrip("+~").partition("=")[0]
    if key in all_keys() or not key:
        return []
    if (full := f"actor_rollout_ref.{key}") in all_keys():
        return [full]
    paths = {path for row in rows.all() for path in _all_paths(row)} | set(derived())
    if key in paths or key in rows.exact:
        return []
    return sorted(path for path in paths if path.endswith(f".{key}"))


def _explained(name: str, rows: MappingTable) -> str:
    """Explain a full name."""
    key = name.lstrip("+~").partition("=")[0]
    row = rows.find(key)
    unread = None if is_well_known(key) else _unread(key, row, rows)
    named = key in all_keys() or key in rows.exact or _successors(key)
    if row is not None and named and not unread:
        return "\n".join(_with_successors(key, rows))
    if row is None and _successors(key):
        return "\n".join(_with_successors(key, rows))
    writers = [row for row in rows.all() if any(_concerns(path, name) for path in _all_paths(row))]
    if writers:
        return "\n\n".join("\n".join(_key_lines(row.key, row)) for row in writers)
    if (found := _derived_text(name)) is not None:
        return found
    if (found := _field_text(name)) is not None:
        return found
    if unread and not name.startswith("+"):
        raise UserError(f"{key}: {unread}", hint=f"a key of your own is written +{key}")
    if row is not None:
        return "\n".join((*_key_lines(key, row), *([f"  veRL:    {unread}"] if unread else [])))
    paths = {path for row in rows.all() for path in _all_paths(row)}
    near = did_you_mean(key, [*all_keys(), *sorted(paths)])
    if near and not _words(near) & _words(key):  # letters alone make no other name likely
        near = None
    raise UserError(
        f"{name} is neither a veRL key nor a path of the Trinity configuration",
        hint=f"did you mean {near}?" if near else None,
    )


def _words(key: str) -> set[str]:
    return set(re.split(r"[._]", key.lower()))


def _unread(key: str, row: MappingRow | None, rows: MappingTable) -> str | None:
    """Return the text for a key that no release has, with the nearest key.

    None if a release may read it, if the rule is the user's own or about any section, and for a name that is
    not a key (then ``row`` is None).
    """
    if row is None or row.key.startswith("*.") or row != load_rows().find(key):
        return None
    section = key.rpartition(".")[0]
    if _HANDED_ON.search(section):
        siblings = [name for name in all_keys() if name.startswith(f"{section}.")]
        if not did_you_mean(key, siblings):
            return None
    return reason_without_release(key, rows)


def derived() -> Mapping[str, Mapping[str, Any]]:
    """Return the paths that a derivation writes although no single key stands for them: by, why, from."""
    return data_json("translators/by_hand/derived.json")


def _derived_text(name: str) -> str | None:
    for path, entry in derived().items():
        if _concerns(path, name):
            keys = ", ".join(entry["from"]) or "none: the same for every launch"
            return f"{name}\n  how:     derived ({entry['by']})\n  from:    {keys}\n  why:     {entry['why']}"
    return None


def _field_text(name: str) -> str | None:
    """Return the text for a field of Trinity's that no key of veRL's writes; None for another name."""
    field = schema(TRINITY).find(name)
    if field is None or name.startswith("trainer.trainer_config."):  # which holds keys of veRL's
        return None
    if field.type.kind == "class":
        names = ", ".join(schema(TRINITY).classes[field.type.class_name])
        return f"{name}\n  how:     a section of Trinity-RFT's YAML\n  fields:  {names}"
    lines = [name, "  how:     a field of Trinity-RFT's YAML that no key of veRL's writes"]
    if field.default is not None:
        lines.append(f"  default: {field.default}")
    if (fate := fate_of(name)) is not None:
        does = {"read": "reads it", "no effect": "has no use for it", "refused": "takes the default only"}
        lines.append(f"  run:     trinity-compat run {does[fate.kind]}{f': {fate.why}' if fate.why else ''}")
    return "\n".join(lines)


def _key_lines(key: str, row: MappingRow) -> Iterator[str]:
    yield key
    yield f"  how:     {HOW_READS[row.how]}" + (f" ({row.by})" if row.by else "")
    if row.to:
        yield f"  target:  {', '.join(row.to)}"
    for target, paths in row.targets.items():
        yield f"           {', '.join(paths)} (trinity-rft {target})"
    if row.how == "pass":
        yield f"  target:  trainer.trainer_config.{key}"
    if key in units():
        yield f"  unit:    {units()[key]}"
    yield f"  status:  {row.outcome(TRINITY)}"
    yield f"  why:     {row.why}"
    title = codes().get(row.code, {}).get("title", "a code of your rules")
    yield f"  code:    {row.code} {title}"
    if row.key != key:
        yield f"  rule:    {row.key}"
    if versions := releases_with(key):
        yield f"  veRL:    {spans(versions)}"
        yield from (f"  stock:   {text}" for text in _stock(key, versions[-1]))
    if key in no_effect_when_decoupled():
        yield f"  back:    not passed to the trainer: {no_effect_when_decoupled()[key]}"


def _stock(key: str, version: str) -> Iterator[str]:
    """Yield what stock veRL of ``version`` does with the key, and what else under Megatron."""
    said = ""
    for flavour in FLAVOURS:
        if (found := read_of(key, version, flavour)) is not None and found.words != said:
            until = read_until(key, version, flavour) if found.ignored else ""
            megatron = " (under Megatron)" if said else ""
            said = found.words
            yield f"veRL {version}{megatron} {said}" + (f" (read until {until})" if until else "")


def _with_successors(key: str, rows: MappingTable) -> Iterator[str]:
    """Return the row of ``key``, or of the keys that replaced it in the pinned veRL."""
    found, row = _successors(key), rows.find(key)
    if row is not None and (found is None or key in rows.exact):
        yield from _key_lines(key, row)
        return
    if found is None:
        return
    new, why = found
    yield f"{key}: {'now ' + ', '.join(new) if new else 'dropped by veRL'} ({why})"
    for name in new:
        if (successor := rows.find(name)) is not None:
            yield from _key_lines(name, successor)


def _successors(key: str) -> tuple[tuple[str, ...], str] | None:
    """Return (today's keys, why) of a key of an older release; None if it kept its name."""
    for flavour in FLAVOURS:
        row = row_for(key, flavour)
        if row is not None and row.targets(key) != (key,):
            return row.targets(key), row.why
    return None


def spans(versions: list[str]) -> str:
    """Format releases: ``0.4.1–0.9.1`` for neighbours, commas between spans."""
    order = {version: position for position, version in enumerate(VERL_RELEASES)}
    groups: list[list[str]] = []
    for version in versions:
        if groups and order[version] == order[groups[-1][-1]] + 1:
            groups[-1].append(version)
        else:
            groups.append([version])
    return ", ".join(group[0] if len(group) == 1 else f"{group[0]}–{group[-1]}" for group in groups)


def _all_paths(row: MappingRow) -> list[str]:
    return [*row.to, *(path for paths in row.targets.values() for path in paths)]


def _concerns(path: str, name: str) -> bool:
    """Return True if ``name`` is ``path``, list positions written either way."""
    plain = name.replace("[", ".").replace("]", "")
    return plain in (path, path.replace(".0.", ".")) or plain.startswith(path + ".")
