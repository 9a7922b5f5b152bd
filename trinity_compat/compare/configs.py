"""Comparison of two launches by their effective configuration.

Each source is first upgraded to the pinned veRL, so a script of veRL 0.4 and a Trinity YAML are comparable: a
key that moved is one row, and a default that changed between releases is a difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import leaves
from trinity_compat.common.releases import VERL
from trinity_compat.launch import Launch, read_script
from trinity_compat.translate import flavour_of, refuse_errors
from trinity_compat.translate.env_references import EnvReferences, named
from trinity_compat.translate.translator import symbolic_settings
from trinity_compat.translate.verl_from_trinity import compat_of, in_full, verl_settings
from trinity_compat.trinity.config.read import load
from trinity_compat.verl_config import compose_pinned, effective_config, upgrade
from trinity_compat.verl_config.config_folders import read_config
from trinity_compat.verl_config.from_yaml import config_from_yaml
from trinity_compat.verl_config.model import EffectiveConfig, Setting

_ABSENT = "(not there)"
_TRINITY_SECTIONS = {"algorithm", "buffer", "explorer", "synchronizer", "cluster"}


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """Every leaf of a source under the pinned veRL's keys, and the places where keys were set."""

    source: str
    values: Mapping[str, object]
    places: Mapping[str, str]
    why: str  # the veRL release as which it was read, or Trinity


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """One key whose effect differs."""

    key: str
    a: object
    b: object
    a_place: str
    b_place: str


def read_in_effect(source: str) -> EffectiveSettings:
    """Read a script, a veRL YAML or a Trinity YAML. Raises UserError."""
    path = Path(source)
    if not path.is_file():
        raise UserError(
            "a folder" if path.is_dir() else "no such file",
            where=Where(source),
            hint="--configs takes scripts and YAML files (of a job directory: config/verl.yaml)",
        )
    if path.suffix not in (".yaml", ".yml"):
        return _of_script(source, read_script(path).launches)
    data = read_config(path).config
    if len(_TRINITY_SECTIONS & set(data)) >= 2 and "actor_rollout_ref" not in data:
        return _of_trinity(source, load(path))
    return _of_verl(source, config_from_yaml(path))


def _of_trinity(source: str, config: Mapping[str, object]) -> EffectiveSettings:
    full = in_full(config)
    # Which of veRL's trainers runs is a setting of ours.
    told = {**named(verl_settings(full)), "trainer.use_v1": compat_of(full.config).get("trainer") == "v1"}
    values = dict(leaves(compose_pinned(told, flavour_of(full.config))))
    return EffectiveSettings(
        source, values, dict.fromkeys(told, source), "a Trinity configuration, carried back to veRL"
    )


def _of_script(source: str, launches: Sequence[Launch]) -> EffectiveSettings:
    if not launches:
        raise UserError("no veRL launch in this script", where=Where(source))
    found = _of_verl(source, effective_config(launches[0]))
    first = f"the first of {len(launches)} launches, line {launches[0].where.line}; " if launches[1:] else ""
    return replace(found, why=first + found.why)


def _of_verl(source: str, config: EffectiveConfig) -> EffectiveSettings:
    """Read a veRL configuration. Raises UserError for one that Hydra would refuse, since it has no effect."""
    refuse_errors(config)
    upgraded = upgrade(config).config
    values = dict(leaves({key: setting.value for key, setting in upgraded.settings.items()}))
    places = {key: _place(setting) for key, setting in upgraded.settings.items()}
    why = f"veRL {config.version.value}: {config.version.why}"
    return EffectiveSettings(source, values | _unknown_texts(config), places, why)


def _place(setting: Setting) -> str:
    if setting.where is not None:
        return str(setting.where)
    return f"follows {setting.interpolation}" if setting.interpolation else "default"


def _unknown_texts(config: EffectiveConfig) -> dict[str, object]:
    """Return values that contain an unset variable or unknown output, with its name as a reference.

    A Trinity YAML also has ``${oc.env:HOME}`` there.
    """
    symbols = EnvReferences()
    marked = symbolic_settings(config, symbols, None) or {}
    values = leaves({key: setting.value for key, setting in marked.items()})
    return {key: symbols.in_effect(value) for key, value in values if not symbols.is_known(value)}


def difference(a: EffectiveSettings, b: EffectiveSettings) -> list[KeyDifference]:
    """Return the keys with different effects in order, including keys that only one side has."""
    keys = sorted(set(a.values) | set(b.values))
    rows = []
    for key in keys:
        p, q = a.values.get(key, _ABSENT), b.values.get(key, _ABSENT)
        if p != q:
            place_a, place_b = (s.places.get(key, "default") for s in (a, b))
            rows.append(KeyDifference(key, p, q, place_a, place_b))
    return rows


def difference_text(first: str, others: Sequence[str], form: str) -> str:
    """Return the differences of each source from the first as text, md or json."""
    a = read_in_effect(first)
    pairs = [(b, difference(a, b)) for b in map(read_in_effect, others)]
    if form == "json":
        rows = [{"a": a.source, "b": b.source, "differences": [_row(d) for d in found]} for b, found in pairs]
        return json.dumps({"version": 1, "comparisons": rows}, indent=2, ensure_ascii=False) + "\n"
    return "\n".join(_text(a, b, found, form) for b, found in pairs)


def _row(d: KeyDifference) -> dict[str, object]:
    return {"key": d.key, "a": d.a, "b": d.b, "a_place": d.a_place, "b_place": d.b_place}


def _text(a: EffectiveSettings, b: EffectiveSettings, found: list[KeyDifference], form: str) -> str:
    head = [f"A = {a.source} ({a.why})", f"B = {b.source} ({b.why})"]
    number = f"{len(found)} key{'s differ' if len(found) > 1 else ' differs'}"
    head.append(f"{number} in effect, as veRL {VERL} understands it" if found else "no difference")
    if form == "md":
        lines = ["", "| key | A | B | where |", "|---|---|---|---|"] if found else []
        lines += [f"| {d.key} | `{d.a}` | `{d.b}` | {d.a_place} / {d.b_place} |" for d in found]
        return "\n".join([*head, *lines]) + "\n"
    lines = [f"  {d.key}\n    A {d.a!r}  ({d.a_place})\n    B {d.b!r}  ({d.b_place})" for d in found]
    return "\n".join([*head, *lines]) + "\n"


def of_runs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, object]] | None:
    """Return the differences of two runs' recorded veRL configurations, None unless both recorded theirs.

    First come the keys whose effect an audit reports as changed, with its reason, even if both values are
    equal. Then come the keys with different values only.
    """
    verl_a, verl_b = a.get("verl"), b.get("verl")
    if not verl_a or not verl_b:
        return None
    one, other = (dict(leaves(tree)) for tree in (verl_a, verl_b))
    reasons = {**_reasons(a), **_reasons(b)}
    changed = {
        d.key for d in difference(EffectiveSettings("A", one, {}, ""), EffectiveSettings("B", other, {}, ""))
    }
    rows = [
        {"key": key, "a": one.get(key, _ABSENT), "b": other.get(key, _ABSENT), "why": reasons.get(key, "")}
        for key in changed | set(reasons)
    ]
    return sorted(rows, key=lambda row: (not row["why"], row["key"]))


def _reasons(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return key → the audit's status and reason, for keys that are not simply mapped."""
    launches = (meta.get("audit") or {}).get("launches") or []
    return {
        finding["key"]: f"{finding['status']}: {finding['reason']}"
        for launch in launches
        for finding in launch.get("findings", [])
        if finding.get("status") not in ("mapped", "derived", "passed_through")
    }
