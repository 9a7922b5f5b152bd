"""The configuration that veRL's task runner prints at its start (``main_ppo.py``: ``pprint``), in a log."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

BEGINS = "{'actor_rollout_ref':"  # pprint sorts the keys; no other key of veRL's stands before it
LONGEST = 512 << 10  # characters of a configuration: Python's parser takes some 300 times their size

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^\(\w+ pid=[^)]*\) ?")
_MOST_TRIED = 8 * LONGEST  # characters that are parsed, since several lines may end it


@dataclass(frozen=True, slots=True)
class PrintedConfiguration:
    """The configuration, empty if there is none, and the line of each dotted key, from 1."""

    config: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.config)


def printed_configuration(log: Iterable[str]) -> PrintedConfiguration:
    """Find the first configuration in the lines of a log, with Ray's prefixes and colours taken off.

    It is empty if absent or mixed with other output. Only literals are read; nothing is evaluated.
    """
    prefix, text, tried = "", "", 0
    numbers: list[int] = []  # of the log's line, for each line of the text
    for number, line in enumerate((COLOUR.sub("", raw.rstrip("\n")) for raw in log), start=1):
        head = match[0] if (match := _PREFIX.match(line)) else ""
        rest = line[len(head) :]
        if rest.startswith(BEGINS):
            prefix, text, numbers = head, rest, [number]
        elif text and head == prefix:
            # a line that was cut where a pipe's buffer was full goes on without pprint's indent
            text += f"\n{rest}" if rest.startswith(" ") else rest
            numbers += [number] if rest.startswith(" ") else []
        if len(text) > LONGEST:
            text = ""
        if text and rest.endswith("}"):
            if found := _literal(text, numbers):
                return found
            tried += len(text)
            if tried > _MOST_TRIED:
                break
    return PrintedConfiguration()


def _literal(text: str, numbers: list[int]) -> PrintedConfiguration | None:
    try:
        tree = ast.parse(text, mode="eval").body
        found = ast.literal_eval(tree)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    lines = {key: numbers[line - 1] for key, line in _lines(tree, "")}
    return PrintedConfiguration(found, lines) if isinstance(found, dict) else None


def _lines(node: ast.expr, above: str) -> Iterator[tuple[str, int]]:
    """Yield each dotted key below a node with its line in the text."""
    if isinstance(node, ast.Dict):
        for name, value in zip(node.keys, node.values, strict=True):
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                key = f"{above}{name.value}"
                yield key, name.lineno
                yield from _lines(value, f"{key}.")
