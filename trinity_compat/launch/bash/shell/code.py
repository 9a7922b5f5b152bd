"""Text that becomes code: scripts, sourced files, ``eval``, ``bash -c``."""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash import tree
from trinity_compat.launch.bash.state import Discard, Exit, Return, Shell, Variable, Variables
from trinity_compat.launch.bash.traced_text import TextPiece, Value, doubt_in, named, open_source, text_of
from trinity_compat.launch.bash.tree import ParsedText
from trinity_compat.launch.model import EnvRef, UnknownPiece

HOLES = range(0xE000, 0xF700)
_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # of a character, which no file has
UNREADABLE = re.compile("[\x01-\x03\udc80-\udcff\r]")
CARRIAGE_RETURN = chr(ord("\r") + 0xF700)  # as `without_unreadable` writes it
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%")


def unit_of(value: Value, fallback: Where) -> ParsedText:
    """The text of a value as code. Pieces with a source stay visible as holes."""
    text = ""
    lines: list[Where] = []
    holes: dict[str, TextPiece] = {}
    where = fallback
    for bit in value:
        piece = bit.text
        kept = bit.source is not None and (piece or open_source(bit) is not None)
        # a piece with blanks or quotes has to be parsed as what it is, and loses its origin
        if kept and len(holes) < len(HOLES) and set(piece) <= PLAIN:
            piece = chr(HOLES[len(holes)])
            holes[piece] = bit
        where = bit.where
        for index, line in enumerate(piece.split("\n")):
            if index or not lines:
                lines.append(Where(where.file, where.line + index))
            text += ("\n" if index else "") + line
    lines = lines or [fallback]
    text = without_unreadable(_HALF.sub("\ufffd", text), holes, lines[0])
    return ParsedText(lines[0].file, text.encode(errors="surrogateescape"), tuple(lines), holes)


def without_unreadable(text: str, holes: dict[str, TextPiece], where: Where) -> str:
    """Replace characters by holes that the parser treats otherwise than bash.

    The parser refuses bytes that are not UTF-8, and drops the carriage return of a line that ends in CR LF,
    which bash keeps as a character. `tree` and `quoted_defaults` write the control characters 1 to 3 into
    texts as marks of their own.
    """
    for char in set(UNREADABLE.findall(text)):
        hole = chr(ord(char) % 0x100 + 0xF700)
        holes[hole] = TextPiece(char, where)
        text = text.replace(char, hole)
    return text


def run_unit(sh: Shell, unit: ParsedText) -> int:
    """Run code in this shell."""
    with sh.nested():
        statements, problem = tree.parse(unit.source, sh.budget)
        before, sh.unit = sh.unit, unit
        # Line ends and marks of Windows' editors: a mark makes a command that nobody has of the first line.
        end = unit.source.find(f"{CARRIAGE_RETURN}\n".encode())
        if end >= 0:
            message = "lines end in CR LF: bash reads the carriage return as part of the last word"
            sh.warn(
                "TP005", f"{message} (dos2unix removes it)", unit.line(unit.source.count(b"\n", 0, end) + 1)
            )
        if unit.source.startswith(codecs.BOM_UTF8):
            message = "begins with a byte order mark, which bash reads as part of the first word"
            sh.warn("TP006", f"{message}: save it as UTF-8 without one", unit.line(1))
        try:
            sh.status = 0 if not statements else sh.status
            dropped = 0
            for statement in statements:
                if statement["Pos"]["Line"] == dropped:  # what bash has read with the command that failed
                    continue
                try:
                    sh.run_statement(sh, statement)
                except Discard:
                    sh.status, dropped = 1, statement["End"]["Line"]
        finally:
            sh.unit = before
        if problem:
            sh.warn("TP001", f"bash stops here: {problem.message}", unit.line(problem.line), "error")
            sh.status = 2
    return sh.status


def run_script_unit(sh: Shell, unit: ParsedText) -> int:
    """A whole script, to its end or its ``exit``, and what ``trap … EXIT`` left to do."""
    try:
        status = run_unit(sh, unit)
    except (Exit, Return) as left:
        status = left.status
    return end(sh, status)


def end(sh: Shell, status: int) -> int:
    """The end of a shell: its exit trap, which may choose another status."""
    sh.status, handler = status, sh.traps.pop("EXIT", None)
    if handler is None:
        return status
    try:
        run_unit(sh, unit_of(handler, sh.where))
    except (Exit, Return) as left:
        return left.status
    return status


def run_trap(sh: Shell, event: str) -> None:
    """Run the code of the trap for an event that takes place."""
    if event not in sh.traps or event in sh.trapping:
        return
    before = sh.status, sh.doubt, sh.doubt_before, sh.where, sh.trapping
    sh.trapping = (*sh.trapping, event)
    try:
        run_unit(sh, unit_of(sh.traps[event], sh.where))
    finally:
        sh.status, sh.doubt, sh.doubt_before, sh.where, sh.trapping = before


def open_by_trap(sh: Shell, event: str, why: UnknownPiece | EnvRef) -> None:
    """Open the variables and files that a trap changes if its event takes place, which is not known."""
    if event not in sh.traps or event in sh.trapping:
        return
    open_changes(sh, lambda other: run_trap(other, event), why, dict(sh.variables), f"the trap for {event}")


def open_changes(
    sh: Shell,
    run: Callable[[Shell], object],
    why: UnknownPiece | EnvRef,
    before: Mapping[str, Variable],
    what: str = "",
) -> None:
    """Open what code changes in the variables of ``before`` and in files: how often it runs is not known.

    ``what`` is its name for a message.
    """
    launched, said = len(sh.log.launches), dict(sh.log.diagnostics)
    other = replace(sh.copy(), files=copy.deepcopy(sh.files), stdout=None, traps=dict(sh.traps))
    try:
        run(other)
    except (Exit, Return):
        return  # a script that goes on has not run it
    finally:
        del sh.log.launches[launched:]
        sh.log.diagnostics = said
    for path in other.files.written.keys() | other.files.removed.keys():
        if other.files.written.get(path) != sh.files.written.get(path):
            sh.files.hand(path, UnknownPiece(named(why), sh.where))
    changed = [
        name
        for name in sorted(before.keys() | other.variables.keys())
        if before.get(name) != other.variables.get(name) and not name.startswith("BASH_")
    ]
    if changed:
        if what and not all(doubt_in([sh.variables.get(name, Variable()).value or ()]) for name in changed):
            sh.warn("TP101", f"{what} may set {', '.join(changed)} here: unknown from now on")
        new = {name: other.variables.get(name, Variable()) for name in changed}
        sh.variables = Variables(new | sh.variables)
        sh.open_alone(why, changed)


def source_file(sh: Shell, content: Value, name: Value, args: list[Value]) -> int:
    """``source file args``."""
    positional = sh.positional
    if args:
        sh.positional = args
    sh.scripts.append(name)
    sh.calls += 1
    try:
        try:
            status = run_unit(sh, unit_of(content, Where(text_of(name), 1)))
        except Return as done:
            status = done.status
        run_trap(sh, "RETURN")
        return status
    finally:
        sh.calls -= 1
        sh.scripts.pop()
        if args:
            sh.positional = positional


def run_script(sh: Shell, content: Value, name: Value, args: list[Value], fallback: Where) -> int:
    """A bash process of its own: ``sh`` is already the child."""
    sh.name, sh.positional, sh.scripts = name, args, [name]
    with sh.nested():
        return run_script_unit(sh, unit_of(content, fallback))


def without_last_backslash(value: Value) -> Value:
    """A file that ends in a backslash: bash drops it, having nothing to continue with."""
    text = text_of(value)
    if (len(text) - len(text.rstrip("\\"))) % 2 == 0 or not value or not value[-1].text.endswith("\\"):
        return value
    last = value[-1]
    return (*value[:-1], TextPiece(last.text[:-1], last.where, last.source))
