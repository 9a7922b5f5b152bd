"""Runs as bytes, by which one process hands what it has read to another: a line of JSON, then the points."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import BinaryIO

from trinity_compat.compare.model import RunMetrics, Series

_COLUMNS = ("steps", "values", "walls")
_PLAIN = [one.name for one in fields(RunMetrics) if one.name != "series"]


def write(runs: Sequence[RunMetrics], file: BinaryIO) -> None:
    """Write the runs."""
    head = [
        [
            {name: getattr(run, name) for name in _PLAIN},
            [(name, len(run.series[name])) for name in run.series],
        ]
        for run in runs
    ]
    file.write(json.dumps(head, default=str, skipkeys=True).encode() + b"\n")
    for series in (series for run in runs for series in run.series.values()):
        for column in _COLUMNS:
            getattr(series, column).tofile(file)


def read(file: BinaryIO) -> list[RunMetrics]:
    """Return what ``write`` wrote. Raises ValueError, EOFError or TypeError for anything else."""
    return [
        RunMetrics(**plain, series={name: _series(file, count) for name, count in sizes})
        for plain, sizes in json.loads(file.readline())
    ]


def _series(file: BinaryIO, count: int) -> Series:
    found = Series()
    for column in _COLUMNS:
        getattr(found, column).fromfile(file, count)
    return found
