"""Comparison of two launches by their effective configuration.

Differences come in the order of their weight: settings that differ, those that follow from them, and those
that differ without effect. Spelling does not count: a renamed key, a default written out, quotes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, leaves, put
from trinity_compat.common.releases import VERL
from trinity_compat.compare.effective_settings import EffectiveSettings, by_way_of_trinity
from trinity_compat.translate.defaults import same
from trinity_compat.translate.frozen_variables import FROZEN
from trinity_compat.translate.pipeline import as_translated
from trinity_compat.translate.rows import means_nothing
from trinity_compat.translate.stock_verl import honoured_here
from trinity_compat.translate.verl_from_trinity import COMPAT, verl_settings
from trinity_compat.trinity.config.complete import CompletedConfig, completed
from trinity_compat.trinity.config.read_tracking import values_of
from trinity_compat.verl_config.reads import sentence, unchecked

ABSENT = "(not there)"
_IN_TRAINER_CONFIG = ("trainer.trainer_config.actor_rollout_ref.", "trainer.trainer_config.critic.")
_FILES = ("data.train_files", "data.val_files")  # one file or a list of files


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """One key whose value differs.

    ``why``: the interpolation that it follows, or the reason why it has no effect; "" for others. ``stock``:
    what stock veRL does with a key that it ignores and a run here honours.
    """

    key: str
    a: object
    b: object
    a_place: str
    b_place: str
    why: str = ""
    stock: str = ""


@dataclass(frozen=True, slots=True)
class SettingsDifference:
    """The differences of B from A: in effect, following from those, and without effect."""

    a: EffectiveSettings
    b: EffectiveSettings
    effective: tuple[KeyDifference, ...]
    following: tuple[KeyDifference, ...]
    idle: tuple[KeyDifference, ...]

    @property
    def differs(self) -> bool:
        """Return True if something differs in effect."""
        return bool(self.effective or self.following)


def compared(a: EffectiveSettings, b: EffectiveSettings) -> SettingsDifference:
    """Compare two sources. A veRL source beside a Trinity YAML or a job counts as its translation."""
    if trinity := a.trinity or b.trinity:
        a, b = (side if side.trinity else by_way_of_trinity(side, trinity.target) for side in (a, b))
    rows = list(_of_keys(a, b))
    idle = {row.key: why for row in rows if (why := _why_idle(row.key, a, b))}
    following = {key for key, _ in a.follows.items() & b.follows.items()} - idle.keys()
    lasting = [row for row in rows if row.key not in idle and row.key not in following]
    if a.flavour == b.flavour:
        lasting = [
            replace(row, stock=sentence(row.key, VERL, a.flavour)) if honoured_here(row.key) else row
            for row in lasting
        ]
    fields, derived = _of_trinity_alone(a, b)
    return SettingsDifference(
        a,
        b,
        (*lasting, *fields, *_of_jobs(a, b)),
        (*(replace(row, why=a.follows[row.key]) for row in rows if row.key in following), *derived),
        (*(replace(row, why=idle[row.key]) for row in rows if row.key in idle), *_of_dropped(a, b)),
    )


def _of_keys(a: EffectiveSettings, b: EffectiveSettings) -> Iterator[KeyDifference]:
    """Yield the veRL keys with different values in order, including keys that only one side has."""
    for key in sorted(set(a.values) | set(b.values)):
        p, q = a.values.get(key, ABSENT), b.values.get(key, ABSENT)
        if key.endswith("_target_") or _is_same(key, p, q):
            continue
        a_place, b_place = (side.places.get(key, side.unset) for side in (a, b))
        yield KeyDifference(key, p, q, a_place, b_place)


def _is_same(key: str, a: object, b: object) -> bool:
    if key in _FILES:
        a, b = (value[0] if isinstance(value, list) and len(value) == 1 else value for value in (a, b))
    return same(a, b) or (a in ({}, ABSENT) and b in ({}, ABSENT))


def _why_idle(key: str, a: EffectiveSettings, b: EffectiveSettings) -> str:
    """Return why a difference of ``key`` has no effect, "" if it has one.

    A key that stock veRL ignores has an effect if a run here honours it, and may have one for code that is
    not known.
    """
    if (a.trinity or b.trinity) and means_nothing(key):
        return "trinity-compat runs without it"
    if any(side.config and unchecked(side.config) for side in (a, b)):
        return ""
    return "" if a.flavour != b.flavour or honoured_here(key) else sentence(key, VERL, a.flavour)


def _of_trinity_alone(
    a: EffectiveSettings, b: EffectiveSettings
) -> tuple[list[KeyDifference], list[KeyDifference]]:
    """Return the fields of two Trinity configurations that differ and that no veRL key stands for.

    The second list has those that translate derives from the veRL keys of each side.
    """
    if a.trinity is None or b.trinity is None:
        return [], []
    one, other = values_of(a.trinity.config), values_of(b.trinity.config)
    paths = one.keys() | other.keys()
    if a.trinity.target != b.trinity.target:  # releases whose fields and defaults are others
        paths = values_of(a.trinity.file).keys() & values_of(b.trinity.file).keys()
    rows = [
        KeyDifference(path, one.get(path), other.get(path), a.source, b.source)
        for path in sorted(paths)
        if not same(one.get(path), other.get(path))
        and not _is_verl(a.trinity, path, other.get(path))
        and not _is_verl(b.trinity, path, one.get(path))
    ]
    if not rows:
        return [], []
    made = [_derived(side) for side in (a.trinity, b.trinity)]
    derived = {row.key for row in rows if [fields.get(row.key, ABSENT) for fields in made] == [row.a, row.b]}
    return (
        [row for row in rows if row.key not in derived],
        [replace(row, why="the veRL settings above") for row in rows if row.key in derived],
    )


def _derived(full: CompletedConfig) -> dict[str, object]:
    """Return the fields that translate would write for the veRL settings of ``full``; empty if it refuses."""
    try:
        return values_of(completed(as_translated(full.config), full.target).config)
    except UserError:
        return {}


def _is_verl(full: CompletedConfig, path: str, value: object) -> bool:
    """Return True if another ``value`` at ``path`` changes the veRL configuration, whose rows tell it."""
    if any(f".{COMPAT}.{section}." in path for section in ("verl", "stands_for", FROZEN)):
        return True  # keys of veRL by their names, and what made them
    # so are these, but for the count of steps
    if path.startswith(_IN_TRAINER_CONFIG) and not path.endswith("optim.lr_warmup_steps"):
        return True
    changed = copied(full.config)
    try:
        put(changed, path, value)
        return verl_settings(replace(full, config=changed)) != verl_settings(full)
    except (UserError, IndexError, ValueError):
        return False


def _of_jobs(a: EffectiveSettings, b: EffectiveSettings) -> Iterator[KeyDifference]:
    """Yield the settings of two jobs that no configuration of veRL's holds."""
    if not a.run or not b.run:
        return
    for key in sorted(a.run.keys() | b.run.keys()):
        p, q = a.run.get(key, ABSENT), b.run.get(key, ABSENT)
        if not _is_same(key, p, q):
            yield KeyDifference(f"run.{key}", p, q, "config/run.json", "config/run.json")


def _of_dropped(a: EffectiveSettings, b: EffectiveSettings) -> Iterator[KeyDifference]:
    """Yield the settings that a side gives and that mean nothing to the pinned veRL."""
    for key in sorted(a.dropped.keys() | b.dropped.keys()):
        found = [side.dropped.get(key) for side in (a, b)]
        p, q = (gone.value if gone else ABSENT for gone in found)
        given = [gone for gone in found if gone and gone.given]
        if not given or same(p, q):
            continue
        a_place, b_place = (gone.place if gone else "" for gone in found)
        yield KeyDifference(key, p, q, a_place, b_place, given[0].why)


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
    sides = (EffectiveSettings("A", one, {}, ""), EffectiveSettings("B", other, {}, ""))
    changed = {row.key for row in _of_keys(*sides)}
    rows = [
        {"key": key, "a": one.get(key, ABSENT), "b": other.get(key, ABSENT), "why": reasons.get(key, "")}
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
