"""Programs that say what is known without running them: ``date``, ``expr``, ``uname``, ``whoami``."""

from __future__ import annotations

import re

from trinity_compat.launch.bash.options import ParsedOptions
from trinity_compat.launch.bash.programs import clock
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import literal, text_of
from trinity_compat.launch.bash.words.arithmetic import COMPUTE

_LONGEST_EXPR = 99  # words
_EXPR_WORDS = {"(", ")", "+", "index", "length", "match", "substr"}  # no text where one begins

ISO = {"": "%F", "d": "%F", "h": "%FT%H%:z", "m": "%FT%H:%M%:z", "s": "%FT%H:%M:%S%:z"}
UNAME = {"": "Linux", "s": "Linux", "m": "x86_64", "o": "GNU/Linux"}


def date(sh: Shell, given: ParsedOptions) -> int | None:
    """``date [-u] [-d text] [-I] [+format]``."""
    texts = given.texts()
    when = clock.moment_of(sh, given.text("d"))
    if when is None or not (given.has("u") or clock.is_utc(sh)):
        return None
    if len(texts) > 1 or not all(text.startswith("+") for text in texts):
        return None
    form = texts[0][1:] if texts else "%a %b %e %H:%M:%S %Z %Y"
    if given.has("I"):
        form = ISO.get(given.text("I")[:1], "")
    return sh.write_line(literal(clock.strftime(form, when), sh.where))


def whoami(sh: Shell, given: ParsedOptions) -> int | None:
    """``whoami``: prints the value of USER if it is known."""
    user = sh.scalar("USER")
    if user is None:
        return None
    return sh.write_line(user)


def identity(sh: Shell, given: ParsedOptions) -> int | None:
    """``id -un``."""
    return whoami(sh, given) if given.has("u") and given.has("n") and not given.operands else None


def uname(sh: Shell, given: ParsedOptions) -> int | None:
    """``uname`` with at most one of -s, -m and -o; answers for x86-64 Linux, where veRL runs."""
    fact = UNAME.get("".join(given.options))
    if fact is None or given.operands:
        return None
    return sh.write_line(literal(fact, sh.where))


def expr(sh: Shell, given: ParsedOptions) -> int | None:
    """``expr number operator number …``, products first, else from left to right; division goes towards zero.

    ``expr length text``. A result of 0 is status 1.
    """
    texts = given.texts()
    if texts[:1] == ["length"] and len(texts) == 2 and not {*texts[1:]} & _EXPR_WORDS:
        sh.write_line(literal(str(len(texts[1])), sh.where))
        return int(not texts[1])
    numbers, operators = texts[::2], texts[1::2]
    if len(numbers) != len(operators) + 1 or not operators or len(texts) > _LONGEST_EXPR:
        return None
    if not all(re.fullmatch(r"-?\d{1,18}", text) for text in numbers) or {*operators} - {*"+-*/%"}:
        return None
    try:
        result = _calculated([int(number) for number in numbers], operators)
    except ZeroDivisionError:
        return 2
    if abs(result) >= 2**63:
        return None
    sh.write_line(literal(str(result), sh.where))
    return int(result == 0)


def _calculated(numbers: list[int], operators: list[str]) -> int:
    """Raises ZeroDivisionError."""
    terms, signs = [numbers[0]], []
    for sign, number in zip(operators, numbers[1:], strict=True):
        if sign in "+-":
            terms.append(number)
            signs.append(sign)
        else:
            terms[-1] = COMPUTE[sign](terms[-1], number)
    result = terms[0]
    for sign, number in zip(signs, terms[1:], strict=True):
        result = COMPUTE[sign](result, number)
    return result


def printenv(sh: Shell, given: ParsedOptions) -> int | None:
    """``printenv names``."""
    for name in given.operands:
        value = sh.scalar(text_of(name))
        if value is None:
            return None
        sh.write_line(value)
    return 0 if given.operands else None
