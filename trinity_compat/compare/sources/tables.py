"""Exports in text: CSV, JSON and veRL's file logger (jsonl). veRL's console output is in ``console.py``."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.compare.model import RunMetrics, Series

_STEP_NAMES = ("step", "_step", "global_step", "trainer/global_step", "Step")
_WALL_NAMES = ("_timestamp", "wall_time", "timestamp")
_NOT_METRICS = frozenset((*_STEP_NAMES, *_WALL_NAMES))
# pprint writes numpy scalars as np.float64(0.5)
_NUMBER = re.compile(
    r"^(?:np\.\w+\()?([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf(?:inity)?))\)?$", re.I
)


_DECIMALS = re.compile(r"\d\.(\d+)(?![\de])", re.I)  # an exponent's digits are significant ones


def read_csv(path: Path) -> RunMetrics:
    """A CSV with a step column; W&B's panel export names its columns ``run - metric``."""
    printed = PrintedDecimals()
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.DictReader(file)
        if (first := next(rows, None)) is None:
            raise UserError("this CSV has no rows", where=Where(str(path)))
        run = _from_rows(path, (_csv_row(row, printed) for row in chain((first,), rows)))
    run.resolution = printed.resolution
    return run


def _csv_row(row: Mapping[str, str], printed: PrintedDecimals) -> Mapping[str, str]:
    for text in row.values():
        if isinstance(text, str) and number_of(text) is not None:
            printed.add(text)
    # `my-run - critic/score/mean` → `critic/score/mean`; W&B's __MIN/__MAX columns keep their suffix
    return {name.split(" - ", 1)[-1]: text for name, text in row.items() if name}


def read_json(path: Path) -> RunMetrics:
    """A list of rows, one row per line (veRL's file logger: {"step", "data"}), or {metric: [values]}."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        data = json.loads(text)
    except ValueError:
        return _from_rows(path, _json_lines(text))
    if isinstance(data, dict) and data and all(isinstance(v, list) for v in data.values()):
        names = list(data)
        data = [dict(zip(names, values, strict=False)) for values in zip(*data.values(), strict=False)]
    elif not isinstance(data, list):
        data = [data]
    return _from_rows(path, (row for row in data if isinstance(row, dict)))


def _json_lines(text: str) -> Iterator[Mapping[str, object]]:
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line of a run that is still writing
        if isinstance(row, dict):
            yield row


def _from_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> RunMetrics:
    series: dict[str, Series] = {}
    has_step = False
    for index, row in enumerate(rows):
        data = row.get("data")
        flat: Mapping[str, object] = {**row, **data} if isinstance(data, dict) else row
        step, found = _first(flat, _STEP_NAMES)
        wall, _ = _first(flat, _WALL_NAMES)
        if abs(step) >= 2**63:
            continue  # no step of a run
        has_step |= found
        _add_row(flat, int(step) if found else index, wall, series)
    if not series:
        raise UserError("no numeric metric in this file", where=Where(str(path)))
    notes = [] if has_step else ["no step column: rows were numbered from 0"]
    return RunMetrics(path.stem, str(path), "table", series, notes=notes)


def _add_row(row: Mapping[str, object], step: int, wall: float, series: dict[str, Series]) -> None:
    """Note every number of the row; what a million values pass through has no call for each."""
    for name, value in row.items():
        number = value if type(value) is float else number_of(value)
        if number is None or name in _NOT_METRICS:
            continue
        if (known := series.get(name)) is None:
            known = series[name] = Series()
        known.steps.append(step)
        known.values.append(number)
        known.walls.append(wall)


def _first(row: Mapping[str, object], names: Iterable[str]) -> tuple[float, bool]:
    for name in names:
        value = number_of(row.get(name))
        if value is not None:
            return value, True
    return math.nan, False


class PrintedDecimals:
    """The number of decimals that a text source prints, inferred from all its numbers together.

    Older veRL prints three, others round to six. Python's own form has up to seventeen, so a source whose
    longest number has between three and eight decimals is rounded; fewer may be a handful of halves.
    """

    def __init__(self) -> None:
        self.decimals = 0

    def add(self, text: str) -> None:
        """Note one number as it was printed."""
        match = _DECIMALS.search(text)
        self.decimals = max(self.decimals, len(match[1]) if match else 0)

    @property
    def resolution(self) -> float:
        """The last digit printed, 0 where the numbers are whole."""
        return 10.0**-self.decimals if 3 <= self.decimals <= 8 else 0.0


def number_of(value: object) -> float | None:
    """A number, also as text and as numpy's repr; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value)
    match = _NUMBER.match(value.strip()) if isinstance(value, str) else None
    return float(match[1]) if match else None
