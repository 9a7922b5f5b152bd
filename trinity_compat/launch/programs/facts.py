"""Programs that say what is known without running them: ``date``, ``expr``, ``uname``, ``whoami``."""

from __future__ import annotations

import re

from trinity_compat.launch.core.options import Arguments
from trinity_compat.launch.core.state import Shell
from trinity_compat.launch.core.values import literal, text_of
from trinity_compat.launch.programs import clock

ISO = {"": "%F", "d": "%F", "h": "%FT%H%:z", "m": "%FT%H:%M%:z", "s": "%FT%H:%M:%S%:z"}
UNAME = {"": "Linux", "s": "Linux", "m": "x86_64", "o": "GNU/Linux"}


def date(sh: Shell, given: Arguments) -> int | None:
    """``date [-u] [-d text] [-I] [+format]``."""
    texts = given.texts()
    when = clock.shifted(sh, given.text("d"))
    if when is None or len(texts) > 1 or not all(text.startswith("+") for text in texts):
        return None
    form = texts[0][1:] if texts else "%a %b %e %H:%M:%S %Z %Y"
    if given.has("I"):
        form = ISO.get(given.text("I")[:1], "")
    if given.has("u"):
        when = when.astimezone(clock.UTC)
    return sh.write_line(literal(clock.strftime(form, when), sh.where))


def whoami(sh: Shell, given: Arguments) -> int | None:
    """USER, where the environment gives it."""
    user = sh.scalar("USER")
    if user is None:
        return None
    return sh.write_line(user)


def identity(sh: Shell, given: Arguments) -> int | None:
    """``id -un``."""
    return whoami(sh, given) if given.has("u") and given.has("n") and not given.operands else None


def uname(sh: Shell, given: Arguments) -> int | None:
    """One fact at a time, of the machines that veRL runs on."""
    fact = UNAME.get("".join(given.options))
    if fact is None or given.operands:
        return None
    return sh.write_line(literal(fact, sh.where))


def expr(sh: Shell, given: Arguments) -> int | None:
    """``expr number operator number``; division goes towards zero, and a result of 0 is status 1."""
    texts = given.texts()
    if len(texts) != 3 or texts[1] not in ("+", "-", "*", "/", "%"):
        return None
    if not all(re.fullmatch(r"-?\d{1,18}", text) for text in (texts[0], texts[2])):
        return None
    a, operator, b = int(texts[0]), texts[1], int(texts[2])
    if operator in "/%" and b == 0:
        return 2
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    result = {"+": a + b, "-": a - b, "*": a * b, "/": quotient, "%": a - b * quotient}[operator]
    sh.write_line(literal(str(result), sh.where))
    return int(result == 0)


def printenv(sh: Shell, given: Arguments) -> int | None:
    """``printenv names``."""
    for name in given.operands:
        value = sh.scalar(text_of(name))
        if value is None:
            return None
        sh.write_line(value)
    return 0 if given.operands else None
