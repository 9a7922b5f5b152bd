"""Text filters over known input: head, tail, tr, cut, sort, uniq, wc, rev, grep, sed, awk.

The common forms, computed; any other returns None and counts as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trinity_compat.launch import calculator, ere, streams
from trinity_compat.launch.matching import CLASSES, Chars, chars_of
from trinity_compat.launch.model import Open
from trinity_compat.launch.quoting import ansi_c
from trinity_compat.launch.state import Shell
from trinity_compat.launch.values import Value, derived, doubt_in, literal, slice_value, text_of

Args = list[Value]


def inputs(sh: Shell, files: Args) -> list[Value]:
    """The content of files, or stdin; what can't be read is open."""
    if not files:
        return [sh.stdin if sh.stdin is not None else (sh.unknown("stdin", sh.where),)]
    out: list[Value] = []
    for arg in files:
        if text_of(arg) == "-":
            out += inputs(sh, [])
            continue
        content = None if doubt_in([arg]) else sh.files.read(sh.files_path(arg))
        if content is None:
            sh.doubt = Open(text_of(arg), sh.where)
            content = (sh.unknown(f"cat {text_of(arg)}", sh.where),)
        out.append(content)
    return out


def _split_args(args: Args, with_value: str) -> tuple[dict[str, str], Args]:
    """Short options with their values, and the operands."""
    options: dict[str, str] = {}
    rest, operands = list(args), list[Value]()
    while rest:
        text = text_of(rest[0])
        arg = rest.pop(0)
        if text == "--":
            return options, operands + rest
        if not text.startswith("-") or text == "-":
            operands.append(arg)
            continue
        if text.startswith("--"):
            options[text] = ""
            continue
        body = text[1:]
        while body:
            letter, body = body[0], body[1:]
            if letter in with_value:
                options[letter] = body or (text_of(rest.pop(0)) if rest else "")
                break
            options[letter] = ""
    return options, operands


def _emit(sh: Shell, text: str, sources: list[Value], expression: str) -> None:
    sh.write(derived(text, sources, sh.capturing or expression, sh.where))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _head(sh: Shell, args: Args) -> int | None:
    return _ends(sh, args, "head")


def _tail(sh: Shell, args: Args) -> int | None:
    return _ends(sh, args, "tail")


def _ends(sh: Shell, args: Args, name: str) -> int | None:
    options, files = _split_args(args, "nc")
    unit = "c" if "c" in options else "n"
    count = options.get(unit, "10")
    digits = "".join(key for key in options if key.isdigit())
    count = digits or count
    if not re.fullmatch(r"[-+]?\d{1,9}", count) or set(options) - {"n", "c", "q", *digits}:
        return None
    values = inputs(sh, files)
    value = tuple(bit for one in values for bit in one)
    text = text_of(value)
    items = list(text) if unit == "c" else re.findall(r"[^\n]*\n|[^\n]+", text)
    number = int(count)
    if name == "head":
        chosen = items[:number]
        sh.write(slice_value(value, 0, len("".join(chosen))))
        return 0
    chosen = items[number - 1 :] if count[0] == "+" else items[-abs(number) :] if number else []
    sh.write(slice_value(value, len(text) - len("".join(chosen)), len(text)))
    return 0


def _char_set(text: str) -> str | None:
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


def _tr(sh: Shell, args: Args) -> int | None:
    options, operands = _split_args(args, "")
    sets = [_char_set(text_of(arg)) for arg in operands]
    if set(options) - {"d", "s", "c", "C"} or None in sets or not 1 <= len(sets) <= 2:
        return None
    first, second = sets[0] or "", (sets[1] if len(sets) == 2 else "") or ""
    values = inputs(sh, [])
    text = text_of(values[0])
    inside = (lambda c: c not in first) if {"c", "C"} & set(options) else (lambda c: c in first)
    if "d" in options:
        out = "".join(c for c in text if not inside(c))
    elif len(sets) == 1:
        out = _squeezed(text, first if not {"c", "C"} & set(options) else None)
    else:
        second = second + second[-1:] * max(0, len(first) - len(second))
        last = second[-1:]
        table = dict(zip(first, second, strict=False))
        out = "".join(
            (last if {"c", "C"} & set(options) else table.get(c, last)) if inside(c) else c for c in text
        )
        out = _squeezed(out, second) if "s" in options else out
    _emit(sh, out, values, "tr")
    return 0


def _squeezed(text: str, members: str | None) -> str:
    return "".join(
        c
        for i, c in enumerate(text)
        if i == 0 or c != text[i - 1] or (members is not None and c not in members)
    )


def _cut(sh: Shell, args: Args) -> int | None:
    options, files = _split_args(args, "dfcb")
    spec = options.get("f") or options.get("c") or options.get("b") or ""
    if not re.fullmatch(r"[\d,-]+", spec) or set(options) - set("dfcbs"):
        return None
    delimiter = options.get("d", "\t")
    values = inputs(sh, files)
    out = ""
    for line in _lines("".join(text_of(v) for v in values)):
        if "f" not in options:
            out += "".join(_chosen(list(line), spec)) + "\n"
        elif delimiter and delimiter in line:
            out += delimiter.join(_chosen(line.split(delimiter), spec)) + "\n"
        elif "s" not in options:
            out += line + "\n"
    _emit(sh, out, values, "cut")
    return 0


def _chosen(items: list[str], spec: str) -> list[str]:
    keep: set[int] = set()
    for piece in spec.split(","):
        low, dash, high = piece.partition("-")
        start = int(low or 1)
        stop = int(high or len(items)) if dash else start
        keep |= set(range(start, min(stop, len(items)) + 1))
    return [item for i, item in enumerate(items, 1) if i in keep]


def _wc(sh: Shell, args: Args) -> int | None:
    options, files = _split_args(args, "")
    if len(options) != 1 or len(files) > 1:
        return None
    values = inputs(sh, files)
    text = "".join(text_of(v) for v in values)
    counts = {
        "l": text.count("\n"),
        "w": len(text.split()),
        "c": len(text.encode(errors="surrogateescape")),
        "m": len(text),
    }
    kind = next(iter(options))
    if kind not in counts:
        return None
    name = f" {text_of(files[0])}" if files else ""
    _emit(sh, f"{counts[kind]}{name}\n", values, "wc")
    return 0


def _sort(sh: Shell, args: Args) -> int | None:
    options, files = _split_args(args, "kt")
    if set(options) - set("nru"):
        return None
    values = inputs(sh, files)
    lines = _lines("".join(text_of(v) for v in values))
    numeric = "n" in options
    lines.sort(key=lambda line: (_leading_number(line) if numeric else 0, line), reverse="r" in options)
    if "u" in options:
        lines = list(dict.fromkeys(lines))
    _emit(sh, "".join(line + "\n" for line in lines), values, "sort")
    return 0


def _leading_number(line: str) -> float:
    match = re.match(r"\s*(-?\d{1,30}(\.\d{1,30})?)", line)
    return float(match[1]) if match else 0.0


def _uniq(sh: Shell, args: Args) -> int | None:
    if args:
        return None
    values = inputs(sh, [])
    lines = _lines(text_of(values[0]))
    kept = [line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1]]
    _emit(sh, "".join(line + "\n" for line in kept), values, "uniq")
    return 0


def _rev(sh: Shell, args: Args) -> int | None:
    values = inputs(sh, args)
    lines = _lines("".join(text_of(v) for v in values))
    _emit(sh, "".join(line[::-1] + "\n" for line in lines), values, "rev")
    return 0


def _nl_free(sh: Shell, args: Args) -> int | None:
    """``paste -sd,``."""
    options, files = _split_args(args, "d")
    if "s" not in options:
        return None
    values = inputs(sh, files)
    joined = (options.get("d", "\t") or "\t")[0].join(_lines("".join(text_of(v) for v in values)))
    _emit(sh, joined + "\n", values, "paste")
    return 0


def _grep(sh: Shell, args: Args) -> int | None:
    options, operands = _split_args(args, "em")
    if set(options) - set("qivcoExFewm") or (not operands and "e" not in options):
        return None
    pattern = options.get("e") or text_of(operands.pop(0))
    if len(operands) > 1:
        return None
    values = inputs(sh, operands)
    try:
        hits = _grep_hits(sh, "".join(text_of(v) for v in values), pattern, options)
    except ere.BadExpression:
        return None
    sh.doubt = sh.doubt or doubt_in([*values, *args])
    if "c" in options:
        _emit(sh, f"{len(hits)}\n", values, "grep")
    elif "q" not in options:
        _emit(sh, "".join(hit + "\n" for hit in hits), values, "grep")
    return 0 if hits else 1


def _grep_hits(sh: Shell, text: str, pattern: str, options: dict[str, str]) -> list[str]:
    if "F" in options:
        chars: Chars = chars_of(pattern, quoted=True)
    else:
        chars = chars_of(pattern if "E" in options else ere.from_basic(pattern))
    if "x" in options:
        chars = [("^", False), ("(", False), *chars, (")", False), ("$", False)]
    if "w" in options:
        raise ere.BadExpression("-w")
    hits: list[str] = []
    for line in _lines(text):
        found = ere.search(chars, line, sh.budget, fold="i" in options)
        if (found is not None) != ("v" in options):
            hits.append(found[0] if "o" in options and found else line)
    return hits[: int(options["m"])] if options.get("m", "").isdigit() else hits


def _sed(sh: Shell, args: Args) -> int | None:
    options, operands = _split_args(args, "e")
    if set(options) - set("eErn") or (not operands and "e" not in options):
        return None
    script = options.get("e") or text_of(operands.pop(0))
    values = inputs(sh, operands)
    try:
        extended = bool({"E", "r"} & set(options))
        text = streams.sed("".join(text_of(v) for v in values), script, sh.budget, extended, "n" in options)
    except ere.BadExpression:
        text = None
    if text is None:
        return None
    _emit(sh, text, values, "sed")
    return 0


def _awk(sh: Shell, args: Args) -> int | None:
    options, operands = _split_args(args, "Fv")
    if set(options) - {"F"} or not operands:
        return None
    if (constant := calculator.awk(text_of(operands[0]))) is not None:
        _emit(sh, constant, operands, "awk")
        return 0
    values = inputs(sh, operands[1:])
    text = streams.awk("".join(text_of(v) for v in values), text_of(operands[0]), options.get("F"))
    if text is None:
        return None
    _emit(sh, text, values, "awk")
    return 0


def _bc(sh: Shell, args: Args) -> int | None:
    options, files = _split_args(args, "")
    if files or set(options) - {"l", "q"}:
        return None
    values = inputs(sh, [])
    text = calculator.bc(text_of(values[0]), library="l" in options)
    if text is None:
        return None
    _emit(sh, text, values, "bc")
    return 0


TABLE: dict[str, Callable[[Shell, Args], int | None]] = {
    "head": _head,
    "tail": _tail,
    "tr": _tr,
    "cut": _cut,
    "wc": _wc,
    "sort": _sort,
    "uniq": _uniq,
    "rev": _rev,
    "paste": _nl_free,
    "grep": _grep,
    "egrep": lambda sh, args: _grep(sh, [*_option("-E", args), *args]),
    "fgrep": lambda sh, args: _grep(sh, [*_option("-F", args), *args]),
    "sed": _sed,
    "awk": _awk,
    "bc": _bc,
}


def _option(text: str, args: Args) -> Args:
    return [literal(text, args[0][0].where)] if args and args[0] else []
