"""The mapping as data: one row per veRL key, or per family of keys that share a fate.

``translators/by_hand/rows/*.json`` hold the rows. A name that ends in ``.*`` is a rule for everything below
it; one that begins with ``*.`` is a rule for a last part. An exact name wins over a rule, a longer
rule over a shorter one, a last part over what stands above it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trinity_compat.common.nested import sections_above
from trinity_compat.common.resources import data_json, data_path
from trinity_compat.translate.model import Status
from trinity_compat.translate.user_rules import Rules, paths_of
from trinity_compat.translate.user_rules import read as read_rules

HOWS: Mapping[str, Status] = {
    "copy": Status.MAPPED,  # the value as it is
    "scale": Status.DERIVED,  # counted in steps: × r
    "derive": Status.DERIVED,  # by the function that ``by`` names
    "pass": Status.PASSED_THROUGH,  # to the same path under trainer.trainer_config
    "keep": Status.UNSUPPORTED_UPSTREAM,  # carried for our runtime, Trinity has no place
    "drop": Status.NO_EFFECT,
    "unsupported": Status.UNSUPPORTED,
}


_REMEMBERED = 8192  # keys whose row was looked up; all releases together have some two thousand


@dataclass(frozen=True, slots=True)
class MappingRow:
    """The mapping of one veRL key, or of all keys below a prefix, to Trinity.

    ``to`` are dotted paths, the first one names the key in a finding; ``targets`` replaces them for
    a trinity-rft release. ``same`` is the value with which upstream behaves like veRL anyway.
    ``free`` marks text in which an unknown environment variable may stay symbolic. ``passed`` are
    releases of trinity-rft that take the key under trainer_config though others don't.
    """

    key: str
    how: str
    why: str
    code: str
    to: tuple[str, ...] = ()
    by: str = ""
    status: Status | None = None
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    same: object = None
    has_same: bool = False
    free: bool = False
    passed: tuple[str, ...] = ()

    def outcome(self, target: str) -> Status:
        """The status of a key that this row translates without a hitch."""
        return Status.PASSED_THROUGH if self.passes(target) else self.status or HOWS[self.how]

    def passes(self, target: str) -> bool:
        """Return True if the key goes to trainer_config in trinity-rft ``target``."""
        return self.how == "pass" or target in self.passed

    def paths(self, target: str) -> tuple[str, ...]:
        """The paths in the configuration of trinity-rft ``target``."""
        return self.targets.get(target, self.to)


@dataclass(frozen=True, slots=True)
class MappingTable:
    """All rows, by exact name and by rule."""

    exact: Mapping[str, MappingRow]
    below: Mapping[str, MappingRow]  # "critic." → the row critic.*
    endings: Mapping[str, MappingRow]  # "_target_" → the row *._target_
    _found: dict[str, MappingRow | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, rows: Iterable[MappingRow]) -> MappingTable:
        """Sort rows by the kind of their name; of two with the same name the later wins."""
        exact, below, endings = {}, {}, {}
        for row in rows:
            if row.key.startswith("*."):
                endings[row.key[2:]] = row
            elif row.key.endswith(".*"):
                below[row.key[:-1]] = row
            else:
                exact[row.key] = row
        return cls(exact, below, endings)

    def find(self, key: str) -> MappingRow | None:
        """Return the row for ``key``; None when no row and no rule covers it."""
        if key not in self._found:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found[key] = self._search(key)
        return self._found[key]

    def _search(self, key: str) -> MappingRow | None:
        if row := self.exact.get(key):
            return row
        if row := self.endings.get(key.rpartition(".")[2]):
            return row
        for section in sections_above(key):
            if row := self.below.get(section + "."):
                return row
        return self.below.get(key + ".")  # a whole section given as one dictionary

    def all(self) -> list[MappingRow]:
        """Every row in the order of its file."""
        return [*self.exact.values(), *self.below.values(), *self.endings.values()]


def load_rows(user_rules: str | None = None) -> MappingTable:
    """Return the shipped rows, with the user's own laid over them. Raises UserError for a bad rule."""
    shipped = _shipped()
    if user_rules is None:
        return shipped
    own = rules_of(user_rules).rows
    return MappingTable.of([*shipped.all(), *(_row(key, form) for key, form in own.items())])


def rules_of(name: str | None) -> Rules:
    """Return the rules of a user's file or of a shipped family. Raises UserError for a bad file."""
    return read_rules(name, HOWS)


@functools.cache
def _shipped() -> MappingTable:
    rows: list[MappingRow] = []
    for file in sorted(data_path("translators/by_hand/rows").glob("*.json")):
        rows += [_row(key, form) for key, form in json.loads(file.read_text(encoding="utf-8")).items()]
    return MappingTable.of(rows)


def _row(key: str, form: Mapping[str, Any]) -> MappingRow:
    return MappingRow(
        key=key,
        how=form["how"],
        why=form["why"],
        code=form["code"],
        to=paths_of(form.get("to", ())),
        by=form.get("by", ""),
        status=Status(form["status"]) if "status" in form else None,
        targets={target: paths_of(paths) for target, paths in form.get("targets", {}).items()},
        same=form.get("same"),
        has_same="same" in form,
        free=form.get("free", False),
        passed=paths_of(form.get("passed", ())),
    )


def no_effect_when_decoupled() -> Mapping[str, str]:
    """Return ``key`` or ``prefix.*`` → the reason why it is not carried to the trainer."""
    return data_json("translators/by_hand/no_effect_when_decoupled.json")


@functools.cache
def means_nothing(key: str) -> bool:
    """Return True if ``key`` is on the list."""
    return key in no_effect_when_decoupled() or any(
        f"{section}.*" in no_effect_when_decoupled() for section in sections_above(key)
    )
