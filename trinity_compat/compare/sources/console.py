"""veRL's console output: metric lines ``step:N - k:v - …``, and the configuration that v0 prints first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.compare.model import RunMetrics, Series
from trinity_compat.compare.sources.tables import PrintedDecimals, number_of
from trinity_compat.launch.job_files.printed_configuration import (
    BEGINS,
    COLOUR,
    LONGEST,
    printed_configuration,
)

_STEP_LINE = re.compile(r"(?:^|[\s)\]>])step:(\d+) - (\S+:.*)$")
_MOST_BEFORE = 8 << 20  # characters in which the configuration is looked for, from where it may begin
_MOST_METRICS = 100_000


def read(path: Path) -> RunMetrics:
    """One run, with Ray's prefixes and colours taken off. Raises UserError where no metric is found."""
    series: dict[str, Series] = {}
    config: list[str] = []
    held = 0
    printed = PrintedDecimals()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in (COLOUR.sub("", raw.rstrip("\n")) for raw in file):
            match = _STEP_LINE.search(line.rstrip())
            if match:
                for name, value, text in _pairs(match[2]):
                    printed.add(text)
                    series.setdefault(name, Series()).add(int(match[1]), value)
                if len(series) > _MOST_METRICS:
                    raise UserError(f"more than {_MOST_METRICS:,} metrics", where=Where(str(path)))
            elif not series and held < _MOST_BEFORE and (config or BEGINS in line):
                config.append(line[:LONGEST])
                held += len(config[-1])
    if not series:
        raise UserError(
            "no metric found: neither event files, a table, nor veRL console lines (step:N - key:value - …)",
            where=Where(str(path)),
            hint="give a TensorBoard, W&B, mlflow or job directory, a CSV/JSON export, or a veRL log",
        )
    verl = printed_configuration(config).config
    meta = {"verl": verl} if verl else {}
    return RunMetrics(path.stem, str(path), "console", series, meta=meta, resolution=printed.resolution)


def _pairs(text: str) -> Iterator[tuple[str, float, str]]:
    """(name, number, the number's text) of each metric in a line."""
    for piece in text.split(" - "):
        name, _, value = piece.rpartition(":")
        number = number_of(value)
        if name and number is not None:
            yield name.strip(), number, value
