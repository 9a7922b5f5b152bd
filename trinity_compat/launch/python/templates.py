"""Texts with places to fill in: ``"a=%d" % n``, ``"a={}".format(n)``, ``!command {n}`` of a notebook."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.traced_text import Value, lines_of
from trinity_compat.launch.python.items import Item, NotKnown, Text

_PLACEHOLDER = re.compile(r"%[-+ 0]*\d{0,3}(?:\.\d{1,2})?[sdrfgie]")
# IPython's DollarFormatter: $name, $$name for a dollar sign; none inside single quotes.
_DOLLAR = re.compile(r"(.*?)\$(\$?[\w.]+)(?=(?:[^']*'[^']*')*[^']*$)", re.DOTALL)


def percent(template: str, given: Sequence[Value], where: Where) -> Item:
    """``template % given``. Raises NotKnown where the places are not as many."""
    pieces = _PLACEHOLDER.split(template.replace("%%", "%"))
    if len(pieces) != len(given) + 1:
        raise NotKnown
    out = lines_of(pieces[0], where)
    for item, piece in zip(given, pieces[1:], strict=True):
        out = (*out, *item, *lines_of(piece, where))
    return Text(out)


def braces(template: str, field: Callable[[str, str], Value], where: Where) -> Value:
    """``{name}`` and ``{name:format}`` of a template; ``field`` says what stands for one.

    Raises NotKnown where it is not a template.
    """
    out: Value = ()
    number, line = 0, where.line
    try:
        for literal, name, spec, conversion in string.Formatter().parse(template):
            out = (*out, *lines_of(literal, Where(where.file, line)))
            line += literal.count("\n")
            if name is None:
                continue
            if conversion or (spec and "{" in spec):
                raise NotKnown
            out = (*out, *field(name or str(number), spec or ""))
            number += not name
    except ValueError:
        raise NotKnown from None
    return out


def dollars(text: str, name: Callable[[str], Value | None], where: Where) -> Value:
    """``$name`` of a notebook's ``!`` line; one that ``name`` doesn't know is the shell's."""
    out: Value = ()
    end = 0
    for found in _DOLLAR.finditer(text):
        out = (*out, *lines_of(found[1], where))
        word = found[2]
        value = lines_of(word, where) if word.startswith("$") else name(word)
        out = (*out, *(lines_of(f"${word}", where) if value is None else value))
        end = found.end()
    return (*out, *lines_of(text[end:], where))
