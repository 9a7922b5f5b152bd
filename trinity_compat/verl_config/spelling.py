"""Values in the spelling of Hydra's override grammar."""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.verl_config.grammar import OverrideSyntaxError, parse_value


def hydra_text(value: object) -> str | None:
    """Return the text that Hydra reads as ``value``, None where its grammar has none."""
    text = _text(value)
    try:
        read = parse_value(text)
    except OverrideSyntaxError:
        return None
    return text if type(read) is type(value) and read == value else None


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return _of_string(value) if isinstance(value, str) else str(value)


def _of_string(value: str) -> str:
    try:
        if parse_value(value) == value:
            return value
    except OverrideSyntaxError:
        pass
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
