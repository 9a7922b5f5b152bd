"""Commands that are not the shell's own: a training main, a shell, a wrapper of another, the unknown."""

from __future__ import annotations

import re
from dataclasses import replace

from trinity_compat.launch import entrypoints
from trinity_compat.launch.bash import machines
from trinity_compat.launch.bash.files import absolute
from trinity_compat.launch.bash.programs import table, transfers
from trinity_compat.launch.bash.shell import code, printing
from trinity_compat.launch.bash.state import BackgroundCommand, Shell, Variables
from trinity_compat.launch.bash.traced_text import (
    Prefix,
    Value,
    doubt_in,
    literal,
    named,
    text_of,
    to_word,
)
from trinity_compat.launch.bash.words.segments import place_of
from trinity_compat.launch.bash.wrappers import own_mains, shells, unwrap
from trinity_compat.launch.launchers import LAUNCHERS, OTHER, name_of
from trinity_compat.launch.model import EnvRef, Launch, Start, UnknownPiece

_NPU = re.compile(r"\s*import torch_npu\s*;?\s*")

YAML = (".yaml", ".yml")
# What may change PATH of the script itself.
CHANGES_PATH = {
    "conda", "mamba", "micromamba", "module", "ml", "spack", "workon", "mise", "pyenv", "activate",
}  # fmt: skip
# They read the files that they are given, and write none.
READERS = {
    "cmp", "cut", "diff", "du", "egrep", "fgrep", "file", "grep", "head", "less", "ls", "md5sum", "more",
    "sha256sum", "stat", "tail", "wc", "jq", "column", "nl", "od", "shellcheck",
}  # fmt: skip
COMPARES = {"grep", "egrep", "fgrep"}  # taken to find nothing, as a comparison with an open value is


def run(sh: Shell, fields: list[Value], prefix: Prefix, wrapper: tuple[str, ...] = ()) -> int:
    """Run a program by name. A training main is recorded; nothing is ever started."""
    with sh.nested():
        return _run(sh, fields, prefix, wrapper)


def _run(sh: Shell, fields: list[Value], prefix: Prefix, wrapper: tuple[str, ...]) -> int:
    texts = [text_of(field) for field in fields]
    if not texts[0] and texts[1:2] == ["-m"]:  # "$PYTHON" -m module, where nobody knows which Python
        fields = [literal("python3", sh.where), *fields[1:]]
        texts = ["python3", *texts[1:]]
    name = name_of(texts[0])
    found = entrypoints.find(texts, text_of(sh.cwd), sh.log.mains) or own_mains.find(sh, texts)
    # first: a training main counts whatever its program is called otherwise
    if found is not None:
        start = sh.reach.start or _start(sh, fields[0], prefix, isolated=found.isolated)
        return _launch(sh, fields, prefix, (*sh.wrapper, *wrapper, *found.wrapper), found, start)
    if name in shells.SHELLS:
        return shells.run(_within(sh, wrapper), fields, prefix, name)
    if name in ("echo", "printf"):  # as programs, of env
        return (printing.echo if name == "echo" else printing.printf)(sh, fields[1:])
    if entrypoints.PYTHON.fullmatch(name) and _searches_for_npu(fields):
        return 1
    if name in table.PROGRAMS:
        other_zone = name == "date" and "TZ" in prefix
        status = None if other_zone else table.run(sh, name, fields[1:])
        if status is not None:
            return status
        if name != "xargs":  # which may run another program
            return _unknown(sh, fields)
    if commands := unwrap.unwrap(sh, fields, prefix):
        return [_wrapped(sh, fields, each, (*wrapper, each.name)) for each in commands][-1]
    if shells.is_script(sh, texts[0]):
        return shells.run_file(_within(sh, wrapper), fields[0], fields[1:], prefix)
    _warn_of_missed(sh, fields, name)
    if name in ("find", "xargs") and unwrap.edits_in_place(unwrap.made_command(fields)):
        sh.files.hand(f"{text_of(sh.cwd)}/", UnknownPiece(" ".join(texts), sh.where))
    if name == "ray" or name not in unwrap.INERT:
        machines.note_ray(sh, fields, prefix)
    if sh.background and name not in unwrap.INERT:
        where, text = sh.background
        sh.log.background.setdefault(where, BackgroundCommand(text, len(sh.log.launches)))
    return _unknown(sh, fields)


def _searches_for_npu(fields: list[Value]) -> bool:
    """Return whether a Python command only imports torch_npu, as veRL's scripts do to find Ascend devices.

    It fails: a run is for NVIDIA GPUs or for a CPU.
    """
    texts = [text_of(field) for field in fields[1:]]
    return len(texts) == 2 and texts[0] == "-c" and not doubt_in(fields) and bool(_NPU.fullmatch(texts[1]))


def _warn_of_missed(sh: Shell, fields: list[Value], name: str) -> None:
    """A program that isn't followed, but may start a training main."""
    if name in ("find", "xargs"):  # only what it runs counts, not what it looks for
        words = unwrap.made_command(fields)
        first = name_of(words[0]) if words else ""
        # what it starts may be named by what is found or read: `find -name '*.py' -exec python {} +`
        missed = (
            entrypoints.is_launcher(first)
            or first in shells.SHELLS
            or entrypoints.may_start_training(" ".join(words))
        )
    else:
        missed = name not in unwrap.INERT and entrypoints.has_training_main([name, *map(text_of, fields[1:])])
    dashed = next((text for text in map(text_of, fields[1:]) if entrypoints.OTHER_DASH.match(text)), "")
    if entrypoints.is_launcher(name) and dashed:
        dash = f"{dashed[0]} (U+{ord(dashed[0]):04X}), which is not a hyphen"
        instead = entrypoints.with_hyphens(dashed)
        sh.warn("TP125", f"{dashed} begins with {dash}: {name} reads it as a file; write {instead}")
    elif missed or own_mains.code_starts_main(sh, [text_of(field) for field in fields]):
        sh.warn("TP109", f"{name} is not read; a training main that it starts is not found")


def _wrapped(sh: Shell, fields: list[Value], wrapped: unwrap.Wrapped, wrapper: tuple[str, ...]) -> int:
    environment = wrapped.environment
    if not environment.inherits:
        sh = remote(sh)
        sh.unexported = environment.unexported
        sh.touched |= environment.unexported.keys()
    if environment.mounts:
        cwd = literal(environment.cwd, sh.where) if environment.cwd else sh.cwd
        sh = replace(sh.copy(), mounts=environment.mounts, cwd=cwd)
    if environment.unread is not None:
        sh = _with_open_variables(sh, wrapped, environment.unread)
    if wrapped.dropped != ():
        # `env -i`, `env -u`: the command gets none of the shell's variables, or not these
        sh, names = sh.copy(), wrapped.dropped
        sh.variables = Variables(
            {k: v for k, v in sh.variables.items() if names is not None and k not in names}
        )
        sh.touched |= {"*"} if names is None else {*names}
        sh.unexported = {k: v for k, v in sh.unexported.items() if names is not None and k not in names}
    name, prefix = name_of(text_of(fields[0])), environment.prefix
    row = LAUNCHERS.get(name, OTHER)
    start = _start(sh, fields[0], prefix) if wrapped.name == "ray job submit" else None
    elsewhere = wrapped.elsewhere or (wrapped.name if row.elsewhere else "")
    travels = row.travels and environment.inherits
    if travels and (box := _option(fields, len(fields) - len(wrapped.call), row.boxes)):
        elsewhere, travels = f"{elsewhere} {box}", False
    if not elsewhere or (sh.reach.elsewhere and not sh.reach.travels):
        elsewhere, travels = sh.reach.elsewhere, sh.reach.travels
    with sh.reaching(
        through=True,
        path_known=sh.reach.path_known and not row.switches,
        elsewhere=elsewhere,
        travels=travels,
        start=sh.reach.start or (start and replace(start, elsewhere=start.elsewhere or elsewhere)),
    ):
        if wrapped.code is None:
            return run(sh, wrapped.call, prefix, wrapper)
        child = _within(sh, wrapper).child(prefix)
        return code.run_script(child, wrapped.code, fields[0], [], place_of(wrapped.code, sh.where))


def _option(fields: list[Value], end: int, start: str) -> str:
    """Return the name of the first option that begins with ``start``, "" where there is none."""
    names = (text_of(field).partition("=")[0] for field in fields[:end])
    return next((name for name in names if start and name.startswith(start)), "")


def _with_open_variables(sh: Shell, wrapped: unwrap.Wrapped, unread: UnknownPiece | EnvRef) -> Shell:
    """The shell for a command whose launcher may set any variable: what the script doesn't set is open."""
    first = text_of(wrapped.call[0]) if wrapped.call else ""
    if wrapped.code is not None or name_of(first) in shells.SHELLS or shells.is_script(sh, first):
        message = (
            f"the variables that {named(unread)} sets are known only at run time: those that"
            " nothing else sets"
        )
        sh.warn("TP101", f"{message} are unknown (set them with --env NAME=…)")
    shell = sh.copy()
    shell.assigned_unread = unread
    return shell


def _start(sh: Shell, program: Value, prefix: Prefix, *, isolated: bool = False) -> Start:
    """Return how bash, or a program in front of it, finds the program."""
    path, python_path = (
        text_of(prefix[name] if name in prefix else sh.exported(name)) for name in ("PATH", "PYTHONPATH")
    )
    reach = sh.reach
    return Start(
        program=text_of(program),
        hooked=reach.hooked and not reach.through and not isinstance(doubt_in([program]), UnknownPiece),
        path=path if reach.path_known else None,
        python_path=python_path,
        isolated=isolated,
        elsewhere=reach.elsewhere,
        travels=reach.travels,
    )


def lose_path(sh: Shell) -> None:
    """Something that isn't read may have put another folder in front of PATH."""
    sh.reach = replace(sh.reach, path_known=False)


def _within(sh: Shell, wrapper: tuple[str, ...]) -> Shell:
    """The shell as seen by code that a wrapper runs."""
    return replace(sh, wrapper=(*sh.wrapper, *wrapper)) if wrapper else sh


def remote(sh: Shell) -> Shell:
    """A machine or container of its own: the script's variables don't go along."""
    shell = sh.copy()
    shell.variables = Variables((name, var) for name, var in shell.variables.items() if var.given)
    shell.touched, shell.unexported = set(), {}
    return shell


def _launch(
    sh: Shell,
    fields: list[Value],
    prefix: Prefix,
    wrapper: tuple[str, ...],
    found: entrypoints.FoundMain,
    start: Start,
) -> int:
    arguments = tuple(to_word(value, place_of(value, sh.where)) for value in fields[found.arguments :])
    options = tuple(to_word(value, place_of(value, sh.where)) for value in fields[slice(*found.torchrun)])
    for word in arguments:
        if word.open and not word.text:
            sh.warn("TP105", f"{word.open[0].expression} may become any number of arguments", word.where)
    exported = {name: var for name, var in sh.variables.items() if var.exported and var.value is not None}
    # what came through the environment is the user's, not the launch's
    values = {name: var.value or () for name, var in exported.items() if not var.given} | prefix
    env = {name: to_word(value, place_of(value, sh.where)) for name, value in values.items()}
    assigned = {
        name: to_word(value, place_of(value, sh.where))
        for name, value in sh.assigned_alone().items()
        if name not in prefix
    }
    lacking = sh.touched | {name for name, var in sh.variables.items() if var.exported is False}
    where = place_of(fields[0], sh.where)
    file = own_mains.file_of(sh, found, [word.text for word in arguments]) if found.file else ""
    cwd = text_of(sh.cwd) or "."
    doubted = [absolute("/", cwd)] if doubt_in([sh.cwd]) else []
    created = frozenset([*sh.files.maybe_made(), *doubted])
    sh.log.launch(
        Launch(
            found.module,
            arguments,
            where,
            env,
            wrapper,
            cwd,
            start,
            found.main,
            wrote=sh.files.wrote(YAML),
            created=created,
            torchrun=options,
            unset=frozenset(lacking - exported.keys() - assigned.keys()),
            assigned=assigned,
            environ={name: text_of(exported[name].value or ()) for name in exported.keys() & sh.log.given},
            file=file,
            roots=sh.files.roots,
            unread=sh.files.unread((*YAML, ".py")),
            machines=machines.of_launch(sh),
        )
    )
    # `main | tee log`, `x=$(main)`: what it prints is known to nobody yet
    sh.write((sh.unknown(f"python -m {found.module}", sh.where),))
    return 0


def _unknown(sh: Shell, fields: list[Value]) -> int:
    texts = [text_of(field) for field in fields]
    if texts[0] in CHANGES_PATH:
        lose_path(sh)
    expression = " ".join(texts)[:200]
    why = UnknownPiece(expression, sh.where)
    paths, are_all = transfers.paths_written(sh, fields)
    for path in filter(None, paths):
        sh.files.hand(path, why)
    program = name_of(texts[0])
    if not (are_all or program in READERS or "compose" in " ".join(texts[:2])):
        code_of_stdin = [text_of(sh.stdin or ())] if entrypoints.is_launcher(texts[0]) else []
        sh.files.given_to_unread(text_of(sh.cwd), [*texts[1:], *code_of_stdin], why)
    sh.write((sh.unknown(expression, sh.where),))
    sh.doubt = UnknownPiece(sh.capturing or expression, sh.where)
    return int(texts[0] in COMPARES)
