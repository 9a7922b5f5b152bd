"""The form of the JSON under translators/ that scripts write: one key a line, for diffs."""

from __future__ import annotations

import json
from collections.abc import Mapping


def dump(content: object) -> str:
    """Return ``content`` as a file's text: each key of an object on its own line, each list on one line.

    Lists of names longer than a line have one name a line. The order of keys is the caller's.
    """
    return _lines(content, 0) + "\n"


def _lines(value: object, depth: int) -> str:
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, Mapping) and value:
        rows = (
            f"{json.dumps(key, ensure_ascii=False)}: {_lines(entry, depth + 1)}"
            for key, entry in value.items()
        )
        return "{" + inner + ("," + inner).join(rows) + outer + "}"
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, list) and (len(text) > _WIDTH or any(isinstance(entry, Mapping) for entry in value)):
        return "[" + inner + ("," + inner).join(_lines(entry, depth + 1) for entry in value) + outer + "]"
    return text


_WIDTH = 100
