"""A launch, one call of a veRL training main, and the origin of each of its words.

A word's text is what Python would receive from bash under the known environment (``--env``, the script's own
assignments). Its parts keep every piece that is not literal: a variable of the surrounding environment, or a
value that only running something reveals.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trinity_compat.common.errors import Where
from trinity_compat.common.redaction import shown_message


@dataclass(frozen=True, slots=True)
class EnvRef:
    """A piece that comes from an environment variable which the script does not set.

    ``default`` is the text of ``${NAME:-default}``; None when the script gives none. ``parts`` are the
    default's own pieces when it is not literal (``${MODEL:-$HOME/models/x}``), else empty. ``required``: bash
    ends the script where the variable is unset (``${NAME:?}``, ``set -u``); otherwise it is empty there.

    Raises ValueError where ``parts`` hold an `UnknownPiece`, at any depth: then the value is not known
    either, and the unknown piece stands in its place (``${LR:-$(cmd)}`` is as open as ``$(cmd)``).
    """

    name: str
    default: str | None = None
    parts: tuple[WordPart, ...] = ()
    required: bool = False

    def __post_init__(self) -> None:
        """Check that the default is known."""
        if any(isinstance(part.source, UnknownPiece) for part in self.parts):
            raise ValueError(f"the default of ${self.name} is not known")


@dataclass(frozen=True, slots=True)
class UnknownPiece:
    """A piece that only running something reveals: ``$(nvidia-smi …)``, ``$(hostname)``.

    ``variable`` is the name that the script sets to exactly this piece, or whose default holds it, so that
    ``--env`` can set it instead; else empty. ``words``: not quoted, so that it may become any number of
    words: how many elements or arguments there are is not known, nor which of them the later ones are.
    """

    expression: str
    where: Where
    variable: str = ""
    words: bool = False


@dataclass(frozen=True, slots=True)
class WordPart:
    """One piece of a word; ``text`` is its value, or for an `UnknownPiece` a guess, most often empty."""

    text: str
    source: EnvRef | UnknownPiece | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """A string with its origin. ``"".join(part.text) == text`` always holds."""

    parts: tuple[WordPart, ...]
    where: Where

    @property
    def text(self) -> str:
        """The value under the known environment, byte for byte as bash passes it."""
        return "".join(part.text for part in self.parts)

    @property
    def named(self) -> str:
        """The value with what is not known here by its name: ``$HOME/data``, ``$(nvidia-smi …)``."""
        return "".join(map(_named, self.parts))

    @property
    def open(self) -> tuple[UnknownPiece, ...]:
        """The pieces that static reading cannot resolve; empty for a resolved word."""
        return tuple(part.source for part in self.parts if isinstance(part.source, UnknownPiece))

    @property
    def env_refs(self) -> tuple[EnvRef, ...]:
        """The environment variables that the value depends on."""
        return tuple(part.source for part in self.parts if isinstance(part.source, EnvRef))


def _named(part: WordPart) -> str:
    source = part.source
    if isinstance(source, UnknownPiece):
        return source.expression
    if isinstance(source, EnvRef) and source.parts and part.text == source.default:
        return "".join(map(_named, source.parts))
    if isinstance(source, EnvRef) and not part.text and source.default is None:
        return f"${source.name}"
    return part.text


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A message about a line of the script. ``code`` is stable (TP…)."""

    code: str
    message: str
    where: Where
    severity: str = "warning"  # warning | error

    def __post_init__(self) -> None:
        """Hide secrets in the words that the message repeats."""
        object.__setattr__(self, "message", shown_message(self.message))

    @property
    def loses(self) -> bool:
        """Return whether bash does something else with the user's words than the user seems to mean."""
        return self.code in ("TP002", "TP003", "TP004", "TP007")

    def __str__(self) -> str:
        """Format the message as the commands print it."""
        return f"{self.where}: {self.severity} {self.code} {self.message}"


@dataclass(frozen=True, slots=True)
class Start:
    """The way in which bash finds the program of a launch, which decides how `run` can intercept it.

    ``program`` is its word: ``python3``, ``/usr/bin/python3``. ``hooked``: bash starts it itself, after
    the file that BASH_ENV names. ``path`` and ``python_path`` are PATH and PYTHONPATH in its environment;
    ``path`` is None where unread code may have changed it. ``isolated``: Python takes no code from the
    environment (``python -I``). ``elsewhere`` is the program that runs it on another machine or in a
    container (``docker exec``), else empty; ``travels``: the environment goes there, too (``srun``).
    """

    program: str
    hooked: bool = False
    path: str | None = ""
    python_path: str = ""
    isolated: bool = False
    elsewhere: str = ""
    travels: bool = False


@dataclass(frozen=True, slots=True)
class MachineLine:
    """A line of the script that says a number of machines, or of the GPUs of one."""

    count: int
    written: str
    where: Where


@dataclass(frozen=True, slots=True)
class RayStart:
    """A ``ray start`` before the launch. ``visible``: CUDA_VISIBLE_DEVICES there; ``open``: not known."""

    where: Where
    head: bool
    gpus: MachineLine | None
    visible: MachineLine | None
    open: bool


@dataclass(frozen=True, slots=True)
class Machines:
    """The script's lines on machines and GPUs, as far as they are known.

    ``nodes`` and ``gpus`` of one are the scheduler's; ``packs``: it may put several of these nodes on one
    machine. ``whole``: ``starts`` has every ``ray start`` of the script. ``alone``: that of a head, and
    nothing in the script starts Ray elsewhere or waits for it. ``unsplit``: quoted lists of hosts that stand
    where a list of words is meant. ``shared``: the script starts other programs, or launches, too.
    """

    nodes: MachineLine | None = None
    gpus: MachineLine | None = None
    packs: bool = False
    starts: tuple[RayStart, ...] = ()
    whole: bool = False
    alone: bool = False
    unsplit: tuple[MachineLine, ...] = ()
    shared: bool = False


def visible_devices(names: str) -> int:
    """Return how many GPUs CUDA_VISIBLE_DEVICES names: an empty name, or -1, ends the list."""
    devices = (name.strip() for name in names.split(","))
    return sum(1 for _ in itertools.takewhile(lambda name: name not in ("", "-1"), devices))


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a training main. ``arguments`` are everything after ``-m module``.

    ``main`` is the translated main that ``module`` is taken for, empty where it is one itself, or for none.
    """

    module: str
    arguments: tuple[Word, ...]
    where: Where
    env: Mapping[str, Word] = field(default_factory=dict)  # exported by the script, or prefixed
    wrapper: tuple[str, ...] = ()  # e.g. ("ray job submit",): what stands before python
    cwd: str = "."
    start: Start | None = None  # None: not read from a script
    main: str = ""
    # contents of the YAML files that the script has written before, by absolute path
    wrote: Mapping[str, str] = field(default_factory=dict, repr=False)
    # absolute paths that the script has created before, or that an unread program may have created
    created: frozenset[str] = field(default=frozenset(), repr=False)
    torchrun: tuple[Word, ...] = ()  # the options of a torchrun that starts it
    # variables of its environment that the user gave (--env, --resolve), with their values
    environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # variables of the script's surroundings that its environment lacks: the script, or `env -u`, unset them;
    # with "*" among them (`env -i`) all that `env` hasn't
    unset: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    # variables that the script sets and doesn't export: in its environment where the surroundings have them
    assigned: Mapping[str, Word] = field(default_factory=dict, repr=False, compare=False)
    file: str = field(default="", repr=False)  # of a main that is started by its path: where it is here
    # below which its files may be read (`common.readable_files`); empty: it is not read from a script
    roots: tuple[str, ...] = field(default=(), repr=False, compare=False)
    # YAML and Python files, and folders with "/" at the end, that an unread program wrote before, or may have
    # changed: path → the program (see `files.changed_by`)
    unread: Mapping[str, UnknownPiece | None] = field(default_factory=dict, repr=False)
    machines: Machines = field(default=Machines(), repr=False, compare=False)

    def lacks(self, name: str) -> bool:
        """Return whether its environment is known to be without a variable."""
        return name not in self.env and not {*self.unset, *self.assigned}.isdisjoint((name, "*"))

    @property
    def knows_all_keys(self) -> bool:
        """Return whether the key of each argument is known: one that is open as a whole may set any."""
        return not any(word.open and "=" not in word.text for word in self.arguments)

    @property
    def taken_for(self) -> str:
        """The main whose configuration and trainer count."""
        return self.main or self.module


@dataclass(frozen=True, slots=True)
class Reading:
    """All launches of one source, in the order in which bash would start them.

    ``surroundings`` are the variables that the script would take from its environment, each with the first
    place that reads it.
    """

    source: str
    launches: tuple[Launch, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    surroundings: Mapping[str, Where] = field(default_factory=dict)


_LINES = 5  # that are named; more are counted only


def merged(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The diagnostics with those that say the same joined to the first, which then names the other lines."""
    groups: dict[tuple[str, str, str, str], list[Diagnostic]] = {}
    for each in found:
        groups.setdefault((each.code, each.severity, each.message, each.where.file), []).append(each)
    out: list[Diagnostic] = []
    for first, *others in groups.values():
        lines = [str(line) for line in dict.fromkeys(other.where.line for other in others) if line]
        if lines:
            shown = ", ".join(lines[:_LINES]) + (", …" if len(lines) > _LINES else "")
            times = f"{1 + len(others)} times: also line{'s' if len(lines) > 1 else ''} {shown}"
            first = replace(first, message=f"{first.message} ({times})")
        out.append(first)
    return out
