"""Options of a comparison, and margins: the largest difference that counts as the same.

A margin is given by ``--margin NAME=VALUE``, or in a file of them.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.suggestions import nearest
from trinity_compat.compare import names
from trinity_compat.compare.axes import Axis


@dataclass(frozen=True, slots=True)
class MarginAmount:
    """A number of the metric's own unit, or (``is_share``) a share of A's level."""

    value: float
    is_share: bool = False

    def __str__(self) -> str:
        return f"{100 * self.value:g} %" if self.is_share else f"{self.value:g}"


# A tenth of A's level, unless the user sets a margin.
DEFAULT = MarginAmount(0.1, is_share=True)


@dataclass(frozen=True, slots=True)
class Margins:
    """Amounts by the name of a metric, a pattern (``val-core/*``) or a group of the report, as given.

    ``of_command_line`` are the names that must match a metric: an unmatched one is a typing error there,
    while a file may serve several comparisons.
    """

    given: Mapping[str, MarginAmount] = field(default_factory=dict)
    of_command_line: frozenset[str] = frozenset()

    def of(self, metric: str) -> MarginAmount | None:
        """Return the margin of the name, else of the longest pattern, else of the group, else None."""
        patterns = (key for key in self.given if fnmatch.fnmatchcase(metric, key))
        for key in (metric, *sorted(patterns, key=len, reverse=True), names.group_of(metric)):
            if key in self.given:
                return self.given[key]
        return None

    def unused(self, metrics: Sequence[str]) -> list[str]:
        """Return the names of a file that match no metric and no group.

        Raises UserError for such a name of the command line.
        """
        groups = names.groups()
        known = (*groups, *metrics)
        left = [key for key in self.given if key not in known and not fnmatch.filter(metrics, key)]
        for key in left:
            if key in self.of_command_line:
                near = nearest(key, known)
                hint = f"did you mean {near[0]}?" if near else f"a metric, or a group: {', '.join(groups)}"
                raise UserError(f"--margin {key}: no metric that both sides have", hint=hint)
        return left


def amount(option: str, text: str) -> MarginAmount:
    """Parse ``0.02`` or ``5%``. Raises UserError that names the option."""
    number = text.strip()
    is_share = number.endswith("%")
    try:
        value = float(number.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{option}: {text!r} is not a positive number", hint="0.02, or 5% of A's level")
    return MarginAmount(value / 100 if is_share else value, is_share)


def read(path: Path) -> dict[str, MarginAmount]:
    """Read a YAML mapping of metrics, patterns and groups to amounts. Raises UserError with the line."""
    import yaml

    from trinity_compat.verl_config.yaml_files import load_yaml

    try:
        text = path.read_text(encoding="utf-8")
        data = load_yaml(text)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=Where(str(path))) from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        said = str(getattr(error, "problem", None) or error)
        mark = getattr(error, "problem_mark", None)
        where = Where(str(path), mark.line + 1 if mark else 0)
        raise UserError(f"is not a YAML file: {said}", where=where) from None
    if not isinstance(data, dict):
        raise UserError("is not a mapping of metrics to margins", where=Where(str(path)), hint="reward: 0.02")
    return {str(key): _read_one(path, text, str(key), value) for key, value in data.items()}


def _read_one(path: Path, text: str, key: str, value: object) -> MarginAmount:
    from trinity_compat.verl_config.yaml_files import key_lines

    try:
        # a word without a slash or wildcard has to be a group of the report
        groups = names.groups()
        if key not in groups and not set(key) & set("/*?["):
            near = nearest(key, groups)
            said = f"did you mean {near[0]}?" if near else f"groups: {', '.join(groups)}"
            raise UserError(f"{key}: neither a metric nor a group of the report", hint=said)
        return amount(key, str(value))
    except UserError as error:
        where = Where(str(path), key_lines(text).get(key, 0))
        raise UserError(error.message, where=where, hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of a comparison. ``pairs`` renames metrics (theirs → canonical) first."""

    axis: Axis = "step"
    updates_per_step: int | None = None
    samples_per_step: int | None = None
    paired: bool = False
    metrics: Sequence[str] = ()  # prefixes to keep; empty: all
    pairs: Mapping[str, str] = field(default_factory=dict)
    margins: Margins = field(default_factory=Margins)
