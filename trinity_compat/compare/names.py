"""Canonical metric names, which are veRL's. The table is data: ``translators/by_hand/metrics/names.yaml``."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import yaml

from trinity_compat.common.resources import data_path
from trinity_compat.compare.model import RunMetrics, Series

OUTCOME = ("reward", "evaluation")
LEARNING = (*OUTCOME, "length", "policy", "critic")


@dataclass(frozen=True, slots=True)
class MetricNames:
    """``names`` rows (verl, trinity, differs), ``groups`` name → prefixes; by pattern, signs and titles."""

    names: tuple[tuple[str, str, str], ...]
    groups: Mapping[str, tuple[str, ...]]
    better: Mapping[str, str]
    titles: Mapping[str, tuple[str, str]]  # for readers: a name and a meaning


@cache
def table() -> MetricNames:
    """Return the shipped table."""
    data = yaml.safe_load(data_path("translators/by_hand/metrics/names.yaml").read_text())
    names = tuple((row["verl"], row["trinity"], row.get("differs", "")) for row in data["names"])
    groups = {group: tuple(prefixes) for group, prefixes in data["groups"].items()}
    return MetricNames(names, groups, dict(data["better"]), dict(data["titles"]))


def canonical(name: str) -> tuple[str, str]:
    """Return veRL's name for a Trinity metric and the difference in meaning; (name, "") if no row has it."""
    for verl, trinity, differs in table().names:
        if trinity == name:
            return verl, differs
        if trinity.endswith("*") and name.startswith(trinity[:-1]):
            return verl[:-1] + name[len(trinity) - 1 :], differs
    return name, ""


def is_trinity(run: RunMetrics) -> bool:
    """Return whether upstream Trinity-RFT wrote the run: it logs ``time/…``, veRL ``timing_s/…``."""
    has = {name.split("/")[0] for name in run.series}
    return "time" in has and "timing_s" not in has


def rename(run: RunMetrics, pairs: Mapping[str, str]) -> tuple[dict[str, Series], dict[str, str]]:
    """Return the run's series under canonical names, and name → difference in meaning.

    ``pairs`` (the user's --pair) go first; a row of the table applies to Trinity's runs only, and never
    onto a name that the run has itself.
    """
    renamed: dict[str, Series] = {}
    differs: dict[str, str] = {}
    foreign = is_trinity(run)
    for name, series in run.series.items():
        target, note = canonical(name) if foreign else (name, "")
        target = pairs.get(name, target)
        if target != name and target in run.series:
            target, note = name, ""
        renamed[target] = series
        if note:
            differs[target] = note
    return renamed, differs


def groups() -> tuple[str, ...]:
    """Return the groups of the report, in its order."""
    return (*table().groups, "other")


def group_of(name: str) -> str:
    """Return the group of the table's longest prefix of a metric, else ``other``."""
    fits = [
        (len(prefix), group)
        for group, prefixes in table().groups.items()
        for prefix in prefixes
        if name.startswith(prefix)
    ]
    return max(fits)[1] if fits else "other"


def is_of_learning(group: str) -> bool:
    """Return whether a group's metrics describe learning; the others are seconds, memory and staleness."""
    return group in LEARNING


def better(name: str) -> str:
    """Return "+" if higher is better, "-" if lower is, "" if neither."""
    for pattern, sign in table().better.items():
        if fnmatch.fnmatchcase(name, pattern):
            return sign
    return ""
