"""Programs: what starts a training main, what runs other code, what only prints, what is unknown."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile

from trinity_compat import mains
from trinity_compat.launch.core.options import Options
from trinity_compat.launch.core.state import OPTION_LETTERS, Shell
from trinity_compat.launch.core.values import Value, doubt_in, literal, text_of, to_word
from trinity_compat.launch.launchers import wrappers
from trinity_compat.launch.model import Launch, Open, Start
from trinity_compat.launch.programs import table
from trinity_compat.launch.shell import code, printing
from trinity_compat.launch.words.segments import place_of

Prefix = dict[str, Value]
SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
BASH = Options(
    "abcefhiklmnprstuvxBCDEHPT", "oO", long={"--rcfile": "O", "--init-file": "O"}, leading=True, lenient=True
)
COMPARES = {"grep", "egrep", "fgrep"}  # taken to find nothing, as a comparison with an open value is


def run(sh: Shell, fields: list[Value], prefix: Prefix, wrapper: tuple[str, ...] = ()) -> int:
    """Run a program by name. A training main is recorded; nothing is ever started."""
    with sh.nested():
        return _run(sh, fields, prefix, wrapper)


def _run(sh: Shell, fields: list[Value], prefix: Prefix, wrapper: tuple[str, ...]) -> int:
    texts = [text_of(field) for field in fields]
    name = texts[0].rsplit("/", 1)[-1]
    found = mains.find(texts, text_of(sh.cwd))
    if found is not None:
        start = sh.reach.start or _start(sh, fields[0], prefix, isolated=found.isolated)
        return _launch(sh, fields, prefix, (*sh.wrapper, *wrapper, *found.wrapper), found, start)
    if name in SHELLS:
        return _shell(_within(sh, wrapper), fields, prefix, name)
    if name in ("echo", "printf"):  # as programs, of env
        return (printing.echo if name == "echo" else printing.printf)(sh, fields[1:])
    if name in table.PROGRAMS:
        status = table.run(sh, name, fields[1:])
        return _unknown(sh, texts) if status is None else status
    wrapped = wrappers.unwrap(sh, fields, prefix)
    if wrapped is not None:
        return _wrapped(sh, fields, wrapped, (*wrapper, wrapped.name))
    if _is_script(sh, texts[0]):
        return _script_file(_within(sh, wrapper), fields[0], fields[1:], prefix)
    _say_what_is_missed(sh, fields, name)
    return _unknown(sh, texts)


def _say_what_is_missed(sh: Shell, fields: list[Value], name: str) -> None:
    """A program that isn't followed, but may start a training main."""
    if name in ("find", "xargs"):  # only what it runs counts, not what it looks for
        words = wrappers.made_command(fields)
        first = words[0].rsplit("/", 1)[-1] if words else ""
        # what it starts may be named by what is found or read: `find -name '*.py' -exec python {} +`
        missed = mains.is_launcher(first) or first in SHELLS or mains.mentioned(" ".join(words))
    else:
        missed = name not in wrappers.INERT and mains.named([name, *map(text_of, fields[1:])])
    if missed:
        sh.warn("TP109", f"{name} is not followed; a training main that it starts is missing here")


def _wrapped(sh: Shell, fields: list[Value], wrapped: wrappers.Wrapped, wrapper: tuple[str, ...]) -> int:
    if wrapped.remote:
        sh = remote(sh)
    if wrapped.dropped != ():
        sh = _without(sh, wrapped.dropped)
    name = text_of(fields[0]).rsplit("/", 1)[-1]
    start = _start(sh, fields[0], wrapped.prefix) if wrapped.name == "ray job submit" else None
    elsewhere = wrapped.elsewhere or (wrapped.name if name in wrappers.ELSEWHERE else "")
    with sh.reaching(
        through=True,
        path_known=sh.reach.path_known and name not in wrappers.SWITCHES,
        elsewhere=sh.reach.elsewhere or elsewhere,
        start=sh.reach.start or (start and replace(start, elsewhere=start.elsewhere or elsewhere)),
    ):
        return _start_wrapped(sh, fields, wrapped, wrapper)


def _start_wrapped(
    sh: Shell, fields: list[Value], wrapped: wrappers.Wrapped, wrapper: tuple[str, ...]
) -> int:
    if wrapped.code is not None:
        child = _within(sh, wrapper).child(wrapped.prefix)
        return code.run_script(child, wrapped.code, fields[0], [], place_of(wrapped.code, sh.where))
    return run(sh, wrapped.call, wrapped.prefix, wrapper)


def _start(sh: Shell, program: Value, prefix: Prefix, *, isolated: bool = False) -> Start:
    """How bash, or what stands between it and the program, finds the program."""
    path, python_path = (
        text_of(prefix[name] if name in prefix else sh.exported(name)) for name in ("PATH", "PYTHONPATH")
    )
    reach = sh.reach
    return Start(
        program=text_of(program),
        hooked=reach.hooked and not reach.through and not isinstance(doubt_in([program]), Open),
        path=path if reach.path_known else None,
        python_path=python_path,
        isolated=isolated,
        elsewhere=reach.elsewhere,
    )


def lose_path(sh: Shell) -> None:
    """Something that isn't read may have put another folder in front of PATH."""
    sh.reach = replace(sh.reach, path_known=False)


def _without(sh: Shell, names: tuple[str, ...] | None) -> Shell:
    """The shell for a command that gets none (or not these) of its variables: ``env -i``, ``env -u``."""
    shell = sh.copy()
    kept = {} if names is None else {k: v for k, v in shell.variables.items() if k not in names}
    shell.variables = kept
    return shell


def _within(sh: Shell, wrapper: tuple[str, ...]) -> Shell:
    """The shell as seen by code that a wrapper runs."""
    return replace(sh, wrapper=(*sh.wrapper, *wrapper)) if wrapper else sh


def remote(sh: Shell) -> Shell:
    """A machine or container of its own: the script's variables don't go along."""
    shell = sh.copy()
    shell.variables = {name: var for name, var in shell.variables.items() if var.given}
    shell.touched = set()
    return shell


def _launch(
    sh: Shell,
    fields: list[Value],
    prefix: Prefix,
    wrapper: tuple[str, ...],
    found: mains.Found,
    start: Start,
) -> int:
    arguments = tuple(to_word(value, place_of(value, sh.where)) for value in fields[found.arguments :])
    for word in arguments:
        if word.open and not word.text:
            sh.warn("TP105", f"{word.open[0].expression} may become any number of arguments", word.where)
    values = {
        name: variable.value
        for name, variable in sh.variables.items()
        if variable.exported and not variable.given and variable.value is not None
    }
    values.update(prefix)
    env = {name: to_word(value, place_of(value, sh.where)) for name, value in values.items()}
    where = place_of(fields[0], sh.where)
    sh.log.launch(Launch(found.module, arguments, where, env, wrapper, text_of(sh.cwd) or ".", start))
    sh.write((sh.unknown(f"python -m {found.module}", sh.where),))
    return 0


def _unknown(sh: Shell, texts: list[str]) -> int:
    if texts[0] in wrappers.CHANGES_PATH:
        lose_path(sh)
    expression = " ".join(texts)[:200]
    sh.write((sh.unknown(expression, sh.where),))
    sh.doubt = Open(sh.capturing or expression, sh.where)
    return int(texts[0] in COMPARES)


def _shell(sh: Shell, fields: list[Value], prefix: Prefix, name: str) -> int:
    """``bash -c text``, ``bash file``, ``bash < text``."""
    leading = list(takewhile(lambda word: text_of(word).startswith(("-", "+")), fields[1:]))
    # ``+x`` turns an option off, which in a new shell it is
    words = [word for word in leading if text_of(word)[0] == "-"]
    given = BASH.read([*words, *fields[1 + len(leading) :]])
    if given is None:
        return 2
    rest, named = given.operands, (text_of(name) for name in given.options.get("o", []))
    options = (given.options.keys() & set("euaxf")) | {OPTION_LETTERS.get(name, name) for name in named}
    name = "sh" if given.has("p") else name  # bash -p reads no BASH_ENV
    child = _shell_of(sh, prefix, name)
    child.options |= options
    if given.has("c"):
        if not rest:
            return 2
        return code.run_script(child, rest[0], rest[1] if len(rest) > 1 else fields[0], rest[2:], sh.where)
    if rest and not given.has("s"):
        return _script_file(sh, rest[0], rest[1:], prefix, program=name, options=options)
    if sh.stdin is None:
        return 0
    if doubt_in([sh.stdin]) and not text_of(sh.stdin).strip():
        sh.warn("TP101", f"{name} reads code that cannot be known here; it is skipped")
        return 0
    child.stdin = None
    return code.run_script(child, code.without_last_backslash(sh.stdin), fields[0], rest, sh.where)


def _shell_of(sh: Shell, prefix: Prefix, program: str) -> Shell:
    """The shell that ``program`` is. Of all shells only bash reads the file that BASH_ENV names."""
    child = sh.child(prefix)
    child.reach = replace(child.reach, hooked=program == "bash" and bool(child.exported("BASH_ENV")))
    return child


def _is_script(sh: Shell, text: str) -> bool:
    """A path to a shell script: by its ending, or by its first line."""
    if "/" not in text:
        return False
    if text.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        return True
    path = sh.files_path(literal(text, sh.where))
    content = sh.files.read(path) if sh.files.kind(path) == "file" else None
    return bool(content) and bool(re.match(r"#!.*\b(ba|z|da)?sh\b", text_of(content or ()).split("\n", 1)[0]))


def _script_file(
    sh: Shell,
    name: Value,
    args: list[Value],
    prefix: Prefix,
    *,
    program: str = "",
    options: set[str] | None = None,
) -> int:
    """A script run by ``program``, or by the one that its first line names."""
    content = script_content(sh, name, sourced=False)
    if content is None:
        sh.doubt = Open(f"bash {text_of(name)}", sh.where)
        sh.write((sh.unknown(f"bash {text_of(name)}", sh.where),))
        return 0
    by_itself = "bash" if re.match(r"#!.*\bbash\b", text_of(content).split("\n", 1)[0]) else "sh"
    child = _shell_of(sh, prefix, program or by_itself)
    child.options |= options or set()
    return code.run_script(child, code.without_last_backslash(content), name, args, sh.where)


def script_content(sh: Shell, name: Value, *, sourced: bool) -> Value | None:
    """The text of another script; None, and a warning, when it can't be read."""
    shown = text_of(name)
    if doubt_in([name]) or (doubt_in([sh.cwd]) and not shown.startswith("/")):
        sh.warn("TP106", f"{shown or 'a file'}: its path cannot be known here; it is not read")
        return None
    path = sh.files_path(name)
    anywhere = sourced and sh.literal_argument and not path.startswith(("/proc/", "/sys/", "/dev/"))
    content = sh.files.read(path, anywhere=anywhere)
    if content is None:
        missing = sh.files.kind(path) == "" or anywhere
        why = "no such file" if missing else "not under --cwd"
        sh.warn("TP106", f"{shown}: {why}; it is not read")
    elif doubt_in([content]) and not text_of(content).strip():
        sh.warn("TP106", f"{shown}: what is in it cannot be known here; it is not read")
        return None
    return content
