"""veRL's console output: metric lines ``step:N - k:v - …``, and the configuration that v0 prints first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.compare.model import RunMetrics, Series
from trinity_compat.compare.sources.tables import PrintedDecimals, number_of

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STEP_LINE = re.compile(r"(?:^|[\s)\]>])step:(\d+) - (\S+:.*)$")
_PREFIX = re.compile(r"^\(\w+ pid=[^)]*\) ?")
_MOST_BEFORE = 8 << 20  # characters in which the configuration is looked for, from where it may begin
_LONGEST = 512 << 10  # characters of a configuration: Python's parser takes some 300 times their size
_MOST_TRIED = 8 * _LONGEST  # characters that are parsed, since several lines may end it
_MOST_METRICS = 100_000
_CONFIG_BEGINS = "{'actor_rollout_ref':"  # pprint sorts the keys; no other key of veRL's stands before it


def read(path: Path) -> RunMetrics:
    """One run, with Ray's prefixes and colours taken off. Raises UserError where no metric is found."""
    series: dict[str, Series] = {}
    config: list[str] = []
    held = 0
    printed = PrintedDecimals()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in (_ANSI.sub("", raw.rstrip("\n")) for raw in file):
            match = _STEP_LINE.search(line.rstrip())
            if match:
                for name, value, text in _pairs(match[2]):
                    printed.add(text)
                    series.setdefault(name, Series()).add(int(match[1]), value)
                if len(series) > _MOST_METRICS:
                    raise UserError(f"more than {_MOST_METRICS:,} metrics", where=Where(str(path)))
            elif not series and held < _MOST_BEFORE and (config or _CONFIG_BEGINS in line):
                config.append(line[:_LONGEST])
                held += len(config[-1])
    if not series:
        raise UserError(
            "no metric found: neither event files, a table, nor veRL console lines (step:N - key:value - …)",
            where=Where(str(path)),
            hint="give a TensorBoard, W&B, mlflow or job directory, a CSV/JSON export, or a veRL log",
        )
    verl = configuration(config)
    meta = {"verl": verl} if verl else {}
    return RunMetrics(path.stem, str(path), "console", series, meta=meta, resolution=printed.resolution)


def _pairs(text: str) -> Iterator[tuple[str, float, str]]:
    """(name, number, the number's text) of each metric in a line."""
    for piece in text.split(" - "):
        name, _, value = piece.rpartition(":")
        number = number_of(value)
        if name and number is not None:
            yield name.strip(), number, value


def configuration(lines: Iterable[str]) -> Mapping[str, object]:
    """Return the configuration that veRL's task runner pretty-prints before training (main_ppo.py: pprint).

    It is empty if absent or mixed with other output. Only literals are read; nothing is evaluated.
    """
    prefix, text, tried = "", "", 0
    for line in lines:
        head = match[0] if (match := _PREFIX.match(line)) else ""
        rest = line[len(head) :]
        if rest.startswith(_CONFIG_BEGINS):
            prefix, text = head, rest
        elif text and head == prefix:
            # a line that was cut where a pipe's buffer was full goes on without pprint's indent
            text += f"\n{rest}" if rest.startswith(" ") else rest
        if len(text) > _LONGEST:
            text = ""
        if text and rest.endswith("}"):
            if found := _literal(text):
                return found
            tried += len(text)
            if tried > _MOST_TRIED:
                break
    return {}


def _literal(text: str) -> Mapping[str, object]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
