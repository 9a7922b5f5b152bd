"""A simple command: its assignments, its words, and who answers to its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from trinity_compat.common.errors import Where
from trinity_compat.launch import entrypoints
from trinity_compat.launch.bash.options import OptionSpec, ParsedOptions
from trinity_compat.launch.bash.shell import assignments, builtins, code
from trinity_compat.launch.bash.state import Exit, Return, Shell, ShellFunction, Variable
from trinity_compat.launch.bash.traced_text import Value, text_of
from trinity_compat.launch.bash.tree import Node
from trinity_compat.launch.bash.words import expansion
from trinity_compat.launch.bash.words.segments import place_of
from trinity_compat.launch.bash.wrappers import external
from trinity_compat.launch.model import UnknownPiece


def run(sh: Shell, node: Node) -> int:
    """One simple command of the tree."""
    sh.doubt = None
    sh.substitution_status = None
    sh.vanished = None
    fed, sh.fed_by_launch = sh.fed_by_launch, False
    before, launched = sh.log.unread, len(sh.log.launches)
    args = node.get("Args") or []
    fields = expansion.expand_words(sh, sh.unit, args)
    if not fields:
        for item in node.get("Assigns") or []:
            assignments.assign(sh, item)
        return sh.substitution_status or 0
    sh.doubt = None
    prefix = {
        item["Name"]["Value"]: assignments.scalar_value(sh, item)
        for item in node.get("Assigns") or []
        if item.get("Name") and "Array" not in item
    }
    status = dispatch(sh, fields, prefix)
    takes_none = bool(launched) and text_of(fields[0]) in _TAKES_NO_OVERRIDES
    if (fed or takes_none) and len(sh.log.launches) == launched:
        _note_lost_words(sh, fields, before)
    # `[ $UNSET = 1 ]` is `[ = 1 ]`, an error that says nothing of the machine it will run on
    if sh.vanished is not None and text_of(fields[0]) in ("[", "test"):
        sh.doubt = sh.doubt or sh.vanished
    return status


def dispatch(sh: Shell, fields: list[Value], prefix: dict[str, Value], *, functions: bool = True) -> int:
    """Run a command by name: function, builtin, or a program."""
    name = text_of(fields[0])
    if functions and name in sh.functions:
        with _temporary(sh, prefix):
            return call_function(sh, sh.functions[name], name, fields[1:])
    if name in sh.aliases and "expand_aliases" in sh.options:
        alias = [(*expansion.literal(word, sh.where),) for word in sh.aliases[name].split()]
        # bash doesn't expand an alias within itself (`alias ls='ls -l'`)
        text = sh.aliases.pop(name)
        try:
            return dispatch(sh, [*alias, *fields[1:]], prefix)
        finally:
            sh.aliases[name] = text
    builtin = _BUILTINS.get(name)
    if builtin is not None:
        with _temporary(sh, prefix):
            return builtin(sh, fields[1:])
    if entrypoints.OVERRIDE.match(name):  # `actor.lr=1e-6` as a command: the line above was to continue
        return _lost_override(sh, name)
    if name.startswith("-"):
        # `-- python3 -m …`, an option on a line of its own: nothing that follows it is started
        sh.warn("TP115", f"bash reads {name!r} as a command and finds none: nothing on this line is started")
        sh.doubt = None
        return 127
    return external.run(sh, fields, prefix)


@contextmanager
def _temporary(sh: Shell, prefix: dict[str, Value]) -> Iterator[None]:
    """``NAME=value builtin``: the assignment lasts as long as the command."""
    saved = {name: sh.variables.get(name) for name in prefix}
    for name, value in prefix.items():
        sh.variables[name] = replace(saved[name] or Variable(), value=value, array=None, exported=True)
    try:
        yield
    finally:
        for name, variable in saved.items():
            if variable is None:
                sh.variables.pop(name, None)
            else:
                sh.variables[name] = variable


def call_function(sh: Shell, function: ShellFunction, name: str, args: list[Value]) -> int:
    """A shell function: its own parameters and locals, its own text."""
    saved = sh.positional, sh.unit, sh.loops, sh.waits, sh.overdue, sh.deciding
    sh.positional, sh.unit = args, function.unit
    sh.loops = sh.overdue = 0
    sh.waits = sh.deciding = False
    sh.calls += 1
    sh.frames.append(name)
    sh.scripts.append(function.script)
    try:
        with sh.nested(), sh.scope(), sh.traps_of_function():
            try:
                status = sh.run_statement(sh, function.body)
            except Return as done:
                status = done.status
            code.run_trap(sh, "RETURN")
            return status
    finally:
        sh.calls -= 1
        sh.frames.pop()
        sh.scripts.pop()
        sh.positional, sh.unit, sh.loops, sh.waits, sh.overdue, sh.deciding = saved


_EVERY_LINE = (
    "a carriage return follows the backslash of the line above, as of every line here that ends in CR LF"
)


def _lost_override(sh: Shell, name: str) -> int:
    """A line that was meant as an argument of the command above, but is a command of its own."""
    lines = sh.unit.source.decode(errors="surrogateescape").replace(code.CARRIAGE_RETURN, "\r").split("\n")
    at = next((i for i in range(len(lines)) if sh.unit.line(i + 1) == sh.where), None)
    number, why = "TP004", "the line above doesn't end in a backslash"
    if at:
        above = lines[at - 1]
        if above.lstrip().startswith("#") or re.search(r"\s#.*\\$", above):
            number, why = "TP002", "a comment stands inside the continued command and ends it"
        elif re.search(r"\\[ \t\r]+$", above):
            number, why = "TP003", "a blank follows the backslash of the line above"
            if above.endswith("\\\r"):
                why = _EVERY_LINE
        elif not above.strip():
            why = "an empty line ends the command above"
    sh.doubt = None
    if why == _EVERY_LINE and any(note.message.endswith(why) for note in sh.log.diagnostics.values()):
        return 127
    sh.warn(number, f"bash reads {name.split('=')[0]!r} as a command, the override is lost: {why}")
    return 127


_TAKES_NO_OVERRIDES = {"cat", "date", "sleep", "tee", "true", "wait"}
_DELETION = re.compile(r"~[A-Za-z_]\w*(?:\.\w+)+(?:=.*)?")  # ~critic.optim, and not ~user/a.txt
_OF_PATTERNS = {"grep", "egrep", "fgrep", "rg", "sed", "awk", "perl"}


def _note_lost_words(sh: Shell, fields: list[Value], unread: list[Value]) -> None:
    """Overrides that another program gets, most often behind a pipe; ``unread``: the script's, before it."""
    name, at = text_of(fields[0]), place_of(fields[0], sh.where)
    lines: dict[Where, list[str]] = {}
    pattern = next((word for word in fields[1:] if not text_of(word).startswith("-")), None)
    for word in filter(_is_override, fields[1:]):
        where = place_of(word, at) if place_of(word, at).line else at  # an argument of the script has no line
        if name not in _OF_PATTERNS or word is not pattern or where.line > at.line:
            lines.setdefault(where, []).append(text_of(word))
    for where, words in lines.items():
        message = f"{', '.join(words)}: {name} gets this word, not the training; write it before the pipe"
        sh.warn("TP004", message, where)
    kept = {id(value) for value in sh.log.unread}
    lost = (value for value in unread if id(value) not in kept)
    sh.log.unread = [*sh.log.unread, *filter(_is_override, lost)]


def _is_override(word: Value) -> bool:
    text = text_of(word)
    return bool(entrypoints.OVERRIDE.match(text) or _DELETION.fullmatch(text))


def _command(sh: Shell, given: ParsedOptions) -> int:
    if not given.operands:
        return 0
    if given.has("vV"):
        return _found(sh, given.operands[0])
    with sh.reaching(through=True):
        return dispatch(sh, given.operands, {}, functions=False)


def _type(sh: Shell, given: ParsedOptions) -> int:
    return max((_found(sh, name) for name in given.operands), default=0)


def _found(sh: Shell, name: Value) -> int:
    """Return whether a command exists: known for the shell's own, a guess for programs."""
    text = text_of(name)
    if text not in sh.functions and text not in _BUILTINS:
        sh.doubt = UnknownPiece(f"command -v {text}", sh.where)
        sh.write((sh.unknown(f"command -v {text}", sh.where),))
    else:
        sh.write_line(name)
    return 0


def _exec(sh: Shell, given: ParsedOptions) -> int:
    if not given.operands:
        return 0
    with sh.reaching(through=True):
        status = dispatch(sh, given.operands, {}, functions=False)
    sh.traps.pop("EXIT", None)  # the shell is another program now
    raise Exit(status)


_BUILTINS = builtins.TABLE | {
    "command": builtins.parsed(OptionSpec("pvV", leading=True), _command),
    "builtin": lambda sh, args: dispatch(sh, args, {}, functions=False) if args else 0,
    "type": builtins.parsed(OptionSpec("afptP"), _type),
    "which": builtins.parsed(OptionSpec("a"), _type),
    "exec": builtins.parsed(OptionSpec("cl", "a", leading=True), _exec),
}
