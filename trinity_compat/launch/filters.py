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
from trinity_compat.launch.regex_text import chars_of_text
from trinity_compat.launch.state import Shell
from trinity_compat.launch.values import Value, derived, doubt_in, lines_of, literal, slice_value, text_of

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
    """Short options with their values, and the operands. A script or pattern (``-e``) in several pieces is
    one of several lines."""
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
                value = body or (text_of(rest.pop(0)) if rest else "")
                again = letter == "e" and letter in options
                options[letter] = f"{options[letter]}\n{value}" if again else value
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
    old = re.fullmatch(r"-(\d{1,9})", text_of(args[0])) if args else None  # head -20
    if old:
        options, files = _split_args(args[1:], "nc")
        unit, count = "n", old[1]
    if not re.fullmatch(r"[-+]?\d{1,9}", count) or set(options) - {"n", "c", "q"}:
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


def _tr(sh: Shell, args: Args) -> int | None:
    options, operands = _split_args(args, "")
    sets = [_char_set(text_of(arg)) for arg in operands]
    if set(options) - {"d", "s", "c", "C"} or None in sets or not 1 <= len(sets) <= 2:
        return None
    first, second = sets[0] or "", (sets[1] if len(sets) == 2 else "") or ""
    if {"d", "s"} <= set(options):
        return None
    values = inputs(sh, [])
    text = text_of(values[0])
    inside = (lambda c: c not in first) if {"c", "C"} & set(options) else (lambda c: c in first)
    if "d" in options:
        out = "".join(c for c in text if not inside(c))
    elif len(sets) == 1:
        out = _squeezed(text, inside)
    else:
        second = second + second[-1:] * max(0, len(first) - len(second))
        last = second[-1:]
        table = dict(zip(first, second, strict=False))
        out = "".join(
            (last if {"c", "C"} & set(options) else table.get(c, last)) if inside(c) else c for c in text
        )
        out = _squeezed(out, lambda c: c in second) if "s" in options else out
    _emit(sh, out, values, "tr")
    return 0


def _squeezed(text: str, inside: Callable[[str], bool]) -> str:
    return "".join(c for i, c in enumerate(text) if i == 0 or c != text[i - 1] or not inside(c))


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
    if set(options) - {"d"} != {"s"} or len(options.get("d", "\t")) > 1 or len(files) > 1:
        return None
    values = inputs(sh, files)
    joined = options.get("d", "\t").join(_lines("".join(text_of(v) for v in values)))
    _emit(sh, joined + "\n", values, "paste")
    return 0


def _grep(sh: Shell, args: Args) -> int | None:
    options, operands = _split_args(args, "em")
    if set(options) - set("qivcoExFewm") or (not operands and "e" not in options):
        return None
    pattern = options["e"] if "e" in options else text_of(operands.pop(0))
    if len(operands) > 1:
        return None
    values = inputs(sh, operands)
    try:
        hits, count = _grep_hits(sh, "".join(text_of(v) for v in values), pattern, options)
    except ere.BadExpression:
        return None
    sh.doubt = sh.doubt or doubt_in([*values, *args])
    if "c" in options and "q" not in options:
        _emit(sh, f"{count}\n", [*values, *args], "grep")
    elif "q" not in options:
        _emit(sh, "".join(hit + "\n" for hit in hits), [*values, *args], "grep")
    return 0 if count else 1


def _grep_hits(sh: Shell, text: str, pattern: str, options: dict[str, str]) -> tuple[list[str], int]:
    """What grep prints, and how many lines fit."""
    if "w" in options or ("m" in options and not options["m"].isdigit()):
        raise ere.Unread("-w")
    chars, fold = _grep_pattern(pattern, options), "i" in options
    hits: list[str] = []
    count, most = 0, int(options.get("m", "-1")[:9])
    for line in _lines(text):
        if count == most:
            break
        found = ere.search(chars, line, sh.budget, fold=fold)
        if (found is not None) != ("v" in options):
            count += 1
            hits += [line] if "o" not in options else _pieces(sh, chars, line, fold) if found else []
    return hits, count


def _grep_pattern(pattern: str, options: dict[str, str]) -> Chars:
    """One expression for all lines of a pattern: any of them may fit."""
    chars: Chars = []
    for one in pattern.split("\n"):
        own = chars_of(one, quoted=True) if "F" in options else chars_of_text(one, basic="E" not in options)
        chars += [*([("|", False)] if chars else []), *own]
    if "x" in options:
        return [("^", False), ("(", False), *chars, (")", False), ("$", False)]
    return chars


def _pieces(sh: Shell, chars: Chars, line: str, fold: bool) -> list[str]:
    """``grep -o``: every match of a line but the empty ones."""
    out: list[str] = []
    at = 0
    while found := ere.find(chars, line, sh.budget, fold=fold, begin=at):
        start, (text, *_) = found
        out += [text] if text else []
        at = start + max(1, len(text))
    return out


IN_PLACE = re.compile(r"(-[nErsuz]*)i(.*)|--in-place(?:=(.*))?", re.S)


def _sed(sh: Shell, args: Args) -> int | None:
    place = next((match for arg in args if (match := IN_PLACE.fullmatch(text_of(arg)))), None)
    if place is not None:
        return _sed_in_place(sh, [arg for arg in args if text_of(arg) != place[0]], place)
    options, operands = _split_args(args, "e")
    if set(options) - set("eErn") or (not operands and "e" not in options):
        return None
    values = inputs(sh, operands if "e" in options else operands[1:])
    text = _sed_text(sh, "".join(text_of(v) for v in values), options, operands)
    if text is None or doubt_in(args):
        return None
    _emit(sh, text, values, "sed")
    return 0


def _sed_text(sh: Shell, text: str, options: dict[str, str], operands: Args) -> str | None:
    """What sed makes of a text; None where its script isn't followed."""
    script = options["e"] if "e" in options else text_of(operands[0])
    try:
        return streams.sed(text, script, sh.budget, bool({"E", "r"} & set(options)), "n" in options)
    except ere.BadExpression:
        return None


def _sed_in_place(sh: Shell, args: Args, place: re.Match[str]) -> int | None:
    """``sed -i``: the files have other content from here on, unknown where the script isn't followed."""
    given = [literal(place[1], sh.where)] if len(place[1] or "") > 1 else []
    options, operands = _split_args([*given, *args], "e")
    fits = not set(options) - set("eErn") and not doubt_in(args)
    for file in operands if "e" in options else operands[1:]:
        path = sh.files_path(file)
        before = None if doubt_in([file]) else sh.files.read(path)
        if not before:
            continue
        known = fits and not doubt_in([before])
        text = _sed_text(sh, text_of(before), options, operands) if known else None
        suffix = place[2] or place[3]
        if suffix:
            sh.files.write(path + suffix if "*" not in suffix else path + "~", before, append=False)
        after = (
            (sh.unknown(f"sed -i {text_of(file)}", sh.where),)
            if text is None
            else lines_of(text, before[0].where)
        )
        sh.files.write(path, after, append=False)
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


def _known(tool: Callable[[Shell, Args], int | None]) -> Callable[[Shell, Args], int | None]:
    """A filter that can't say anything where an argument isn't settled."""
    return lambda sh, args: None if sh.vanished or doubt_in(args) else tool(sh, args)


TABLE: dict[str, Callable[[Shell, Args], int | None]] = {
    "head": _known(_head),
    "tail": _known(_tail),
    "tr": _known(_tr),
    "cut": _known(_cut),
    "wc": _known(_wc),
    "sort": _known(_sort),
    "uniq": _known(_uniq),
    "rev": _known(_rev),
    "paste": _known(_nl_free),
    "grep": _grep,
    "egrep": lambda sh, args: _grep(sh, [*_option("-E", args), *args]),
    "fgrep": lambda sh, args: _grep(sh, [*_option("-F", args), *args]),
    "sed": _sed,
    "awk": _known(_awk),
    "bc": _known(_bc),
}


def _option(text: str, args: Args) -> Args:
    return [literal(text, args[0][0].where)] if args and args[0] else []
