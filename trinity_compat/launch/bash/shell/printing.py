"""``echo`` and ``printf``."""

from __future__ import annotations

import re

from trinity_compat.launch.bash.programs import clock
from trinity_compat.launch.bash.shell.assignments import NAME
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import TextPiece, Value, derived, doubt_in, literal, text_of
from trinity_compat.launch.bash.words import lookup
from trinity_compat.launch.bash.words.quoting import echo_escapes, format_escapes, quoted_for_eval

DIRECTIVE = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?(?:[hlLjzt]*)"
    r"(?P<kind>\([^)]*\)T|[a-zA-Z%])"
)
WIDEST = 10_000


def echo(sh: Shell, args: list[Value]) -> int:
    """``echo [-neE] words``."""
    newline, escapes = True, "xpg_echo" in sh.options
    while args and re.fullmatch(r"-[neE]+", text_of(args[0])):
        for letter in text_of(args[0])[1:]:
            newline = newline and letter != "n"
            escapes = letter == "e" if letter != "n" else escapes
        args = args[1:]
    out: list[TextPiece] = []
    for index, arg in enumerate(args):
        out += [TextPiece(" ", sh.where), *arg] if index else arg
    if escapes:
        changed: list[TextPiece] = []
        for bit in out:
            text, stop = echo_escapes(bit.text)
            changed.append(TextPiece(text, bit.where, bit.source))
            if stop:
                newline = False
                break
        out = changed
    if newline:
        out.append(TextPiece("\n", sh.where))
    sh.write(tuple(out))
    return 0


def printf(sh: Shell, args: list[Value]) -> int:
    """``printf [-v name] format args``: the format again while arguments are left."""
    of_name: Value = ()
    if args and text_of(args[0]) == "-v":
        if len(args) < 3:
            return 2
        of_name, args = args[1], args[2:]
    if args and text_of(args[0]) == "--":
        args = args[1:]
    if not args:
        return 2
    out = _Format(sh, args[1:]).run(text_of(args[0]))
    if doubt_in([of_name]) is None and of_name and not NAME.fullmatch(text_of(of_name).partition("[")[0]):
        return 2
    if of_name:
        lookup.set_named(sh, of_name, out, "printf -v")
    else:
        sh.write(out)
    return 0


class _Format:
    def __init__(self, sh: Shell, args: list[Value]) -> None:
        self.sh, self.args, self.at = sh, args, 0
        self.out: list[TextPiece] = []
        self.stopped = False

    def run(self, form: str) -> Value:
        while not self.stopped:
            before, end = self.at, 0
            for match in DIRECTIVE.finditer(form):
                self._text(form[end : match.start()])
                end = match.end()
                if match["kind"] == "%":
                    self._text("%")
                else:
                    self._directive(match)
                if self.stopped:
                    break
            else:
                self._text(form[end:])
            self.sh.budget.step()
            if self.at >= len(self.args) or self.at == before:
                break
        return tuple(self.out)

    def _text(self, text: str) -> None:
        self.out += literal(format_escapes(text), self.sh.where)

    def _next(self) -> Value:
        self.at += 1
        return self.args[self.at - 1] if self.at <= len(self.args) else ()

    def _directive(self, match: re.Match[str]) -> None:
        width = text_of(self._next()) if match["width"] == "*" else match["width"]
        precision = text_of(self._next()) if match["precision"] == "*" else match["precision"]
        flags = match["flags"]
        if width.startswith("-"):
            flags, width = flags + "-", width[1:]
        size = min(int(width or 0) if (width or "0").isdigit() else 0, WIDEST)
        value = self._next()
        kind = match["kind"]
        if (
            kind == "Q"
            or (kind == "q" and not text_of(value).isprintable())  # bash would write $'…'
            or (kind.endswith("T") and not clock.is_utc(self.sh))
        ):
            self.out.append(self.sh.unknown(f"printf {match[0]}", self.sh.where))
            return
        if match["kind"] == "s" and not size and precision is None:
            self.out += value
            return
        text = self._convert(match["kind"], flags, precision, text_of(value))
        text = text.ljust(size) if "-" in flags else _padded(text, size, flags, match["kind"])
        self.out += derived(text, [value], f"printf {match[0]}", self.sh.where)

    def _convert(self, kind: str, flags: str, precision: str | None, text: str) -> str:
        if kind in "sqb":
            text = quoted_for_eval(text) if kind == "q" else text
            if kind == "b":
                # with \101 as \0101: printf takes both
                text, stop = echo_escapes(re.sub(r"(?<!\\)((?:\\\\)*)\\([1-7][0-7]{0,2})", r"\1\\0\2", text))
                self.stopped = self.stopped or stop
            return text if precision is None else text[: int(precision or 0)]
        if kind == "c":
            return text[:1]
        if kind.endswith("T"):
            return clock.strftime(kind[1:-2], clock.epoch_or_now(self.sh, text))
        form = "%" + "".join(sorted(set(flags) - {"-", "0"}))
        digits = f".{min(int(precision or 0), 400)}" if precision is not None else ""
        if kind in "fFeEgGaA":
            kind = kind if kind not in "aA" else "g"
            return (form + digits + kind) % _float(text)
        number = _integer(text)
        if kind in "xXou" and number < 0:
            number += 1 << 64
        text = (form + digits + {"u": "d", "i": "d"}.get(kind, kind)) % number if kind in "diuxXo" else ""
        return text.replace("0o", "0", 1)  # of %#o


def _float(text: str) -> float:
    """The number at the start of a text, 0 without one."""
    match = re.match(
        r"\s*[-+]?(?:0[xX][0-9a-fA-F]{1,40}|\d{1,300}(?:\.\d{0,99})?(?:[eE][-+]?\d{1,3})?|\.\d{1,99})", text
    )
    if not match:
        return 0.0
    return float.fromhex(match[0].strip()) if "x" in match[0].lower() else float(match[0])


def _integer(text: str) -> int:
    text = text.strip()
    if text[:1] in ("'", '"'):
        return ord(text[1]) if len(text) > 1 else 0
    match = re.match(r"([-+]?)(0[xX][0-9a-fA-F]{1,40}|0[0-7]{0,40}|\d{1,40})", text)
    if not match:
        return 0
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" and len(digits) > 1 else 10
    number = int(digits, base)
    return -number if match[1] == "-" else number


def _padded(text: str, size: int, flags: str, kind: str) -> str:
    if "0" in flags and kind in "diuxXofFeEgG":
        sign = text[0] if text[:1] in ("-", "+", " ") else ""
        return sign + text[len(sign) :].rjust(size - len(sign), "0")
    return text.rjust(size)
