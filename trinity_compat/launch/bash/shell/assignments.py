"""``name=value``, arrays, and the declaration builtins (export, local, declare, readonly)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from trinity_compat.launch.bash import machines
from trinity_compat.launch.bash.state import Discard, Shell, Variable
from trinity_compat.launch.bash.traced_text import (
    EMPTY,
    Value,
    derived,
    doubt_in,
    from_character,
    is_uncounted,
    named,
    slice_value,
    text_of,
    uncounted,
)
from trinity_compat.launch.bash.tree import Node
from trinity_compat.launch.bash.words import expansion, lookup, parameters
from trinity_compat.launch.bash.words.arithmetic import BadArithmetic
from trinity_compat.launch.model import UnknownPiece

NAME = re.compile(r"[A-Za-z_]\w*")
_ELEMENT = re.compile(r"(\[[^]]+\])=")
DECLARED = re.compile(r"[A-Za-z_]\w*(?=\+?=|\[|\Z)", re.ASCII)


def assign(sh: Shell, node: Node) -> None:
    """One assignment of the tree."""
    name = node["Name"]["Value"]
    append = bool(node.get("Append"))
    variable = sh.variables.get(name)
    if variable is not None and variable.readonly:
        sh.warn("TP107", f"{name} is readonly; bash refuses to change it")
        raise Discard
    if "Array" in node:
        old = variable or Variable()
        array: dict[Any, Value] = dict(Shell.as_array(old)) if append else {}
        if old.is_table:
            _fill_table(sh, node["Array"], array)
        else:
            _fill_array(sh, node["Array"], array)
            array = {key: as_integer(sh, old, value, None, name) for key, value in array.items()}
        sh.budget.fields(len(array))
        sh.put(name, replace(old, value=None, array=array, given=False))
        machines.note_array(sh, name, node["Array"])
        return
    value = scalar_value(sh, node)
    if node.get("Index"):
        key, of_key = parameters.index_key(sh, sh.unit, name, node["Index"])
        before = Shell.as_array(variable or Variable()).get(key)
        value = as_integer(sh, variable, value, before if append else None, name)
        sh.set_element(name, key, value, append=append, doubt=doubt_in(of_key))
        return
    _set_scalar(sh, name, value, append=append)


def _set_scalar(sh: Shell, name: str, value: Value, *, append: bool) -> None:
    variable = sh.variables.get(name)
    before = variable.value if append and variable else None
    sh.set_scalar(name, as_integer(sh, variable, value, before, name), append=append)


def scalar_value(sh: Shell, node: Node) -> Value:
    """The right side. An empty one keeps its place."""
    if not node.get("Value"):
        return EMPTY
    return expansion.expand_single(sh, sh.unit, node["Value"], tilde="assign")


def as_integer(sh: Shell, variable: Variable | None, value: Value, before: Value | None, name: str) -> Value:
    """Under ``declare -i`` the right side is an expression, added to what was there ``before`` by ``+=``."""
    if variable is None or "i" not in variable.attributes:
        return value
    used = [value]
    text = text_of(value)
    if before:
        text = f"({text_of(before) or 0})+({text or 0})"
        used.append(before)
    try:
        number, used = lookup.evaluate_text(sh, text, used, sh.where)
    except BadArithmetic as error:
        sh.warn("TP108", f"{name}={text}: {error}", severity="error")
        if doubt_in(used) is None:
            raise Discard from None
        number = 0
    return derived(str(number), used, text, sh.where)


def _fill_array(sh: Shell, node: Node, array: dict[Any, Value]) -> None:
    at = max(array, default=-1) + 1
    for element in node.get("Elems") or []:
        if element.get("Index"):
            at, of_key = expansion.evaluate_or_open(sh, sh.unit, element["Index"])
            array[at] = expansion.expand_single(sh, sh.unit, element.get("Value"), tilde="assign")
            if (doubt := doubt_in(of_key)) is not None:
                array[at] = uncounted(f"[{named(doubt)}]={text_of(array[at])}", sh.where)
            at += 1
            continue
        for value in expansion.expand_words(sh, sh.unit, [element["Value"]]):
            array[at] = value
            at += 1


def _fill_table(sh: Shell, node: Node, table: dict[Any, Value]) -> None:
    pending: str | None = None
    for element in node.get("Elems") or []:
        value = expansion.expand_single(sh, sh.unit, element.get("Value"), tilde="assign")
        if element.get("Index"):
            key, of_key = parameters.table_key(sh, sh.unit, element["Index"])
            doubt = doubt_in(of_key)
            table[key] = value if doubt is None else uncounted(f"[{named(doubt)}]", sh.where)
        elif pending is None:
            pending = text_of(value)
        else:
            table[pending] = value
            pending = None
    if pending is not None:
        table[pending] = EMPTY


def declare(sh: Shell, node: Node) -> int:
    """export, declare, typeset, local, readonly with their flags and assignments."""
    sh.doubt = None
    sh.substitution_status = None
    kind = node["Variant"]["Value"]
    flags: list[str] = []
    # every word is expanded before the first name is set: in `local a=1 b=$a` b has the a from before
    args = [(arg, _expanded(sh, arg)) for arg in node.get("Args") or []]
    status = 0
    for arg, values in args:
        if not arg.get("Name"):
            for value in values:
                status = declare_text(sh, kind, flags, value) or status
            continue
        name = arg["Name"]["Value"]
        if _refer(sh, kind, flags, name, values[0] if values else EMPTY):
            continue
        prepare(sh, kind, flags, name, sets=not arg.get("Naked"))
        for value in values:
            _set_scalar(sh, name, value, append=bool(arg.get("Append")))
        if not values and not arg.get("Naked"):
            assign(sh, arg)
        finish(sh, kind, flags, name)
    return status


def _expanded(sh: Shell, arg: Node) -> list[Value]:
    """The words of an argument without a name, or the one value of ``name=value``."""
    if not arg.get("Name"):
        return expansion.expand_words(sh, sh.unit, [arg["Value"]]) if arg.get("Value") else []
    plain = not (arg.get("Naked") or "Array" in arg or arg.get("Index"))
    return [scalar_value(sh, arg)] if plain else []


def declare_text(sh: Shell, kind: str, flags: list[str], value: Value) -> int:
    """An argument that is only known after expansion: a flag, a name or ``name=value``. Its status."""
    text = text_of(value)
    match = DECLARED.match(text)
    of_name = doubt_in([slice_value(value, 0, match.end() if match else len(text))])
    if is_uncounted(value) or isinstance(of_name, UnknownPiece):
        why = next(bit.source for bit in value if isinstance(bit.source, UnknownPiece))
        sh.may_set_any(kind, why)
        return 0
    if text[:1] in "-+" and len(text) > 1 and "=" not in text:
        flags.append(text)
        return 0
    if not match:
        if doubt_in([value]):
            return 0
        shown = text.partition("=")[0] or repr(text)
        sh.warn("TP107", f"{kind} {shown}: not a name; bash refuses it with status 1 and sets nothing")
        return 1
    name, rest = match[0], text[match.end() :]
    if element := _ELEMENT.match(rest):
        prepare(sh, kind, [*flags, "-a"], name, sets=True)
        target = slice_value(value, 0, match.end() + len(element[1]))
        lookup.set_named(sh, target, from_character(value, match.end() + element.end()))
        return 0
    if _refer(sh, kind, flags, name, from_character(value, match.end() + 1) if "=" in rest else EMPTY):
        return 0
    prepare(sh, kind, flags, name, sets="=" in rest)
    for mark, append in (("+=", True), ("=", False)):
        if rest.startswith(mark):
            right = from_character(value, match.end() + len(mark))
            _set_scalar(sh, name, right, append=append)
            break
    finish(sh, kind, flags, name)
    return 0


def _letters(flags: Iterable[str], sign: str = "-") -> set[str]:
    return {letter for flag in flags if flag[0] == sign for letter in flag[1:]}


def _refer(sh: Shell, kind: str, flags: list[str], name: str, target: Value) -> bool:
    """``declare -n name=target``: False without the flag. What stands for an element is open."""
    if (kind != "nameref" and "n" not in _letters(flags)) or kind == "export":
        return False
    if kind == "local" or (sh.scopes and "g" not in _letters(flags)):
        sh.make_local(name)
    sh.touched.add(name)
    if isinstance(why := doubt_in([target]), UnknownPiece):
        sh.may_set_any(f"{kind} -n", why)
    if why is None and (not target or text_of(target).isidentifier()):
        sh.variables.refer(name, target)
        return True
    sh.warn("TP109", f"a reference ({kind} -n {name}) is not read; what is done through it is missing here")
    sh.variables.set_own(name, Variable(value=(sh.unknown(f"${name}", sh.where),)))
    return True


def prepare(sh: Shell, kind: str, flags: list[str], name: str, *, sets: bool) -> None:
    """The attributes that count before the assignment."""
    letters = _letters(flags)
    if kind == "local" or (kind in ("declare", "typeset") and sh.scopes and "g" not in letters):
        sh.make_local(name)
    variable = sh.variable(name)
    known = name in sh.variables
    attributes = (variable.attributes | (letters & set("iluAa"))) - _letters(flags, "+")
    if not (known or sets or letters & {"A", "a"}) and sh.from_surroundings(name):
        # whatever the surroundings give it
        sh.variables[name] = replace(variable, attributes=frozenset(attributes))
        return
    array = variable.array
    if letters & {"A", "a"} and array is None:
        array = {} if variable.value is None else {0: variable.value}
    value = None if array is not None else variable.value
    sh.put(name, replace(variable, attributes=frozenset(attributes), array=array, value=value))


def finish(sh: Shell, kind: str, flags: list[str], name: str) -> None:
    """The attributes that count after the assignment: exported and readonly."""
    variable = sh.variables.get(name)
    if variable is None:
        return
    letters, off = _letters(flags), _letters(flags, "+")
    exported = variable.exported
    if kind == "export":
        exported = "n" not in letters
    elif "x" in letters | off:
        exported = "x" in letters
    readonly = variable.readonly or kind == "readonly" or "r" in letters
    given = variable.given and kind != "export"
    sh.variables[name] = replace(variable, exported=exported, readonly=readonly, given=given)
