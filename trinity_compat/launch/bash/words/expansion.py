"""Expansion of words: quotes, parameters, substitutions, braces, tildes, splitting, globbing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.quoted_defaults import unmasked
from trinity_compat.launch.bash.state import Discard, Shell
from trinity_compat.launch.bash.traced_text import (
    TextPiece,
    Value,
    derived,
    doubt_in,
    lines_of,
    literal,
    named,
    open_source,
    strip_newlines,
    text_of,
)
from trinity_compat.launch.bash.tree import Node, ParsedText
from trinity_compat.launch.bash.words import braces, globbing, lookup
from trinity_compat.launch.bash.words.arithmetic import BadArithmetic
from trinity_compat.launch.bash.words.matching import Chars, chars_of
from trinity_compat.launch.bash.words.quoting import ansi_c, double_quoted
from trinity_compat.launch.bash.words.segments import (
    Segment,
    Segs,
    field_value,
    segs_of,
    split_fields,
    value_of,
)
from trinity_compat.launch.entrypoints import OVERRIDE
from trinity_compat.launch.model import UnknownPiece

ASSIGNED = re.compile(r"[A-Za-z_]\w*=")


def expand_words(sh: Shell, unit: ParsedText, nodes: Iterable[Node]) -> list[Value]:
    """The fields that a list of words becomes, as arguments of a command."""
    fields: list[Value] = []
    for node in nodes:
        _note_joined_lines(sh, unit, node)
        for parts in braces.expand(node.get("Parts") or [], sh.budget):
            fields += _fields_of_word(sh, unit, parts, unit.where(node))
            sh.budget.fields(len(fields))
    return fields


_JOINED = re.compile(
    rb"(?<=[^\s\\])\\\n(?=\d+[<>]|\"?\$[@*]"
    rb"|(?<![/=,:.\[({_-]\\\n)(?:\"?\$[\{A-Za-z_]|~\w|--?[A-Za-z]|#)|(?:%s))" % OVERRIDE.pattern.encode()
)


def _note_joined_lines(sh: Shell, unit: ParsedText, node: Node) -> None:
    """Warn of a backslash without a blank before it where the next line seems to be another argument."""
    start, end = node["Pos"]["Offset"], node["End"]["Offset"]
    if unit.source.find(b"\\\n", start, end) < 0:
        return
    for found in _JOINED.finditer(unit.source, start):
        at = found.start()
        quoted = (part for part in node.get("Parts") or [] if part["Type"] != "Lit")
        if at >= end or any(part["Pos"]["Offset"] < at < part["End"]["Offset"] for part in quoted):
            break
        word = unit.slice(start, end).replace("\\\n", "")
        message = "no blank stands before the backslash: bash joins this line and the next to one word"
        sh.warn("TP007", f"{message}, {word}", unit.line(unit.source.count(b"\n", 0, at) + 1))


def _fields_of_word(sh: Shell, unit: ParsedText, parts: list[Node], where: Where) -> list[Value]:
    text = parts[0]["Value"] if len(parts) == 1 and parts[0]["Type"] == "Lit" and not unit.holes else None
    if text is not None and not any(char in text for char in "\\~*?[{"):
        return [(TextPiece(text, where),)]
    segs = expand_parts(sh, unit, parts, tilde="word")
    fields = split_fields(segs, lookup.ifs_of(sh))
    sources = (seg.source for seg in segs if seg.source is not None)
    if not fields and (source := next(sources, None)) is not None:
        sh.vanished = source
        sh.warn("TP105", f"{named(source)} is not set; unquoted, it becomes no argument at all", where)
    out: list[Value] = []
    for field in fields:
        paths = globbing.expand(sh, field)
        out += [field_value(field, where)] if paths is None else paths
    return out


def expand_single(sh: Shell, unit: ParsedText, node: Node | None, *, tilde: str = "") -> Value:
    """A word as one value, neither split nor globbed: assignments, redirections, ``case``."""
    if not node:
        return ()
    return value_of(expand_parts(sh, unit, node.get("Parts") or [], tilde=tilde))


def expand_pattern(sh: Shell, unit: ParsedText, node: Node | None) -> tuple[Chars, Value]:
    """A word as pattern characters, and its value; what was quoted stands for itself."""
    chars: Chars = []
    segs = expand_parts(sh, unit, node.get("Parts") or [], tilde="word") if node else []
    for seg in segs:
        if seg.own and not seg.quoted:
            chars += [(char, False) for char in seg.text]
        else:
            chars += chars_of(seg.text, quoted=seg.quoted)
    sh.budget.make(len(chars))
    return chars, value_of(segs)


def expand_expression(sh: Shell, unit: ParsedText, node: Node) -> Chars:
    """A word as a regular expression's characters, each with whether it was quoted."""
    segs = expand_parts(sh, unit, node.get("Parts") or [])
    sh.budget.make(sum(len(seg.text) for seg in segs))
    return [(char, seg.quoted) for seg in segs for char in seg.text]


def expand_parts(
    sh: Shell,
    unit: ParsedText,
    parts: list[Node],
    *,
    quoted: bool = False,
    tilde: str = "",
    heredoc: bool = False,
    braced: bool = False,
) -> Segs:
    """The pieces of a word.

    ``tilde`` is "word", "assign" (after each colon too) or empty; ``braced`` is for the word of
    ``${name:-word}`` in double quotes.
    """
    segs: Segs = []
    for index, part in enumerate(parts):
        kind = part["Type"]
        where = unit.where(part)
        if kind == "Lit":
            if quoted:
                text = unmasked(double_quoted(part["Value"], heredoc=heredoc, braced=braced))
                segs += segs_of(_filled(unit, text, where), quoted=True, where=where, own=True)
            else:
                last = index == len(parts) - 1
                segs += _literal(sh, unit, part["Value"], where, tilde if index == 0 else "", last)
        elif kind == "SglQuoted" and quoted and not part.get("Dollar"):
            # double-quoted text for bash; the parser couldn't be given it as such
            segs.append(Segment("", where, UnknownPiece(unit.text(part), where), quoted=True))
        elif kind == "SglQuoted":
            text = part.get("Value", "")
            text = ansi_c(text) if part.get("Dollar") else text
            segs += segs_of(_filled(unit, text, where), quoted=True, where=where, own=True)
        elif kind == "DblQuoted":
            inner = part.get("Parts") or []
            inside = expand_parts(sh, unit, inner, quoted=True, braced=braced)
            if not inside and not any(map(is_list, inner)):
                inside = [Segment("", where, quoted=True, own=True)]
            segs += inside
        else:
            segs += _expansion(sh, unit, part, quoted)
    return segs


def _filled(unit: ParsedText, text: str, where: Where) -> Value:
    """A literal text; the holes of a text that was made by ``eval`` get their pieces back."""
    if not unit.holes or not any(char in unit.holes for char in text):
        return lines_of(text, where)
    out: list[TextPiece] = []
    run = ""
    for char in text:
        if char in unit.holes:
            out += lines_of(run, where)
            hole = unit.holes[char]
            out.append(hole if hole.source is not None else TextPiece(hole.text, where))
            run = ""
        else:
            run += char
    return (*out, *lines_of(run, where))


def _literal(sh: Shell, unit: ParsedText, text: str, where: Where, tilde: str, last: bool) -> Segs:
    """An unquoted literal: a backslash quotes the next character, ``~`` is HOME."""
    segs: Segs = []
    if tilde and "~" in text:
        assigned = ASSIGNED.match(text) if tilde == "word" else None
        if assigned:  # bash expands name=~/x as it does in an assignment
            segs.append(Segment(assigned[0], where, own=True))
            text, tilde = text[assigned.end() :], "assign"
        head, text = _tilde(sh, text, where, last)
        segs += head
    if "\\" in text:
        segs += _with_backslashes(unit, text, where)
    elif text:
        segs += segs_of(_filled(unit, text, where), quoted=False, where=where, own=True)
    if tilde == "assign" and ":~" in text:
        segs = [new for seg in segs for new in _later_tildes(sh, seg)]
    return segs


def _with_backslashes(unit: ParsedText, text: str, where: Where) -> Segs:
    segs: Segs = []
    at = 0
    while at < len(text):
        stop = text.find("\\", at)
        stop = len(text) if stop < 0 else stop
        if stop > at:
            segs += segs_of(_filled(unit, text[at:stop], where), quoted=False, where=where, own=True)
        if stop + 1 < len(text) and text[stop + 1] != "\n":
            segs += segs_of(_filled(unit, text[stop + 1], where), quoted=True, where=where, own=True)
        elif stop + 1 == len(text):
            segs.append(Segment("\\", where, quoted=True, own=True))
        at = stop + 2
    return segs


def _tilde(sh: Shell, text: str, where: Where, last: bool) -> tuple[Segs, str]:
    if not text.startswith("~"):
        return [], text
    user, slash, rest = text[1:].partition("/")
    if not slash and not last and user == "":
        return [], text
    home: Value | None = None
    if user == "":
        home = lookup.lookup(sh, "HOME", where)
    elif user in ("+", "-"):
        home = sh.cwd if user == "+" else sh.scalar("OLDPWD")
    elif user.isidentifier():
        home = (
            (TextPiece("", where, UnknownPiece(f"~{user}", where)),)
            if user != "root"
            else literal("/root", where)
        )
    if home is None:
        return [], text
    segs = [Segment(bit.text, where, bit.source, quoted=True, own=True) for bit in home]
    return segs, slash + rest


def _later_tildes(sh: Shell, seg: Segment) -> Segs:
    if seg.quoted or ":~" not in seg.text:
        return [seg]
    out: Segs = []
    for index, piece in enumerate(seg.text.split(":")):
        colon = ":" if index else ""
        head, rest = _tilde(sh, piece, seg.where, True) if index else ([], piece)
        out += [Segment(colon, seg.where, own=True), *head, Segment(rest, seg.where, own=True)]
    return out


def is_list(part: Node) -> bool:
    """Return whether a part is ``$@`` or ``${a[@]}``, which may become no field at all."""
    if part["Type"] != "ParamExp" or part.get("Length"):
        return False
    return at_sign(part) in ("@", "*")


def at_sign(part: Node) -> str:
    """``@`` or ``*`` where a part is a list with that mark, else empty."""
    name = part["Param"]["Value"] if "Param" in part else ""
    if name in ("@", "*"):
        return str(name)
    parts = (part.get("Index") or {}).get("Parts") or []
    if len(parts) == 1 and parts[0].get("Value") in ("@", "*"):
        return str(parts[0]["Value"])
    if part.get("Names"):
        return str(part["Names"]).strip()[-1]
    return ""


def _expansion(sh: Shell, unit: ParsedText, part: Node, quoted: bool) -> Segs:
    kind = part["Type"]
    where = unit.where(part)
    sh.budget.step()
    if kind == "ParamExp":
        return sh.expand_parameter(sh, unit, part, quoted)
    if kind == "CmdSubst":
        return segs_of(command_output(sh, unit, part), quoted=quoted, where=where)
    if kind == "ArithmExp":
        value = arithmetic_value(sh, unit, part, unit.text(part))
        return segs_of(value, quoted=quoted, where=where)
    if kind == "ProcSubst":
        # the path from which the output of <(…) can be read; that of >(…) is only written to
        path = f"/dev/fd/{63 - sum(name.startswith('/dev/fd/') for name in sh.files.written)}"
        if part["Op"] == "<(":
            sh.files.written[path] = process_output(sh, unit, part)
        return [Segment(path, where, quoted=True)]
    if kind == "ExtGlob":
        # `@(a|b)`. The parser leaves its words as text, so that what is expanded in them isn't known.
        text = part["Op"] + part["Pattern"]["Value"] + ")"
        if any(char in text for char in "$`'\""):
            sh.warn("TP109", f"an expansion or a quote within {text} is not read", where)
            return [Segment("", where, UnknownPiece(text, where), quoted=True)]
        return _with_backslashes(unit, text, where)
    return [Segment(unit.text(part), where, UnknownPiece(unit.text(part), where), quoted=True)]


def process_output(sh: Shell, unit: ParsedText, part: Node) -> Value:
    """The output of ``<(…)``, which runs in a subshell."""
    shell = sh.copy()
    shell.stdout, shell.capturing = [], sh.capturing or unit.text(part)
    with sh.nested():
        sh.run(shell, part.get("Stmts") or [])
    return tuple(shell.stdout)


def command_output(sh: Shell, unit: ParsedText, part: Node) -> Value:
    """``$(…)``: the output of its commands, in a subshell."""
    shell = sh.copy()
    shell.stdout = []
    shell.capturing = sh.capturing or unit.text(part)
    shell.doubt = None
    if "inherit_errexit" not in sh.options:  # bash doesn't hand set -e on
        shell.options.discard("e")
    with sh.nested():
        shell.depth = sh.depth
        sh.status = sh.substitution_status = sh.run(shell, part.get("Stmts") or [])
    sh.doubt = sh.doubt_before = shell.doubt
    return strip_newlines(tuple(replace(bit, text=bit.text.replace("\0", "")) for bit in shell.stdout))


def arithmetic_text(sh: Shell, unit: ParsedText, node: Node) -> tuple[str, list[Value]]:
    """An expression as bash sees it: its text with every ``$…`` and quote expanded, and their values."""
    pieces: list[tuple[int, int, Value]] = []
    if node.get("Type") == "Word":  # of `let`, which takes the quotes off
        value = expand_single(sh, unit, node)
        return text_of(value), [value]
    _find_expansions(sh, unit, node, pieces)
    start, end = node["Pos"]["Offset"], node["End"]["Offset"]
    text = ""
    at = start
    for low, high, value in sorted(pieces, key=lambda p: p[0]):
        text += unit.slice(at, low) + text_of(value)
        at = high
    return text + unit.slice(at, end), [value for _, _, value in pieces]


def _find_expansions(sh: Shell, unit: ParsedText, node: object, out: list[tuple[int, int, Value]]) -> None:
    if isinstance(node, list):
        for item in node:
            _find_expansions(sh, unit, item, out)
    elif isinstance(node, dict):
        if "Offset" in node:
            return
        if node.get("Type") in ("ParamExp", "CmdSubst", "ArithmExp", "SglQuoted", "DblQuoted"):
            start = node["Pos"]["Offset"]
            if unit.source[start : start + 1] in (b"$", b"`", b"'", b'"'):
                value = value_of(expand_parts(sh, unit, [node], quoted=node["Type"] != "DblQuoted"))
                out.append((start, node["End"]["Offset"], value))
                return
        for child in node.values():
            if isinstance(child, (dict, list)):
                _find_expansions(sh, unit, child, out)


def evaluate(sh: Shell, unit: ParsedText, node: Node) -> tuple[int, list[Value]]:
    """The number of an arithmetic node, and the values that it depends on. May raise BadArithmetic."""
    text, used = arithmetic_text(sh, unit, node)
    return lookup.evaluate_text(sh, text, used, unit.where(node))


def evaluate_or_open(sh: Shell, unit: ParsedText, node: Node) -> tuple[int, list[Value]]:
    """`evaluate`; 0 for what bash refuses, with its message where nothing in it is open."""
    used: list[Value] = []
    try:
        text, used = arithmetic_text(sh, unit, node)
        return lookup.evaluate_text(sh, text, used, unit.where(node))
    except BadArithmetic as error:
        if doubt_in(used) is None:
            sh.warn("TP108", f"{unit.text(node)}: {error}", unit.where(node), "error")
        return 0, used


def arithmetic_value(sh: Shell, unit: ParsedText, part: Node, shown: str) -> Value:
    """``$((…))`` as a value; what bash would refuse stays open."""
    where = unit.where(part)
    node = part.get("X")
    if not node:
        return literal("0", where)
    used: list[Value] = []
    try:
        text, used = arithmetic_text(sh, unit, node)
        number, used = lookup.evaluate_text(sh, text, used, where)
    except BadArithmetic as error:
        if not any(open_source(bit) for value in used for bit in value):
            sh.warn("TP108", f"{shown}: {error}", where, "error")
            raise Discard from None
        return (TextPiece("", where, UnknownPiece(shown, where)),)
    return derived(str(number), used, shown, where)
