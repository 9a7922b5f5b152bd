"""bash's own commands, but for those that run or look up another one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from trinity_compat.launch import entrypoints
from trinity_compat.launch.bash.files import absolute
from trinity_compat.launch.bash.options import OptionSpec, ParsedOptions
from trinity_compat.launch.bash.shell import (
    assignments,
    code,
    conditions,
    printing,
    read_input,
)
from trinity_compat.launch.bash.state import INHERITED, OPTION_LETTERS, Exit, Jump, Return, Shell
from trinity_compat.launch.bash.traced_text import (
    TextPiece,
    Value,
    doubt_in,
    from_character,
    is_uncounted,
    literal,
    named,
    slice_value,
    text_of,
    uncounted,
)
from trinity_compat.launch.bash.words import lookup
from trinity_compat.launch.bash.wrappers import external, shells
from trinity_compat.launch.model import UnknownPiece

Args = list[Value]
# Programs that print what a shell needs for themselves: functions, PATH and variables of their own names.
HOOK = re.compile(
    r"\b(conda|mamba|micromamba|ssh-agent|dircolors|direnv|pyenv|rbenv|fnm|mise|brew|starship|modulecmd|spack"
    r"|opam|pixi|keychain)\b"
)


def _nothing(sh: Shell, args: Args) -> int:
    return 0


def _exit(sh: Shell, args: Args) -> int:
    sh.ended_at = sh.where
    raise Exit(_status(sh, args))


def _status(sh: Shell, args: Args) -> int:
    text = text_of(args[0]) if args else ""
    sh.doubt = doubt_in(args) if args else sh.doubt_before
    return int(text) & 255 if text.lstrip("-").isdigit() and len(text) < 20 else (2 if text else sh.status)


def _return(sh: Shell, args: Args) -> int:
    if not sh.calls:
        return 2
    raise Return(_status(sh, args))


def _jump(sh: Shell, args: Args, *, again: bool) -> int:
    if not sh.loops:
        return 0
    text = text_of(args[0]) if args else "1"
    raise Jump(min(int(text), 100) if text.isdigit() and len(text) < 6 else 1, again=again)


def _shift(sh: Shell, args: Args) -> int:
    text = text_of(args[0]) if args else "1"
    count = int(text) if text.isdigit() and len(text) < 9 else -1
    if doubt_in(args) or any(map(is_uncounted, sh.positional[: max(count, 0)])):
        sh.positional = [uncounted('"$@"', sh.where)]
        return 0
    if not 0 <= count <= len(sh.positional):
        return 1
    sh.positional = sh.positional[count:]
    return 0


def _set(sh: Shell, args: Args) -> int:
    rest = list(args)
    while rest:
        text = text_of(rest[0])
        if text in ("--", "-"):
            if len(rest) > 1 or text == "--":
                sh.positional = rest[1:]
            return 0
        if text[:1] not in ("-", "+"):
            sh.positional = rest
            return 0
        rest.pop(0)
        for letter in text[1:]:
            if letter == "o" and rest:
                name = text_of(rest.pop(0))
                switch(sh, OPTION_LETTERS.get(name, name), on=text[0] == "-")
            elif letter != "o":
                switch(sh, letter, on=text[0] == "-")
    return 0


def switch(sh: Shell, option: str, *, on: bool) -> None:
    """Turn a shell option on or off."""
    if on:
        sh.options.add(option)
    else:
        sh.options.discard(option)


def _shopt(sh: Shell, given: ParsedOptions) -> int:
    names = [OPTION_LETTERS.get(name, name) if given.has("o") else name for name in given.texts()]
    if not given.has("su"):
        return 0 if all(name in sh.options for name in names) else 1
    for name in names:
        switch(sh, name, on=given.has("s"))
    return 0


def _unset(sh: Shell, given: ParsedOptions) -> int:
    status = 0
    for operand in given.operands:
        name, bracket, index = text_of(operand).partition("[")
        variable = sh.variables.get(name)
        if given.has("n"):
            sh.variables.set_own(name, None)
        elif given.has("f") or (variable is None and name in sh.functions):
            sh.functions.pop(name, None)
        elif variable is not None and variable.readonly:
            sh.warn("TP107", f"{name} is readonly; bash refuses to unset it")
            status = 1
        elif bracket and variable is not None and variable.array is not None:
            key, of_key = lookup.key_of(sh, name, index[:-1], sh.where)
            sh.unset_element(name, key, doubt=doubt_in([operand, *of_key]))
        else:
            sh.unset(name)
    return status


def _eval(sh: Shell, args: Args) -> int:
    value = lookup.join(args, " ", sh.where)
    if not text_of(value).strip():
        if (why := doubt_in([value])) is not None:
            external.lose_path(sh)
            if HOOK.search(named(why)):
                sh.warn("TP101", "eval of something that is known only at run time; it is skipped")
            else:
                sh.may_set_any("eval", why)
        return 0
    # what isn't known is split into words once more
    words = [
        replace(bit, source=replace(bit.source, words=True)) if isinstance(bit.source, UnknownPiece) else bit
        for bit in value
    ]
    status = code.run_unit(sh, code.unit_of(tuple(words), sh.where))
    first = re.match(r"\s*[^\s=]*", text_of(value))
    if (why := doubt_in([slice_value(value, 0, first.end() if first else 0)])) is not None:
        sh.may_set_any("eval", why)  # `eval "$name=5"`
    return status


def _source(sh: Shell, given: ParsedOptions) -> int:
    if not given.operands:
        return 2
    name, *args = given.operands
    content = shells.script_content(sh, name)
    why = sh.files.unread_at(sh.files_path(name))
    if content is None:
        sh.doubt = UnknownPiece(f"source {text_of(name)}", sh.where)
        external.lose_path(sh)
        if why is not None:
            sh.open_variables(why)
        return 0
    before = dict(sh.variables)
    status = code.source_file(sh, content, name, args)
    if why is not None:
        sh.open_variables(why, [name for name, now in sh.variables.items() if before.get(name) is not now])
    return status


def _cd(sh: Shell, given: ParsedOptions) -> int:
    if not given.operands:
        return change_directory(sh, lookup.lookup(sh, "HOME", sh.where) or ())
    target = given.operands[0]
    if text_of(target) == "-":
        target = sh.scalar("OLDPWD") or ()
        sh.write_line(target)
    return change_directory(sh, target)


def change_directory(sh: Shell, target: Value) -> int:
    """Go there. A directory that is known to be missing fails; one out of reach is taken to exist."""
    text = text_of(target)
    leading_open = doubt_in([target]) is not None and not text.startswith("/")
    if leading_open:
        place = tuple(bit for bit in target if bit.text or bit.source)
    else:
        path = sh.files_path(target)
        kind = sh.files.kind(path)
        if doubt_in([target]) is None and kind in ("", "file"):
            sh.warn("TP106", f"cd: there is no directory {text}")
            return 1
        place = target if doubt_in([target]) else literal(absolute(text_of(sh.cwd), text), sh.where)
        if path not in ("/", text.rstrip("/")) and doubt_in([sh.cwd]):
            place = (*sh.cwd, TextPiece("/" + text, sh.where))
    sh.set_scalar("OLDPWD", sh.cwd)
    sh.cwd = place
    sh.set_scalar("PWD", place)
    return 0


def _pushd(sh: Shell, args: Args) -> int:
    before = sh.cwd
    if not args or change_directory(sh, args[0]):
        return 1
    sh.directories = [before, *sh.directories]
    return 0


def _popd(sh: Shell, args: Args) -> int:
    if not sh.directories:
        return 1
    target, *sh.directories = sh.directories
    return change_directory(sh, target)


def _declare(kind: str) -> Callable[[Shell, Args], int]:
    def run(sh: Shell, args: Args) -> int:
        flags: list[str] = []
        return max((assignments.declare_text(sh, kind, flags, arg) for arg in args), default=0)

    return run


def _alias(sh: Shell, args: Args) -> int:
    for text in [text_of(arg) for arg in args]:
        name, equals, value = text.partition("=")
        if equals:
            sh.aliases[name] = value
    return 0


def _getopts(sh: Shell, args: Args) -> int:
    """``getopts spec name``: one option per call, OPTIND and OPTARG as bash sets them."""
    if len(args) < 2:
        return 2
    spec, name = text_of(args[0]), text_of(args[1])
    params = args[2:] or sh.positional
    sh.note_arguments(params)
    index, inside = sh.getopts_at
    chosen = sh.scalar("OPTIND")
    if chosen is not None and text_of(chosen) != str(index) and text_of(chosen).isdigit():
        index, inside = int(text_of(chosen)[:6]), 0
    at = params[index - 1] if 0 < index <= len(params) else ()
    if any(map(is_uncounted, params[:index])) or (doubt_in([at]) is not None and text_of(at) in ("", "-")):
        sh.doubt = UnknownPiece("getopts", sh.where)
        for opened in (name, "OPTARG", "OPTIND"):
            sh.set_scalar(opened, (TextPiece("", sh.where, sh.doubt),))
        return 1
    current = text_of(at)
    if not inside and (len(current) < 2 or current[0] != "-" or current == "--"):
        sh.getopts_at = (index + (current == "--"), 0)
        sh.set_scalar(name, literal("?", sh.where))
        sh.set_scalar("OPTIND", literal(str(sh.getopts_at[0]), sh.where))
        return 1
    inside = inside or 1
    letter, rest = current[inside], current[inside + 1 :]
    place = spec.lstrip(":").find(letter)
    following = (index, inside + 1) if rest else (index + 1, 0)
    argument: Value | None = None
    result = letter if place >= 0 and letter != ":" else "?"
    if result != "?" and spec.lstrip(":")[place + 1 : place + 2] == ":":
        following = (index + 1, 0)
        if rest:
            argument = from_character(params[index - 1], inside + 1)
        elif index < len(params):
            argument, following = params[index], (index + 2, 0)
        else:
            result, argument = (":", literal(letter, sh.where)) if spec[0] == ":" else ("?", None)
    elif result == "?" and spec[:1] == ":":
        argument = literal(letter, sh.where)
    sh.getopts_at = following
    sh.set_scalar("OPTIND", literal(str(following[0]), sh.where))
    sh.set_scalar(name, literal(result, sh.where))
    if argument is None:
        sh.unset("OPTARG")
    else:
        sh.set_scalar("OPTARG", argument)
    return 0


def _trap(sh: Shell, given: ParsedOptions) -> int:
    """Code for EXIT, ERR, DEBUG and RETURN is kept; code for a signal is only run by one, so it isn't."""
    if not given.operands or given.has("pl"):
        return 0
    # ``trap EXIT`` alone takes the trap back, as ``trap - EXIT`` does
    handler, *names = given.operands if len(given.operands) > 1 else [literal("-", sh.where), *given.operands]
    text = text_of(handler)
    function = sh.functions.get(text.strip())
    shown = function.unit.text(function.body) if function else text
    for signal in (text_of(name).upper().removeprefix("SIG") for name in names):
        signal = "EXIT" if signal == "0" else signal
        if text in ("", "-"):
            sh.traps.pop(signal, None)
        elif signal in ("EXIT", *INHERITED):
            sh.traps[signal] = handler
        if signal != "EXIT" and entrypoints.may_start_training(shown):
            sh.warn("TP109", f"what the trap for {signal} starts is not read")
    return 0


def parsed(options: OptionSpec, run: Callable[[Shell, ParsedOptions], int]) -> Callable[[Shell, Args], int]:
    """A builtin by its options; one that bash doesn't know is status 2."""

    def parse(sh: Shell, args: Args) -> int:
        given = options.read(args)
        return 2 if given is None else run(sh, given)

    return parse


IGNORED = (
    "wait", "ulimit", "hash", "unalias", "jobs", "disown", "bg", "fg", "times", "sleep", "sync", "clear",
)  # fmt: skip
LEADING = OptionSpec(leading=True)
MAPFILE = OptionSpec("t", "dnOsuCc")
TABLE: dict[str, Callable[[Shell, Args], int]] = {
    ":": _nothing,
    "true": _nothing,
    "false": lambda sh, args: 1,
    "echo": printing.echo,
    "printf": printing.printf,
    "cd": parsed(OptionSpec("PLe@"), _cd),
    "pushd": _pushd,
    "popd": _popd,
    "pwd": lambda sh, args: sh.write_line(sh.cwd),
    "exit": _exit,
    "logout": _exit,
    "return": _return,
    "break": lambda sh, args: _jump(sh, args, again=False),
    "continue": lambda sh, args: _jump(sh, args, again=True),
    "shift": _shift,
    "set": _set,
    "shopt": parsed(OptionSpec("supqo"), _shopt),
    "unset": parsed(OptionSpec("fvn"), _unset),
    "eval": _eval,
    "source": parsed(LEADING, _source),
    ".": parsed(LEADING, _source),
    "read": parsed(OptionSpec("ers", "adinNptu"), read_input.read),
    "mapfile": parsed(MAPFILE, read_input.mapfile),
    "readarray": parsed(MAPFILE, read_input.mapfile),
    "test": lambda sh, args: conditions.run_test(sh, args, bracket=False),
    "[": lambda sh, args: conditions.run_test(sh, args, bracket=True),
    "alias": _alias,
    "getopts": _getopts,
    "umask": lambda sh, args: 0 if args else sh.write_line(literal("0022", sh.where)),
    "trap": parsed(OptionSpec("lp", leading=True), _trap),
    "export": _declare("export"),
    "declare": _declare("declare"),
    "typeset": _declare("declare"),
    "local": _declare("local"),
    "readonly": _declare("readonly"),
    # nothing that a launch could depend on
    **dict.fromkeys(IGNORED, _nothing),
}
