"""Backslashes: in plain words, in double quotes, in here-documents, in ``$'…'``."""

from __future__ import annotations

import re

ANSI = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
ANSI_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.S
)
ECHO_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|0([0-7]{0,3})|([abceEfnrtv\\]))", re.S
)


# In the format of printf: as in $'…', without \\cx.
FORMAT_ESCAPE = re.compile(ANSI_ESCAPE.pattern.replace("c(.)", "((?!))"), re.S)


def double_quoted(text: str, *, heredoc: bool = False, braced: bool = False) -> str:
    """The characters of a text in double quotes; ``braced`` in a ``${…}`` there."""
    if "\\" not in text:
        return text
    special = ("$`\\" if heredoc else '$`"\\') + ("}" if braced else "")
    return re.sub(r"\\(.)", lambda m: m[1] if m[1] in special else m[0], text, flags=re.S)


def ansi_c(text: str) -> str:
    """The characters of ``$'text'``."""
    out = ANSI_ESCAPE.sub(_ansi_char, text) if "\\" in text else text
    return with_bytes(out.split("\0", 1)[0])


def format_escapes(text: str) -> str:
    """Return a format of ``printf`` with its escapes replaced, directives apart."""
    return with_bytes(FORMAT_ESCAPE.sub(_ansi_char, text)) if "\\" in text else text


def with_bytes(text: str) -> str:
    """Bytes that were written one by one, together the characters that they encode."""
    return text.encode(errors="surrogateescape").decode(errors="surrogateescape")


def _byte(number: int) -> str:
    return chr(number) if number < 0x80 else chr(0xDC00 + number)


def _ansi_char(match: re.Match[str]) -> str:
    if (numbered := _numbered(match)) is not None:
        return numbered
    if match[4]:
        return _byte(int(match[4], 8) & 0xFF)
    if match[5]:
        return chr(ord(match[5].upper()) ^ 0x40) if match[5].isascii() else match[5]
    char = match[6]
    if char in ANSI:
        return ANSI[char]
    return char if char in "\\'\"?" else "\\" + char


def _numbered(match: re.Match[str]) -> str | None:
    r"""Return the character of ``\x41``, ``\u0041``, ``\U00000041``."""
    if match[1]:
        return _byte(int(match[1], 16))
    if not (match[2] or match[3]):
        return None
    number = int(match[2] or match[3], 16)
    return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else ""


def echo_escapes(text: str) -> tuple[str, bool]:
    r"""Return the output of ``echo -e`` and ``printf %b``, and whether ``\c`` ends it."""
    stop = False

    def change(match: re.Match[str]) -> str:
        nonlocal stop
        if stop:
            return ""
        if (numbered := _numbered(match)) is not None:
            return numbered
        if match[5] is None:
            return _byte(int(match[4] or "0", 8) & 0xFF)
        if match[5] == "c":
            stop = True
            return "\0"
        return "\\" if match[5] == "\\" else ANSI[match[5]]

    out = with_bytes(ECHO_ESCAPE.sub(change, text))
    return (out.split("\0", 1)[0] if stop else out), stop


def quoted_for_eval(text: str) -> str:
    """``printf %q``: text that ``eval`` and ``ssh`` read as one word. Printable text only."""
    out = re.sub(r"([^\w@%+=:./\-~#\x80-\U0010ffff])|(?<=[=:])~|^[~#]", r"\\\g<0>", text)
    return out or "''"
