"""The operators of ``${name…}`` that change a value: cut, replace, case, substring."""

from __future__ import annotations

from trinity_compat.common.errors import Where
from trinity_compat.common.limits import Budget
from trinity_compat.launch.bash.quoted_defaults import DEFAULTS
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    TextPiece,
    Value,
    derived,
    doubt_in,
    is_uncounted,
    literal,
    open_source,
    slice_value,
    text_of,
    uncounted,
)
from trinity_compat.launch.bash.tree import Node, ParsedText
from trinity_compat.launch.bash.words import expansion
from trinity_compat.launch.bash.words.matching import Chars, Matcher, Sequence, glob, is_plain, mirrored
from trinity_compat.launch.bash.words.segments import Segs, value_of
from trinity_compat.launch.model import UnknownPiece


def apply(sh: Shell, unit: ParsedText, part: Node, value: Value) -> Value:
    """The value after the expansion's operator (not for the default operators)."""
    if part.get("Repl"):
        return _replace(sh, unit, part, value)
    operation = part.get("Exp")
    if not operation or operation["Op"] in DEFAULTS:
        return value
    operator = operation["Op"]
    if operator in ("#", "##", "%", "%%"):
        return _cut(sh, unit, part, value)
    if operator == "@":  # ${name@Q} and its like, which no known script uses
        return (TextPiece("", unit.where(part), UnknownPiece(unit.text(part), unit.where(part))),)
    pattern, given = expansion.expand_pattern(sh, unit, operation.get("Word"))
    text = change_case(text_of(value), operator, pattern, sh.budget)
    return derived(text, [value, given], unit.text(part), unit.where(part))


def change_case(text: str, operator: str, pattern: Chars, budget: Budget) -> str:
    """``^ ^^ , ,,``."""
    change = str.upper if operator[0] == "^" else str.lower
    if not pattern:
        return change(text) if len(operator) == 2 else change(text[:1]) + text[1:]
    sequence = glob(pattern)
    head = text if len(operator) == 2 else text[:1]
    changed = "".join(change(c) if Matcher(c, budget).whole(sequence) else c for c in head)
    return changed + text[len(head) :]


def _cut(sh: Shell, unit: ParsedText, part: Node, value: Value) -> Value:
    operator = part["Exp"]["Op"]
    pattern, given = expansion.expand_pattern(sh, unit, part["Exp"].get("Word"))
    text = text_of(value)
    if operator[0] == "#":
        at = prefix_end(text, pattern, longest=operator == "##", budget=sh.budget)
        kept = (at, len(text))
    else:
        at = len(text) - prefix_end(
            text[::-1], pattern, longest=operator == "%%", budget=sh.budget, reverse=True
        )
        kept = (0, at)
    if doubt_in([given]) is not None:
        return derived(text[slice(*kept)], [given], unit.text(part), unit.where(part))
    return cut_value(value, kept, unit.text(part), unit.where(part), sure=operator in ("##", "%"))


def cut_value(value: Value, kept: tuple[int, int], expression: str, where: Where, *, sure: bool) -> Value:
    """The part of a value that is kept, with its provenance where that is certain.

    Where a piece is unknown, the cut is certain only if it falls behind the last unknown piece and
    nothing before could move it (``sure``: ``##`` and ``%`` look for it from the end).
    """
    text = text_of(value)
    if doubt_in([value]) is None:
        if any(bit.source is not None for bit in value) and kept != (0, len(text)):
            return literal(text[kept[0] : kept[1]], where)
        return slice_value(value, *kept)
    at, last_open = 0, -1
    for bit in value:
        at += len(bit.text)
        if open_source(bit) is not None:
            last_open = at
    edge = kept[0] if kept[1] == len(text) and kept[0] else kept[1]
    if sure and edge > last_open and kept != (0, len(text)):
        return slice_value(value, *kept) if kept[0] == 0 else literal(text[kept[0] :], where)
    return derived(text[kept[0] : kept[1]], [value], expression, where)


def prefix_end(text: str, pattern: Chars, *, longest: bool, budget: Budget, reverse: bool = False) -> int:
    """Return the end of the prefix that matches; 0 when none does."""
    budget.step(1 + len(text) // 1000)
    if is_plain(pattern):
        plain = "".join(char for char, _ in pattern)
        return len(plain) if text.startswith(plain[::-1] if reverse else plain) else 0
    sequence = glob(pattern)
    ends = Matcher(text, budget).ends(mirrored(sequence) if reverse else sequence, {0})
    if not ends:
        return 0
    return max(ends) if longest else min(ends)


def _replace(sh: Shell, unit: ParsedText, part: Node, value: Value) -> Value:
    spec = _with_slash(part["Repl"])
    orig, everywhere, anchor = dict(spec.get("Orig") or {}), bool(spec.get("All")), ""
    parts = list(orig.get("Parts") or [])
    if parts and parts[0]["Type"] == "Lit" and parts[0]["Value"][:1] in "#%" and not everywhere:
        anchor = parts[0]["Value"][0]
        rest = parts[0]["Value"][1:]
        parts = [{**parts[0], "Value": rest}, *parts[1:]] if rest else parts[1:]
    pattern, given = expansion.expand_pattern(sh, unit, {**orig, "Parts": parts})
    new = expansion.expand_parts(sh, unit, (spec.get("With") or {}).get("Parts") or [], tilde="word")
    text = replace_matches(text_of(value), pattern, replacement_pieces(new), anchor, everywhere, sh.budget)
    if text == text_of(value) and doubt_in([value, given]) is None:
        return value
    return derived(text, [value, given, value_of(new)], unit.text(part), unit.where(part))


def _with_slash(spec: Node) -> Node:
    """``${name////_}``: the parser takes all of ``/_`` for the new text, for bash the pattern is a slash."""
    parts = list((spec.get("With") or {}).get("Parts") or [])
    if spec.get("Orig") or not spec.get("All") or not parts or not parts[0].get("Value", "").startswith("/"):
        return spec
    new = [{**parts[0], "Value": parts[0]["Value"][1:]}, *parts[1:]]
    return {
        **spec,
        "Orig": {**spec["With"], "Parts": [{**parts[0], "Value": "/"}]},
        "With": {**spec["With"], "Parts": new},
    }


def replacement_pieces(segs: Segs) -> list[str | None]:
    """The replacement text; None stands for ``&``, the text that matched (bash 5.2)."""
    out: list[str | None] = []
    for seg in segs:
        if seg.quoted:
            out.append(seg.text)
            continue
        for index, piece in enumerate(seg.text.split("&")):
            out += [None, piece] if index else [piece]
    return out


def replace_matches(
    text: str, pattern: Chars, new: list[str | None], anchor: str, everywhere: bool, budget: Budget
) -> str:
    """``${text/pattern/new}``: the leftmost longest match, or all, or at one end."""
    if not pattern:
        if anchor == "#":
            return _filled(new, "") + text
        return text + _filled(new, "") if anchor == "%" else text
    if is_plain(pattern) and not anchor:
        old = "".join(char for char, _ in pattern)
        count = -1 if everywhere else 1
        budget.make(len(text) + text.count(old) * len(_filled(new, old)))
        return text.replace(old, _filled(new, old), count)
    if not text and anchor != "%" and pattern[0] != ("*", False):
        return ""  # bash asks for the star before it matches anything against an empty value
    sequence = glob(pattern)
    if anchor:
        if anchor == "#":
            ends = Matcher(text, budget).ends(sequence, {0})
            return _filled(new, text[: max(ends)]) + text[max(ends) :] if ends else text
        ends = Matcher(text[::-1], budget).ends(mirrored(sequence), {0})
        at = len(text) - max(ends, default=0)
        return text[:at] + _filled(new, text[at:]) if ends else text
    return _scan(text, sequence, new, everywhere, budget)


def _filled(new: list[str | None], matched: str) -> str:
    return "".join(matched if piece is None else piece for piece in new)


def _scan(text: str, sequence: Sequence, new: list[str | None], everywhere: bool, budget: Budget) -> str:
    matcher = Matcher(text, budget)
    if not text:
        return _filled(new, "") if matcher.whole(sequence) else ""
    out, at = "", 0
    while at < len(text):
        end = max(matcher.ends(sequence, {at}), default=-1)
        if end < 0:
            out, at = out + text[at], at + 1
            continue
        out += _filled(new, text[at:end])
        budget.make(len(out) // 64)
        if not everywhere:
            return out + text[end:]
        # Where nothing was matched, bash puts the new text in front of the character and goes on behind it.
        out, at = (out + text[at], at + 1) if end == at else (out, end)
    return out


def _number(sh: Shell, unit: ParsedText, node: Node | None) -> tuple[int, list[Value]] | None:
    return expansion.evaluate_or_open(sh, unit, node) if node else None


def slice_text(sh: Shell, unit: ParsedText, part: Node, value: Value) -> Value:
    """``${name:offset:length}`` of a text."""
    text = text_of(value)
    offset = _number(sh, unit, part["Slice"].get("Offset")) or (0, [])
    length = _number(sh, unit, part["Slice"].get("Length"))
    start = offset[0] if offset[0] >= 0 else len(text) + offset[0]
    if start < 0 or start > len(text):
        return derived("", [value, *offset[1]], unit.text(part), unit.where(part))
    stop = len(text)
    if length is not None:
        stop = min(stop, start + length[0]) if length[0] >= 0 else len(text) + length[0]
    used = [value, *offset[1], *(length[1] if length else [])]
    if doubt_in(used) is None and not any(bit.source for bit in value):
        return slice_value(value, start, max(start, stop))
    return derived(text[start : max(start, stop)], used, unit.text(part), unit.where(part))


def slice_list(
    sh: Shell, unit: ParsedText, part: Node, values: list[Value], *, keep_zero: bool
) -> list[Value]:
    """``${@:offset:length}`` and ``${array[@]:offset:length}``.

    The elements in front of the first that may be any number of words are known, those behind it are not.
    """
    offset, of_offset = _number(sh, unit, part["Slice"].get("Offset")) or (0, [])
    length, of_length = _number(sh, unit, part["Slice"].get("Length")) or (None, [])
    pool = [sh.name, *values] if keep_zero else values
    start = offset if offset >= 0 else len(pool) + offset
    stop = len(pool) if length is None else start + length
    counted = next((at for at, value in enumerate(pool) if is_uncounted(value)), len(pool))
    opened = uncounted(unit.text(part), unit.where(part))
    if doubt_in([*of_offset, *of_length]) is not None:
        return [opened]
    if counted < len(pool) and (offset < 0 or stop > counted):
        return [*pool[start:counted], opened] if offset >= 0 else [opened]
    return pool[start : max(start, stop)] if start >= 0 else []
