"""Single quotes in ``"${name:-'…'}"``: for bash they are characters, for shfmt they quote.

In double quotes (and here-documents) the word of ``:-``, ``:=``, ``:+`` and their like is double-quoted
text itself: ``"${V:-'$A'}"`` is A's value between two quotes. Still a ``}`` between single quotes doesn't
end the expansion. The text is parsed again with such characters masked, byte for byte, so that places
stay; `unmasked` gives them back. No text of a script holds the masks: `code.without_unreadable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Node = dict[str, Any]
QUOTE, BRACE = b"\x01", b"\x02"
MASKED = str.maketrans({QUOTE.decode(): "'", BRACE.decode(): "}"})
DEFAULTS = frozenset({":-", "-", ":=", "=", ":?", "?", ":+", "+"})
CANDIDATE = re.compile(rb"[-=+?][^\n]*'")
TOKEN = re.compile(rb"\\.|\$\{|\$\(|[`}\"]", re.S)


def masked(tree: Node, text: bytes) -> bytes | None:
    """Return the text with these quotes masked; None if it has none, or none of them can be masked."""
    if b"${" not in text or not CANDIDATE.search(text):
        return None
    out = bytearray(text)
    for word, heredoc in _defaults(tree, quoted=False, heredoc=False):
        for part in word.get("Parts") or []:
            if part["Type"] != "SglQuoted" or (part.get("Dollar") and not heredoc):
                continue
            low, high = part["Left"]["Offset"] + bool(part.get("Dollar")), part["Right"]["Offset"]
            braces = _loose_braces(text, low + 1, high)
            if braces is not None:
                out[low : low + 1] = out[high : high + 1] = QUOTE
                for at in braces:
                    out[at : at + 1] = BRACE
    return bytes(out) if out != text else None


def unmasked(text: str) -> str:
    """A literal of the tree as it was written."""
    return text.translate(MASKED)


def _defaults(node: object, *, quoted: bool, heredoc: bool) -> Iterator[tuple[Node, bool]]:
    """The words of defaults in double quotes or in a here-document, each with whether it is one's."""
    if isinstance(node, list):
        for item in node:
            yield from _defaults(item, quoted=quoted, heredoc=heredoc)
    elif isinstance(node, dict) and "Offset" not in node:
        kind = node.get("Type")
        if kind in ("DblQuoted", "ArithmExp"):
            quoted, heredoc = True, heredoc and kind == "ArithmExp"
        elif kind in ("CmdSubst", "ProcSubst"):
            quoted = heredoc = False
        for name, child in node.items():
            if name == "Hdoc":
                yield from _defaults(child, quoted=True, heredoc=True)
            elif name == "Exp" and kind == "ParamExp":
                double = quoted and child["Op"] in DEFAULTS
                if child.get("Word") and double:
                    yield child["Word"], heredoc
                yield from _defaults(child.get("Word"), quoted=double, heredoc=heredoc and double)
            else:
                inside = quoted and name != "Repl"
                yield from _defaults(child, quoted=inside, heredoc=heredoc and inside)


def _loose_braces(text: bytes, start: int, end: int) -> list[int] | None:
    """Closing braces that close nothing between the quotes; None where an expansion goes on behind them."""
    found = [(match[0], match.start()) for match in TOKEN.finditer(text, start, end)]
    tokens = [token for token, _ in found]
    loose, depth = list[int](), 0
    for token, at in found:
        if token == b"}" and depth == 0:
            loose.append(at)
        depth += (token == b"${") - (token == b"}" and depth > 0)
    commands = b"$(" in tokens or b"`" in tokens
    whole = depth == 0 and not any(tokens.count(mark) % 2 for mark in (b'"', b"`"))
    if commands:
        whole = whole and not loose and text.count(b"(", start, end) == text.count(b")", start, end)
    return loose if whole else None
