"""Programs that hand text on: cat, tee, tr, grep, xargs, and the uses of awk and wc that count."""

from __future__ import annotations

import re
from collections.abc import Callable

from trinity_compat.launch.bash.options import ParsedOptions
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    TextPiece,
    Value,
    derived,
    doubt_in,
    literal,
    slice_value,
    text_of,
)
from trinity_compat.launch.bash.words import regex
from trinity_compat.launch.bash.words.matching import CLASSES
from trinity_compat.launch.bash.words.quoting import ansi_c
from trinity_compat.launch.model import UnknownPiece


def cat(sh: Shell, given: ParsedOptions) -> int:
    """The content of files, or of stdin; what can't be read is open."""
    for file in given.operands:
        if text_of(file) == "-":
            sh.write(_stdin(sh))
            continue
        content = None if doubt_in([file]) else sh.files.read(sh.files_path(file))
        if content is None:
            sh.doubt = UnknownPiece(text_of(file), sh.where)
            content = (sh.unknown(f"cat {text_of(file)}", sh.where),)
        sh.write(content)
    if not given.operands:
        sh.write(_stdin(sh))
    return 0


def _stdin(sh: Shell) -> Value:
    return sh.stdin if sh.stdin is not None else (sh.unknown("stdin", sh.where),)


def tee(sh: Shell, given: ParsedOptions) -> int:
    """Stdin goes on, and into files."""
    value = sh.stdin or ()
    for file in given.operands:
        if text_of(file) and not doubt_in([file]):
            path = sh.files_path(file)
            if not path.startswith("/dev/"):
                sh.files.write(path, value, append=given.has("a"))
    sh.write(value)
    return 0


_BASIC_SPECIAL = re.compile(r"[\\+?{}|()]")  # read otherwise in a basic expression than in an extended one
_XARGS_PIECE = re.compile(r"""\s+|"([^"\n]*)"|'([^'\n]*)'|\\(.)|([^\s"'\\]+)""", re.S)


def grep(sh: Shell, given: ParsedOptions) -> int | None:
    """``grep [-EFchiqsvx] PATTERN [FILE]`` of known text; None where the text or the pattern isn't read."""
    pattern, *files = [given.value("e"), *given.operands] if given.has("e") else [*given.operands, ()]
    files = [file for file in files if file]
    content = _known_input(sh, files)
    text = text_of(pattern)
    if content is None or not (given.has("EF") or not _BASIC_SPECIAL.search(text)):
        return None
    chars = [(char, given.has("F")) for char in (f"^({text})$" if given.has("x") else text)]
    lines, at = list[Value](), 0
    try:
        for line in text_of(content).splitlines(keepends=True):
            found = regex.search(chars, line.removesuffix("\n"), sh.budget, fold=given.has("i"))
            if (found is None) == given.has("v"):
                lines.append(slice_value(content, at, at + len(line)))
            at += len(line)
    except regex.BadExpression:
        return None
    if given.has("c"):
        sh.write_line(literal(str(len(lines)), sh.where))
    elif not given.has("q"):
        for value in lines:
            sh.write(value if text_of(value).endswith("\n") else (*value, TextPiece("\n", sh.where)))
    return 0 if lines else 1


def _known_input(sh: Shell, files: list[Value]) -> Value | None:
    """The content of the file, or of stdin where there is none; None for what isn't known, or several."""
    if len(files) > 1 or (not files and sh.stdin is None):
        return None
    content = sh.stdin if not files else sh.files.read(sh.files_path(files[0]))
    return None if content is None or doubt_in([content]) else content


def xargs(sh: Shell, given: ParsedOptions) -> int | None:
    """``xargs`` alone, or with echo: the words of stdin on one line, their quotes taken off."""
    content = _known_input(sh, [])
    if content is None or given.texts() not in ([], ["echo"]):
        return None
    words, word, at, text = list[str](), None, 0, text_of(content)
    while at < len(text):
        piece = _XARGS_PIECE.match(text, at)
        if piece is None:  # a quote that nothing closes: xargs stops
            return None
        at = piece.end()
        if piece.lastindex is not None:
            word = (word or "") + piece[piece.lastindex]
        elif word is not None:
            words.append(word)
            word = None
    return sh.write_line(literal(" ".join([*words, *([word] if word is not None else [])]), sh.where))


def awk(sh: Shell, given: ParsedOptions) -> int | None:
    """``awk -F, '{print NF}'`` of stdin, which counts GPUs; no other program."""
    separator = given.text("F")
    programs = ["".join(text.split()) for text in given.texts()]
    if programs not in (["{printNF}"], ["{printNF;}"]) or len(separator) != 1 or separator in " t\\":
        return None
    stdin = _stdin(sh)
    counts = (f"{line.count(separator) + 1 if line else 0}\n" for line in text_of(stdin).splitlines())
    sh.write(derived("".join(counts), [stdin], sh.capturing or "awk", sh.where))
    return 0


def wc(sh: Shell, given: ParsedOptions) -> int | None:
    """Run ``wc -l`` or ``wc -w`` on stdin, as scripts do to count GPUs; None for any other use."""
    if given.operands or {*given.options} not in ({"l"}, {"w"}):
        return None
    stdin = _stdin(sh)
    text = text_of(stdin)
    count = text.count("\n") if given.has("l") else len(text.split())
    sh.write(derived(f"{count}\n", [stdin], sh.capturing or "wc", sh.where))
    return 0


def tr(sh: Shell, given: ParsedOptions) -> int | None:
    """``tr a-z A-Z``, ``-d``, ``-s`` and ``-c``, one at a time; not ``-ds``."""
    sets = [_characters(text_of(operand)) for operand in given.operands]
    if None in sets or not 1 <= len(sets) <= 2 or (given.has("d") and given.has("s")):
        return None
    first, second = [*(one or "" for one in sets), ""][:2]
    stdin = _stdin(sh)
    text, others = text_of(stdin), given.has("cC")

    def inside(char: str) -> bool:
        return (char in first) != others

    if given.has("d"):
        out = "".join(char for char in text if not inside(char))
    elif len(sets) == 1:
        out = _squeezed(text, inside) if given.has("s") else text
    else:
        table = {} if others else dict(zip(first, second, strict=False))
        # GNU tr repeats the last character of a second set that is shorter than the first
        out = "".join(table.get(char, second[-1:]) if inside(char) else char for char in text)
        out = _squeezed(out, lambda char: char in second) if given.has("s") else out
    sh.write(derived(out, [stdin], sh.capturing or "tr", sh.where))
    return 0


def _characters(text: str) -> str | None:
    """The characters of one of tr's sets; None for a form that isn't read."""
    if re.search(r"\\[^abfnrtv\\0-7]|\[.\*\d*\]|\[=", text):
        return None
    text = ansi_c(text)
    for name, ranges in CLASSES.items():
        if f"[:{name}:]" in text:
            full = "".join(chr(c) for low, high in ranges for c in range(ord(low), ord(high) + 1))
            text = text.replace(f"[:{name}:]", "".join(sorted(full)))
    out, at = "", 0
    while at < len(text):
        if at + 2 < len(text) and text[at + 1] == "-":
            low, high = ord(text[at]), ord(text[at + 2])
            if not 0 <= high - low < 512:
                return None
            out += "".join(map(chr, range(low, high + 1)))
            at += 3
        else:
            out += text[at]
            at += 1
    return out


def _squeezed(text: str, inside: Callable[[str], bool]) -> str:
    return "".join(c for i, c in enumerate(text) if i == 0 or c != text[i - 1] or not inside(c))
