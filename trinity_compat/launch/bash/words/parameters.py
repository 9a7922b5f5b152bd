"""``$name`` and ``${name…}``: which value it is, and what its operator makes of it."""

from __future__ import annotations

from dataclasses import replace

from trinity_compat.common.errors import Where
from trinity_compat.common.suggestions import nearest
from trinity_compat.launch.bash.quoted_defaults import DEFAULTS
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    EMPTY,
    Value,
    derived,
    doubt_in,
    is_uncounted,
    literal,
    open_source,
    parts_of,
    text_of,
    uncounted,
)
from trinity_compat.launch.bash.tree import Node, ParsedText
from trinity_compat.launch.bash.words import expansion, lookup, operators
from trinity_compat.launch.bash.words.segments import Segment, Segs, segs_of, value_of
from trinity_compat.launch.model import EnvRef, UnknownPiece
from trinity_compat.launch.unset_variables import is_always_set


def table_key(sh: Shell, unit: ParsedText, index: Node) -> tuple[str, list[Value]]:
    """The key of an element of an associative array, and the values on which it depends."""
    # one that is written out is taken from the source: the parser may have been given another text
    parts = index.get("Parts") or []
    if index.get("Type") != "Word" or all(p["Type"] == "Lit" and "\\" not in p["Value"] for p in parts):
        return unit.text(index), []
    value = expansion.expand_single(sh, unit, index)
    return text_of(value), [value]


def index_key(sh: Shell, unit: ParsedText, name: str, index: Node) -> lookup.Key:
    """The key of ``name[index]``, from the tree."""
    variable = sh.variables.get(name)
    if variable is not None and variable.is_table:
        return table_key(sh, unit, index)
    return expansion.evaluate_or_open(sh, unit, index)


def expand(sh: Shell, unit: ParsedText, part: Node, quoted: bool) -> Segs:
    """The pieces that a parameter expansion becomes."""
    where = unit.where(part)
    if "Param" not in part:
        return [Segment("", where, UnknownPiece(unit.text(part), where), quoted)]
    mark = expansion.at_sign(part)
    if part.get("Excl"):
        return _indirect(sh, unit, part, quoted, mark)
    name = part["Param"]["Value"]
    if mark:
        of_script = name in ("@", "*")
        if of_script:
            sh.note_arguments(sh.positional)
        values = sh.positional if of_script else list(lookup.elements(sh, name, where).values())
        # arrays can't come through the environment, so an unset one is empty
        if (
            part.get("Index")
            and sh.variables.get(name) is None
            and len(values) == 1
            and values[0] != ()
            and values[0][0].source is not None
        ):
            values = []
            _warn_of_array(sh, part, name, where)
        return _expand_list(sh, unit, part, quoted, mark, list(values))
    return _expand_scalar(sh, unit, part, quoted, name, _one(sh, unit, part, name, where))


def _warn_of_array(sh: Shell, part: Node, name: str, where: Where) -> None:
    """An array that was never assigned; one that may be missing is written ``${name[@]+…}``."""
    if name in sh.touched or part.get("Length") or (part.get("Exp") or {}).get("Op") in DEFAULTS:
        return
    near = nearest(name, (known for known, variable in sh.variables.items() if variable.array is not None))
    meant = f" (did you mean {near[0]}?)" if near else ""
    sh.warn("TP119", f"no array {name} is set: ${{{name}[@]}} is empty{meant}", where)


def _one(sh: Shell, unit: ParsedText, part: Node, name: str, where: Where) -> Value | None:
    index = part.get("Index")
    if not index:
        if name in lookup.SHELL_ARRAYS and name not in sh.touched:
            return next(iter(lookup.elements(sh, name, where).values()), None)
        return lookup.lookup(sh, name, where)
    found = lookup.elements(sh, name, where)
    key = index_key(sh, unit, name, index)
    if sh.variables.get(name) is None and key == (0, []) and name not in lookup.SHELL_ARRAYS:
        return lookup.lookup(sh, name, where)
    return lookup.element_at(found, key, unit.text(part), where)


def _indirect(sh: Shell, unit: ParsedText, part: Node, quoted: bool, mark: str) -> Segs:
    where, name = unit.where(part), part["Param"]["Value"]
    if sh.variables.refers(name):
        return segs_of(literal(sh.variables.target(name), where), quoted=quoted, where=where)
    if part.get("Names"):
        names = sorted(n for n, v in sh.variables.items() if n.startswith(name))
        return joined(sh, [literal(n, where) for n in names], quoted, mark, where)
    if mark and part.get("Index"):
        found, variable = lookup.elements(sh, name, where), sh.variables.get(name)
        ordered = sorted(found) if variable is None else sh.keys(variable)
        keys = [literal(str(key), where) for key in ordered]
        if any(map(is_uncounted, found.values())):
            keys = [uncounted(unit.text(part), where)]
        return joined(sh, keys, quoted, mark, where)
    pointer = lookup.lookup(sh, name, where) if not part.get("Index") else _one(sh, unit, part, name, where)
    if pointer is None or doubt_in([pointer]) or not text_of(pointer):
        return [Segment("", where, UnknownPiece(unit.text(part), where), quoted)]
    target, _, index = text_of(pointer).partition("[")
    if index.rstrip("]") in ("@", "*"):
        values = list(lookup.elements(sh, target, where).values())
        return _expand_list(sh, unit, part, quoted, index[0], values)
    value = lookup.element(sh, target, index[:-1], where) if index else lookup.lookup(sh, target, where)
    return _expand_scalar(sh, unit, part, quoted, target, value)


def joined(sh: Shell, values: list[Value], quoted: bool, mark: str, where: Where) -> Segs:
    """A list of values as pieces: ``"$*"`` joins with IFS, everything else makes fields."""
    if quoted and mark == "*":
        ifs = lookup.ifs_of(sh)
        return segs_of(lookup.join(values, ifs[:1], where), quoted=True, where=where)
    segs: Segs = []
    for index, value in enumerate(values):
        if index:
            segs.append(Segment("", where, breaks=True))
        segs += segs_of(value, quoted=quoted, where=where)
    sh.budget.fields(len(segs))
    return segs


def _expand_list(
    sh: Shell, unit: ParsedText, part: Node, quoted: bool, mark: str, values: list[Value]
) -> Segs:
    where, name = unit.where(part), part["Param"]["Value"]
    variable = sh.variables.get(name)
    if variable is not None and variable.array is not None:
        values = [variable.array[key] for key in sh.keys(variable)]
    if part.get("Length"):
        return segs_of(lookup.count_of(values, unit.text(part), where), quoted=quoted, where=where)
    if part.get("Slice"):
        values = operators.slice_list(sh, unit, part, values, keep_zero=name in ("@", "*"))
    if part.get("Exp"):
        operator = part["Exp"]["Op"]
        if operator in DEFAULTS:
            unset = not values or (operator.startswith(":") and all(map(_is_null, values)))
            return _default(sh, unit, part, quoted, None if unset else values, mark)
    values = [operators.apply(sh, unit, part, value) for value in values]
    return joined(sh, values, quoted, mark, where)


def _default(
    sh: Shell, unit: ParsedText, part: Node, quoted: bool, values: list[Value] | None, mark: str
) -> Segs:
    where, operator = unit.where(part), part["Exp"]["Op"]
    word = (part["Exp"].get("Word") or {}).get("Parts") or []
    alternative = operator in (":+", "+")
    if alternative and values is None:
        return []
    if not alternative and values is not None:
        return joined(sh, values, quoted, mark, where)
    segs = _default_word(sh, unit, word, quoted)
    if operator.startswith(":"):
        is_certain = any(map(_is_certain_text, values or []))
    else:
        is_certain = not all(map(is_uncounted, values or []))
    if alternative and not is_certain:
        found = derived(text_of(value_of(segs)), values or [], unit.text(part), where)
        return segs_of(found, quoted=quoted, where=where)
    return segs or ([Segment("", where, None, True)] if quoted else [])


def _expand_scalar(
    sh: Shell, unit: ParsedText, part: Node, quoted: bool, name: str, value: Value | None
) -> Segs:
    where = unit.where(part)
    if part.get("Length"):
        text = str(len(text_of(value or EMPTY)))
        return segs_of(derived(text, [value or EMPTY], unit.text(part), where), quoted=quoted, where=where)
    operator = (part.get("Exp") or {}).get("Op", "")
    if operator in DEFAULTS:
        return _scalar_default(sh, unit, part, quoted, name, value)
    if value is None and name.isdigit():
        sh.note_lacking_argument(int(name[:9]))
    if value is None or _unset(value):
        value = _under_set_u(sh, unit, part, name, value)
    if part.get("Slice"):
        value = operators.slice_text(sh, unit, part, value or EMPTY)
    if operator == "@" and (value is None or _unset(value)):
        return segs_of(value or EMPTY, quoted=quoted, where=where)
    if value is not None:
        value = operators.apply(sh, unit, part, value)
    return segs_of(value or EMPTY, quoted=quoted, where=where)


def _unset(value: Value) -> bool:
    """Return whether a value is just a variable that the surroundings don't set either."""
    return len(value) == 1 and isinstance(value[0].source, EnvRef) and value[0].source.default is None


def _under_set_u(sh: Shell, unit: ParsedText, part: Node, name: str, value: Value | None) -> Value | None:
    """The value of an unset variable: under ``set -u`` bash ends the script, which is said."""
    if "u" not in sh.options or is_always_set(name):
        return value
    if (name.isdigit() or value is not None) and name not in ("@", "*"):
        sh.warn("TP104", f"${name} is not set; under set -u bash ends the script here", unit.where(part))
    return value and tuple(
        replace(bit, source=replace(bit.source, required=True)) if isinstance(bit.source, EnvRef) else bit
        for bit in value
    )


def _scalar_default(
    sh: Shell, unit: ParsedText, part: Node, quoted: bool, name: str, value: Value | None
) -> Segs:
    where, operator = unit.where(part), part["Exp"]["Op"]
    word = (part["Exp"].get("Word") or {}).get("Parts") or []
    missing = _is_null(value) if operator[0] == ":" else _is_missing(sh, name, value)
    if operator in (":+", "+"):
        segs = [] if missing else _default_word(sh, unit, word, quoted)
        # one of a list may be missing, a variable that was set to something open is set
        is_set = operator == "+" and not (name.isdigit() or part.get("Index"))
        if is_set or missing or _is_certain_text(value):
            return segs
        found = derived(text_of(value_of(segs)), [value or EMPTY], unit.text(part), where)
        return segs_of(found, quoted=quoted, where=where)
    if not missing:
        return segs_of(value or EMPTY, quoted=quoted, where=where)
    if operator in (":?", "?"):
        sh.warn("TP104", f"${name} must be set; without it bash ends the script here", where)
        return [Segment("", where, EnvRef(name, required=True), quoted)]
    segs = _default_word(sh, unit, word, quoted)
    if value is not None and len(value) == 1 and isinstance(value[0].source, EnvRef):
        segs = _with_reference(segs, value[0].source.name, where, quoted)
    if operator in (":=", "="):
        if part.get("Index"):
            key, of_key = index_key(sh, unit, name, part["Index"])
            sh.set_element(name, key, value_of(segs), doubt=doubt_in(of_key))
        elif name.isidentifier():
            sh.set_scalar(name, value_of(segs))
        segs = segs_of(value_of(segs), quoted=quoted, where=where)
    return segs


def or_word(sh: Shell, name: str, operator: str, word: Value, where: Where) -> Value:
    """``${NAME:-word}`` and its kind outside of bash code, where ``word`` is a value already."""
    value = lookup.lookup(sh, name, where)
    missing = _is_null(value) if operator[:1] == ":" else _is_missing(sh, name, value)
    if operator in (":+", "+"):
        if operator == "+" or missing or _is_certain_text(value):
            return EMPTY if missing else word
        return derived(text_of(word), [value or EMPTY], f"${{{name}:+…}}", where)
    if not missing or operator not in (":-", "-"):
        return value or EMPTY
    if value is None or not isinstance(value[0].source, EnvRef):
        return word
    return value_of(_with_reference(segs_of(word, quoted=True, where=where), name, where, quoted=True))


def _default_word(sh: Shell, unit: ParsedText, word: list[Node], quoted: bool) -> Segs:
    """The word of ``${name:-word}``: its unquoted text is split like any expansion."""
    segs = expansion.expand_parts(sh, unit, word, quoted=quoted, tilde="word", braced=quoted)
    return [replace(seg, split=not seg.quoted) for seg in segs]


def _is_null(value: Value | None) -> bool:
    """Empty as far as is known, unset variables included. What a command would print counts as text."""
    return not value or not (
        text_of(value) or any(isinstance(open_source(bit), UnknownPiece) for bit in value)
    )


def _is_certain_text(value: Value | None) -> bool:
    """Return whether the value is not empty, whatever its open pieces are."""
    return any(bit.text and open_source(bit) is None for bit in value or EMPTY)


def _is_missing(sh: Shell, name: str, value: Value | None) -> bool:
    """Unset, which a variable that the script sets to an unset one's value (``X=$Y``) is not."""
    if value is None or not _unset(value):
        return value is None
    declared = sh.variables.get(name)
    return declared is None or declared.value is None


def _with_reference(segs: Segs, name: str, where: Where, quoted: bool) -> Segs:
    """The default of ``${NAME:-default}``, still tied to NAME.

    Text that is going to be split at blanks can't be tied: then it stays what it is. A default that isn't
    known is as open as it is alone, and --env NAME=… gives it.
    """
    if any(isinstance(seg.source, UnknownPiece) for seg in segs):
        return [
            replace(seg, source=replace(seg.source, variable=name))
            if isinstance(seg.source, UnknownPiece) and not seg.source.variable
            else seg
            for seg in segs
        ]
    value = value_of(segs)
    text = text_of(value)
    if any(seg.breaks for seg in segs):
        return segs
    splits = not quoted and any(not seg.quoted and any(c in seg.text for c in " \t\n*?[") for seg in segs)
    if splits:
        return segs
    parts = parts_of(value) if any(bit.source is not None for bit in value) else ()
    return (
        [Segment(text, where, EnvRef(name, text, parts), quoted=True)]
        if segs
        else [Segment("", where, EnvRef(name, ""), quoted)]
    )
