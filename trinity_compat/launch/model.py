"""What a launch is: one call of a veRL training main, and where each word of it came from.

A word's text is what bash would hand to Python under the environment that is known
(``--env``, the script's own assignments). Its parts keep what is not literal: a variable that
the script takes from its surroundings, or a value that cannot be known without running something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import Where


@dataclass(frozen=True, slots=True)
class EnvRef:
    """A piece that comes from an environment variable which the script itself doesn't set.

    ``default`` is the text of ``${NAME:-default}``; None when the script gives none. ``parts`` are
    the default's own pieces when it isn't literal (``${MODEL:-$HOME/models/x}``), else empty.
    ``required``: bash ends the script where it is unset (``${NAME:?}``, ``set -u``), else it is empty there.
    """

    name: str
    default: str | None = None
    parts: tuple[WordPart, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class UnknownPiece:
    """A piece that cannot be known without running something: ``$(nvidia-smi …)``, ``$(hostname)``.

    ``variable``: which the script sets to just that, so that ``--env`` can say it instead; else empty.
    """

    expression: str
    where: Where
    variable: str = ""


@dataclass(frozen=True, slots=True)
class WordPart:
    """One piece of a word. ``text`` is its value as far as it is known; of an Open a guess, most often ""."""

    text: str
    source: EnvRef | UnknownPiece | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """A string with its origin. ``"".join(part.text) == text`` always holds."""

    parts: tuple[WordPart, ...]
    where: Where

    @property
    def text(self) -> str:
        """The value under the known environment, byte for byte what bash hands on."""
        return "".join(part.text for part in self.parts)

    @property
    def open(self) -> tuple[UnknownPiece, ...]:
        """The pieces that static reading cannot know; empty for a settled word."""
        return tuple(part.source for part in self.parts if isinstance(part.source, UnknownPiece))

    @property
    def env_refs(self) -> tuple[EnvRef, ...]:
        """The environment variables that the value depends on."""
        return tuple(part.source for part in self.parts if isinstance(part.source, EnvRef))


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something about the script that its author should know. ``code`` is stable (TP…)."""

    code: str
    message: str
    where: Where
    severity: str = "warning"  # warning | error

    def __str__(self) -> str:
        """As the commands print it."""
        return f"{self.where}: {self.severity} {self.code} {self.message}"


@dataclass(frozen=True, slots=True)
class Start:
    """How the program of a launch is found: whether one that stands in front of it would be run instead.

    ``program`` is its word: ``python3``, ``/usr/bin/python3``. ``hooked``: bash starts it itself, having read
    the file that BASH_ENV names. ``path`` and ``python_path`` are PATH and PYTHONPATH in its environment;
    ``path`` is None where something that isn't read may have changed it. ``isolated``: it takes no code from
    the environment (``python -I``). ``elsewhere``: what takes it out of the script's reach (``docker exec``).
    """

    program: str
    hooked: bool = False
    path: str | None = ""
    python_path: str = ""
    isolated: bool = False
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a training main. ``arguments`` are everything after ``-m module``.

    ``main``: the translated main that ``module`` is taken for, empty where it is that itself, or none.
    """

    module: str
    arguments: tuple[Word, ...]
    where: Where
    env: Mapping[str, Word] = field(default_factory=dict)  # exported by the script, or prefixed
    wrapper: tuple[str, ...] = ()  # e.g. ("ray job submit",): what stands before python
    cwd: str = "."
    start: Start | None = None  # None: made otherwise than by reading
    main: str = ""
    # YAML files that the script itself has written before: what is in them, by absolute path
    wrote: Mapping[str, str] = field(default_factory=dict, repr=False)
    # absolute paths that the script has made before, or that a program which isn't read may have made
    made: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def taken_for(self) -> str:
        """The main whose configuration and trainer count."""
        return self.main or self.module


@dataclass(frozen=True, slots=True)
class Reading:
    """All launches of one source, in the order in which bash would make them.

    ``surroundings``: the variables that the script would take from its environment, each with the first
    place that reads it.
    """

    source: str
    launches: tuple[Launch, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    surroundings: Mapping[str, Where] = field(default_factory=dict)
