"""Values in the spelling of Hydra's override grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trinity_compat.verl_config.grammar import OverrideSyntaxError, parse_value


def hydra_text(value: object) -> str | None:
    """Return the text that Hydra reads as ``value``, None where its grammar has none."""
    try:
        text = _text(value)
    except ValueError:
        return None
    return text if _reads_as(text, value) else None


def _text(value: object) -> str:
    """Raises ValueError for a text that has no spelling."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return _of_string(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_element(key)}:{_element(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_element, value)) + "]"
    return str(value)


def _element(value: object) -> str:
    """An element of a list or a dictionary, where a text with a comma or a bracket needs quotes."""
    text = _text(value)
    if isinstance(value, str) and not _reads_as(f"[{text}]", [value]):
        return _of_string(value, quoted=True)
    return text


def _of_string(value: str, *, quoted: bool = False) -> str:
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (found[2] and "\\'"), value)
    for spelled in (value, f"'{escaped}'", f'"{value}"'):
        if not (quoted and spelled is value) and _reads_as(spelled, value):
            return spelled
    raise ValueError(value)


def _reads_as(text: str, value: object) -> bool:
    try:
        read = parse_value(text)
    except OverrideSyntaxError:
        return False
    return type(read) is type(value) and bool(read == value)
