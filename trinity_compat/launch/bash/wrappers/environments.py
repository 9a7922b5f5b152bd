"""The environment of a command that a launcher starts: what goes along, and what its options set.

Sources: the programs' manuals: docker-run(1), sbatch(1) ``--export``, sudo(8), mpirun(1) of Open MPI and
MPICH, ``apptainer exec``, tmux(1) ``-e``, bsub(1) ``-env``, qsub(1) ``-v``, systemd-run(1), ``uv run``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from trinity_compat.launch.bash.shell.assignments import NAME
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    Prefix,
    Value,
    doubt_in,
    from_character,
    slice_value,
    text_of,
)
from trinity_compat.launch.model import EnvRef, UnknownPiece


@dataclass(frozen=True, slots=True)
class EnvironmentOptions:
    """The options of one launcher that make the environment of what it starts.

    ``inherits``: exported variables go along. ``sets`` take ``NAME=value``, or a ``NAME`` that goes along;
    ``pairs`` take a name and, as a word of its own, its value; ``lists`` take several of these with commas
    between, where ``ALL`` and ``NONE`` stand for what is exported; ``files`` name a file with a
    ``NAME=value`` on each line, whose values docker takes with their quotes (``literal_files``). With
    ``keeps`` exported variables go along, with ``clears`` they do not. ``words``: ``NAME=value`` may stand
    in front of the command.
    """

    inherits: bool = True
    sets: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    literal_files: bool = False
    keeps: tuple[str, ...] = ()
    clears: tuple[str, ...] = ()
    words: bool = False


_CONTAINER = EnvironmentOptions(inherits=False, sets=("-e", "--env"), files=("--env-file",))
_SLURM = EnvironmentOptions(lists=("--export",))
_MPI = EnvironmentOptions(sets=("-x",), pairs=("-env", "-genv"))
_SUDO = EnvironmentOptions(
    inherits=False, lists=("--preserve-env",), keeps=("-E", "--preserve-env"), words=True
)
_APPTAINER = EnvironmentOptions(
    lists=("--env",), files=("--env-file",), clears=("-e", "--cleanenv", "-C", "--containall")
)
# These hand on what they have.
_PLAIN = (
    "accelerate", "at", "chroot", "conda", "coverage", "deepspeed", "enroot", "flock", "gdb", "hatch",
    "ipython", "ltrace", "mamba", "micromamba", "ncu", "nsys", "pdm", "perf", "pipenv", "pixi", "poetry",
    "python", "python3", "rye", "screen", "script", "strace", "su", "torchrun", "valgrind", "watch",
)  # fmt: skip
LAUNCHERS: dict[str, EnvironmentOptions] = {
    "docker": replace(_CONTAINER, literal_files=True),
    **dict.fromkeys(("podman", "nerdctl"), _CONTAINER),
    **dict.fromkeys(("kubectl", "oc"), replace(_CONTAINER, sets=("--env",), files=())),
    **dict.fromkeys(("srun", "sbatch", "salloc"), _SLURM),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "horovodrun"), _MPI),
    **dict.fromkeys(("apptainer", "singularity"), _APPTAINER),
    "ssh": EnvironmentOptions(inherits=False),
    "pdsh": EnvironmentOptions(inherits=False),
    "sudo": _SUDO,
    "doas": replace(_SUDO, lists=(), keeps=(), words=False),
    "uv": EnvironmentOptions(files=("--env-file",)),
    "tmux": EnvironmentOptions(sets=("-e",)),
    "systemd-run": EnvironmentOptions(inherits=False, sets=("-E", "--setenv")),
    "bsub": EnvironmentOptions(lists=("-env",)),
    "qsub": EnvironmentOptions(inherits=False, lists=("-v",), keeps=("-V",)),
    **dict.fromkeys(_PLAIN, EnvironmentOptions()),
}


@dataclass(slots=True)
class CommandEnvironment:
    """Variables that a launcher's options set, and whether those of the script go along.

    ``given`` are the assignments in front of the launcher. ``unread``: a file, list or launcher that is not
    known, so that any variable may be set. ``mounts`` and ``cwd``: of a container, the folders that it has of
    the host, and the host's folder in which the command starts, where it is one of these.
    """

    inherits: bool
    given: Prefix
    variables: Prefix = field(default_factory=dict)
    mounts: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    unread: UnknownPiece | EnvRef | None = None

    @property
    def prefix(self) -> Prefix:
        """The variables that the command gets beside, or in place of, those of the script."""
        return {**self.given, **self.variables} if self.inherits else self.variables


def of_launcher(sh: Shell, name: str, words: Sequence[Value], prefix: Prefix) -> CommandEnvironment:
    """Read ``words``, those of the launcher ``name`` in front of the command that it starts."""
    options = LAUNCHERS.get(name)
    if options is None:
        return CommandEnvironment(inherits=True, given=prefix, unread=UnknownPiece(name, sh.where))
    found = CommandEnvironment(options.inherits, prefix)
    texts = [text_of(word) for word in words]
    found.inherits |= any(text in options.keeps for text in texts)
    found.inherits &= not any(text in options.clears for text in texts)
    for value in _values(words, options.lists):
        _read_list(sh, value, found)
    for value in _values(words, options.sets):
        read_one(sh, value, found)
    for index, text in enumerate(texts[:-2]):
        if text in options.pairs and NAME.fullmatch(texts[index + 1]):
            found.variables[texts[index + 1]] = words[index + 2]
    for value in _values(words, options.files):
        read_file(sh, value, found, as_it_stands=options.literal_files)
    for word in reversed(words) if options.words else ():
        if not re.match(r"[A-Za-z_]\w*=", text_of(word)):
            break
        read_one(sh, word, found)
    return found


def _values(words: Sequence[Value], options: tuple[str, ...]) -> Iterator[Value]:
    """The values of each of the options: ``-e V``, ``-eV``, ``--env V``, ``--env=V``."""
    for index, word in enumerate(words):
        text = text_of(word)
        for option in options:
            if text == option and not option.startswith("--preserve"):
                yield from words[index + 1 : index + 2]
            elif text.startswith(f"{option}="):
                yield from_character(word, len(option) + 1)
            elif len(option) == 2 and text.startswith(option) and text != option:
                yield from_character(word, 2)


def read_one(sh: Shell, value: Value, found: CommandEnvironment) -> None:
    """``NAME=value``, or a ``NAME`` whose value goes along."""
    text = text_of(value)
    name, equals, _ = text.partition("=")
    if not NAME.fullmatch(name):
        found.unread = found.unread or doubt_in([value])
    elif equals:
        found.variables[name] = from_character(value, len(name) + 1)
    else:
        _hand_on(sh, name, found)


def _hand_on(sh: Shell, name: str, found: CommandEnvironment) -> None:
    variable = sh.variables.get(name)
    if name in found.given:
        found.variables[name] = found.given[name]
    elif variable is not None and variable.exported and variable.value is not None:
        found.variables[name] = variable.value


def _read_list(sh: Shell, value: Value, environment: CommandEnvironment) -> None:
    """Slurm's ``ALL,NAME=value,NAME``; without ALL only these go along. LSF writes ``all`` and ``none``."""
    items = [slice_value(value, *found.span()) for found in re.finditer(r"[^,\s][^,]*", text_of(value))]
    if (doubt := doubt_in([value])) is not None and "=" not in text_of(items[-1] if items else ()):
        environment.unread = environment.unread or doubt
    names = [text_of(item).strip() for item in items]
    environment.inherits = "ALL" in map(str.upper, names)
    for item, name in zip(items, names, strict=True):
        if name.upper() not in ("ALL", "NONE", "NIL"):
            read_one(sh, item, environment)


_LINE = re.compile(r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=(.*)$", re.ASCII)
_UNQUOTED = re.compile(r"""\s*(?:"(.*?)"|'(.*?)'|(.*?))\s*(?:(?<!\S)#.*)?""")


def read_file(sh: Shell, name: Value, found: CommandEnvironment, *, as_it_stands: bool = False) -> None:
    """A file of ``NAME=value`` lines: quotes and comments are taken off, and a value with ``$`` is open.

    ``as_it_stands``: the value is all that stands behind the ``=``.
    """
    path = sh.files_path(name)
    content = None if doubt_in([name]) else sh.files.read(path)
    if content is None or (doubt := sh.files.unread_at(path)) is not None:
        why = doubt_in([name]) or UnknownPiece(text_of(name), sh.where)
        found.unread = found.unread or (why if content is None else doubt)
        return
    for match in _LINE.finditer(text_of(content)):
        span = match.span(2)
        if not as_it_stands and (plain := _UNQUOTED.fullmatch(match[2])):
            first, last = plain.span(plain.lastindex or 0)
            span = span[0] + first, span[0] + last
        value = slice_value(content, *span)
        if not as_it_stands and "$" in text_of(value) and not match[2].lstrip().startswith("'"):
            value = tuple(replace(bit, source=UnknownPiece(text_of(value), bit.where)) for bit in value)
        found.variables[match[1]] = value
