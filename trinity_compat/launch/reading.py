"""Entry points of reading: a script, a text or an argument vector becomes a `Reading`."""

from __future__ import annotations

import codecs
import gc
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

from trinity_compat.common import limits
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.limits import Budget, BudgetExceeded
from trinity_compat.common.readable_files import named_content
from trinity_compat.common.redaction import hidden, masked, remember
from trinity_compat.launch import job_files, unset_variables
from trinity_compat.launch.bash import machines, slurm
from trinity_compat.launch.bash.branch_search import Guesses, search
from trinity_compat.launch.bash.files import PathFacts, absolute
from trinity_compat.launch.bash.shell import code, statements
from trinity_compat.launch.bash.state import Reach, ReadingLog, Shell, UserVariable, Variable
from trinity_compat.launch.bash.traced_text import TextPiece, Value, lines_of, literal, text_of
from trinity_compat.launch.bash.tree import ParsedText
from trinity_compat.launch.bash.words import parameters
from trinity_compat.launch.bash.wrappers import external
from trinity_compat.launch.entrypoints import NO_USER_MAINS, is_launcher, names_training_main
from trinity_compat.launch.job_files import hydra_records
from trinity_compat.launch.job_files.printed_configuration import BEGINS, printed_configuration
from trinity_compat.launch.model import Reading, UnknownPiece

SYNTAX_ERROR = "TP001"
LOST_ARGUMENTS = "TP118"
BACKGROUND = "TP120"
SCHEDULED = "TP121"
_FIRST_WORD = re.compile(r"\s*(?:\w+=\S*\s+)*(\S+)")  # of a command, after its assignments
_POSITIONAL = re.compile(r"\$[1-9#@*]|\$\{#?[1-9@*]")
_ARGUMENTS = "; if it needs arguments, give them after --, as in: run.sh -- 8 out"
_SHOWN = 160  # characters of a command
_BINARY = 80  # bytes that bash searches for a NUL, the mark of a binary file


def read_script(
    path: str | os.PathLike[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    name: str | None = None,
    given: Collection[str] | None = None,
    mains: Mapping[str, str] = NO_USER_MAINS,
    content: bytes | None = None,
) -> Reading:
    """Read a shell script, or another file that starts training mains, without running any of it.

    ``cwd`` is the directory that bash would start in (default: the current one), ``env`` the known
    environment, ``args`` the script's own arguments, ``name`` how places are shown (default: ``path``),
    ``given`` the names of ``env`` that the user gave: one that the script never reads and sets itself is a
    diagnostic (default: all of them), ``mains`` the user's ``--main MODULE=MAIN`` (see `entrypoints.find`),
    ``content`` what is read in place of the file's own content.
    Raises `UserError` when the file can't be read.
    """
    file = Path(path)
    if file.is_dir():
        raise UserError(
            f"{os.fspath(path)} is a folder", hint="name a script in it; audit reads whole folders"
        )
    if not file.exists():
        raise UserError(f"no such script: {os.fspath(path)}")
    data = named_content(file, limits.SCRIPT, cwd) if content is None else content
    if problem := _no_text(data):
        raise UserError(f"{os.fspath(path)} {problem}")

    def start() -> Shell:
        shell = _shell(
            name or os.fspath(path), cwd, env or {}, args, given, mains, os.fspath(file.absolute())
        )
        shell.name = literal(os.fspath(path), shell.where)
        shell.scripts = [shell.name]
        return shell

    text = data.decode(errors="surrogateescape")
    contents = job_files.contents_of(name or os.fspath(path), text, args, env or {})
    return _read(start, text) if contents is None else _read_contents(start, contents)


def _no_text(data: bytes) -> str:
    """Return why a file cannot be a script, or an empty text; bash ignores a NUL that comes later."""
    if not data.strip():
        return "is empty"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "is UTF-16: save it as UTF-8"
    return "is not a text file" if b"\0" in data[:_BINARY] else ""


def _read_contents(start: Callable[[], Shell], contents: job_files.Contents) -> Reading:
    """Read the commands of a file that is not a shell script, each in its own shell."""
    shell = start()
    shell.positional, shell.log.unread = [], []
    with _bounded(shell):
        for command in contents.commands:
            child = shell.copy()
            child.where, child.stdin = command.where, command.stdin or None
            if command.cwd:
                child.cwd = literal(absolute(text_of(child.cwd), command.cwd), command.where)
            for path, value in command.files.items():
                child.files.write(path, value, append=False)
            for name, value in command.env.items():
                child.put(name, Variable(value=child.user_value(name, value), exported=True))
            child.assigned_unread = command.unread
            before = len(shell.log.launches)
            if (first := command.words[0] if command.words else command.code) and isinstance(
                first[0].source, UnknownPiece
            ):
                shell.warn(
                    "TP124",
                    f"this command cannot be read: {first[0].source.expression} is not computed from the"
                    " text; a training main in it is not found",
                    command.where,
                )
            if command.words:
                external.run(child, list(command.words), {})
            else:
                code.run_script_unit(child, code.unit_of(command.code, command.where))
            if command.condition and len(shell.log.launches) > before:
                shell.warn(
                    "TP101",
                    f"this launch depends on {command.condition}, which is known only at run time",
                    command.where,
                )
    if contents.stopped:
        shell.warn("TP112", contents.stopped, contents.stopped_at or Where(shell.unit.name), "error")
    shell.warn("TP116", contents.note, Where(shell.unit.name, 1))
    return _reading(shell.unit.name, shell)


def read_text(
    text: str,
    *,
    name: str = "-",
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    given: Collection[str] | None = None,
    mains: Mapping[str, str] = NO_USER_MAINS,
) -> Reading:
    """Read the text of a shell script; parameters as for `read_script`."""
    contents = hydra_records.of_log(name, text)

    def start() -> Shell:
        return _shell(name, cwd, env or {}, args, given, mains)

    return _read(start, text) if contents is None else _read_contents(start, contents)


def _read(start: Callable[[], Shell], text: str) -> Reading:
    """Read ``text`` in a new shell, again with other guesses until a launch is reached."""
    budget = Budget()

    def attempt(guesses: Guesses) -> Shell:
        shell = start()
        shell.budget, shell.log.guesses = budget, guesses
        _run(shell, text)
        return shell

    shell = search(attempt, lambda shell: bool(shell.log.launches))
    if not shell.log.launches and BEGINS in text and printed_configuration(text.splitlines()):
        raise UserError(
            "a log with the configuration that veRL printed, and no script",
            where=Where(shell.unit.name),
            hint="as a file it is a source of translate, audit, sizes, diff and upgrade",
        )
    stopped = any(found.severity == "error" for found in shell.log.diagnostics.values())
    if not shell.log.launches and shell.ended_at is None and not stopped:
        _warn_of_unreached(shell, text)
    wants = bool(_POSITIONAL.search(text)) and not start().positional
    return _reading(shell.unit.name, shell, _ARGUMENTS if wants else "")


def _warn_of_unreached(shell: Shell, text: str) -> None:
    """Name the first line of a script without a launch that would start one, where nothing is said of it."""
    for number, line in enumerate(text.splitlines(), 1):
        first = _FIRST_WORD.match(line)
        if first and is_launcher(first[1]) and names_training_main(line):
            if all(found.where.line != number for found in shell.log.diagnostics.values()):
                message = "this line would start a training main, and the script does not come to it"
                way = "give what decides that: --env NAME=VALUE, or arguments after --"
                shell.warn("TP111", f"{message}; {way}", Where(shell.unit.name, number))
            return


def _run(shell: Shell, text: str) -> None:
    name = shell.unit.name
    if len(text) > limits.SCRIPT:
        raise UserError(f"{name}: a script of more than {limits.SCRIPT >> 20} MiB is not read")
    if (len(text) - len(text.rstrip("\\"))) % 2:  # bash drops a backslash at the end of a file
        text = text[:-1]
    shell.log.source = (name, text)
    for variable, value in shell.schedule(slurm.of_script(text, name)).items():
        shell.variables[variable] = Variable(value=value, exported=True, given=True)
    holes: dict[str, TextPiece] = {}
    source = code.without_unreadable(text, holes, Where(name, 1)).encode(errors="surrogateescape")
    with _bounded(shell):
        code.run_script_unit(shell, ParsedText(name, source, holes=holes))


def read_argv(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    mains: Mapping[str, str] = NO_USER_MAINS,
) -> Reading:
    """Read a command line that is already split into words: ``python3 -m verl.trainer.main_ppo k=v``.

    The place of word i is ``argv:i``, counting from 0.
    """
    if not argv:
        raise UserError(
            "no command line is given", hint="--argv -- python3 -m verl.trainer.main_ppo key=value …"
        )
    shell = _shell("argv", None, env or {}, (), mains=mains)
    fields: list[Value] = [(TextPiece(word, Where("argv", index)),) for index, word in enumerate(argv)]
    with _bounded(shell):
        external.run(shell, fields, {})
    return _reading("argv", shell)


def _shell(
    name: str,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    args: Sequence[str],
    given: Collection[str] | None = None,
    mains: Mapping[str, str] = NO_USER_MAINS,
    named: str = "",
) -> Shell:
    start = Where(name, 0)
    root = os.path.abspath(os.fspath(cwd) if cwd is not None else os.getcwd())  # noqa: PTH100, PTH109
    shell = Shell(
        unit=ParsedText(name, b""),
        budget=Budget(),
        log=ReadingLog(mains=mains),
        files=PathFacts((root, named) if named else (root,)),
        name=literal(name, start),
        run=statements.run_isolated,
        run_statement=statements.run_statement,
        expand_parameter=parameters.expand,
        where=start,
    )
    shell.cwd = literal(root, start)
    shell.reach = Reach(hooked="BASH_ENV" in env)
    shell.positional = [lines_of(arg, start) if arg else () for arg in args]
    shell.log.unread = [value for value in shell.positional if value]
    for key, value in env.items():
        shell.variables[key] = Variable(value=literal(value, start), exported=True, given=True)
        if given is None or key in given:
            shell.log.given[key] = UserVariable(shell.variables[key].value or ())
    shell.variables["PWD"] = Variable(value=shell.cwd, exported=True, given=True)
    shell.scripts = [shell.name]
    return shell


@contextmanager
def _bounded(shell: Shell) -> Iterator[None]:
    """Bound the cost of a script; beyond the limits, the launches read so far are the reading.

    Garbage collection pauses: a walk through the caller's millions of objects would be charged to the script.
    """
    limit, collecting = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(limit, limits.RECURSION))
    gc.disable()
    try:
        yield
    except BudgetExceeded as error:
        shell.warn("TP112", f"reading stopped here: {error}", severity="error")
    except RecursionError:
        shell.warn("TP112", "reading stopped here: nested too deeply", severity="error")
    finally:
        sys.setrecursionlimit(limit)
        if collecting:
            gc.enable()


def refuse_lost_arguments(reading: Reading) -> None:
    """Raise UserError where the user gave a script arguments that it never reads.

    They would have no effect.
    """
    for found in reading.diagnostics:
        if found.code == LOST_ARGUMENTS:
            raise UserError(
                found.message,
                where=found.where,
                hint='end the command there with "$@", change its keys there, or give --set KEY=VALUE to'
                " translate and run",
            )


def refuse_broken_script(reading: Reading) -> None:
    """Raise UserError if a syntax error may be the reason why a script launches nothing."""
    broken = next((found for found in reading.diagnostics if found.code == SYNTAX_ERROR), None)
    if broken is not None and not reading.launches:
        raise UserError(f"{broken.message}, and no launch stands before it", where=broken.where)


def _warn_of_lost(log: ReadingLog, name: str) -> None:
    """Warn of variables and arguments that the user gave and the script never uses."""
    for name, given in log.given.items():
        if given.replaced is not None and not given.read:
            log.warn(
                "TP113",
                f"--env {name}={hidden(name, text_of(given.value))} has no effect: the script sets {name}"
                f" itself, here; write {name}=${{{name}:-…}} here, or give the key=value that it stands for"
                " with --set",
                given.replaced,
            )
    if log.unread and log.launches:
        lost = shlex.join(masked([text_of(word) for word in log.unread]))
        log.warn(
            LOST_ARGUMENTS,
            f'{name} never reads its arguments ("$@"): {lost} has no effect',
            log.launches[0].where,
            "error",
        )


def _warn_of_background(log: ReadingLog) -> None:
    """Warn of background programs before a launch, such as a server that its reward function requests."""
    for where, command in log.background.items():
        if len(log.launches) > command.before:
            words = masked(command.text.replace("\\\n", " ").split())
            log.warn(
                BACKGROUND,
                f"{shorten(' '.join(words), _SHOWN, placeholder=' …')} starts in the background"
                " before a launch:"
                " trinity-compat run starts it with the rest of the script; before a run of the YAML alone,"
                " start it yourself",
                where,
            )


def _reading(name: str, shell: Shell, hint: str = "") -> Reading:
    log = shell.log
    # the values of variables under a secret's name are hidden, in whatever text the script puts them
    for variable_name, variable in shell.variables.items():
        if variable.value:
            remember(variable_name, text_of(variable.value))
    for launch in log.launches:
        for variable_name, word in launch.env.items():
            remember(variable_name, word.text)
    _warn_of_lost(log, name)
    _warn_of_background(log)
    for used in log.scheduled if log.launches else ():
        if used.read:
            taken = f"${used.name} is {used.setting.value} ({used.setting.option}), as sbatch would set it"
            log.warn(SCHEDULED, f"{taken}; another value: --env {used.name}=…", used.setting.where)
    for where, message in unset_variables.warnings(log.launches):
        log.warn("TP119", message, where)
    if found := unset_variables.of_arguments(log.launches, log.lacking):
        log.warn("TP122", found[1], found[0])
    if not log.launches and shell.ended_at is not None:
        shell.warn("TP111", f"the script ends here before it starts a training main{hint}", shell.ended_at)
    others = (command for command in log.background.values() if not machines.STARTS.search(command.text))
    is_shared = len(log.launches) > 1 or any(others)
    launches = [replace(each, machines=replace(each.machines, shared=is_shared)) for each in log.launches]
    return Reading(name, tuple(launches), tuple(log.diagnostics.values()), log.surroundings)
