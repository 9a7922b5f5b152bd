"""The environment of a command that a launcher starts: what goes along, and what its options set."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trinity_compat.common.errors import Where
from trinity_compat.common.nested import section_at, value_at
from trinity_compat.launch.bash.options import OptionSpec
from trinity_compat.launch.bash.shell.assignments import NAME
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    Prefix,
    TextPiece,
    Value,
    doubt_in,
    from_character,
    literal,
    slice_value,
    text_of,
)
from trinity_compat.launch.launchers import LAUNCHERS, name_of
from trinity_compat.launch.model import EnvRef, UnknownPiece

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")


# Commands that set variables of what a launcher starts later: their operands, the launcher, and whether a
# name and its value are two words.
SETTERS: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "tmux": (("setenv",), "tmux", True),
    "screen": (("setenv",), "screen", True),
    "kubectl": (("set", "env"), "kubectl", False),
    "oc": (("set", "env"), "oc", False),
    "systemctl": (("set-environment",), "systemd-run", False),
    **dict.fromkeys(("conda", "mamba"), (("env", "config", "vars", "set"), "conda", False)),
}
_OF_SETTERS = OptionSpec(
    values="tSncpLf", long={"--env": "e", "--name": "n", "--namespace": "n", "--from": "F"}, lenient=True
)


@dataclass(slots=True)
class CommandEnvironment:
    """Variables that a launcher's options set, and whether those of the script go along.

    ``given`` are the assignments in front of the launcher, ``scheduled`` what a scheduler sets where nothing
    else does. ``unread``: a file, list or launcher that is not
    known, so that any variable may be set. ``mounts`` and ``cwd``: of a container, the folders that it has of
    the host, and the host's folder in which the command starts, where it is one of these.
    """

    inherits: bool
    given: Prefix
    variables: Prefix = field(default_factory=dict)
    scheduled: Prefix = field(default_factory=dict)
    mounts: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    unread: UnknownPiece | EnvRef | None = None
    unexported: Prefix = field(default_factory=dict)  # handed on, see `Shell.unexported`

    @property
    def prefix(self) -> Prefix:
        """The variables that the command gets beside, or in place of, those of the script."""
        return {**self.scheduled, **(self.given if self.inherits else {}), **self.variables}


def of_launcher(sh: Shell, name: str, words: Sequence[Value], prefix: Prefix) -> CommandEnvironment:
    """Read ``words``, those of the launcher ``name`` in front of the command that it starts."""
    options = LAUNCHERS.get(name)
    if options is None:
        return CommandEnvironment(inherits=True, given=prefix, unread=UnknownPiece(name, sh.where))
    found = CommandEnvironment(options.inherits, prefix)
    for option, variable in ((options.lists, options.listed), (options.files, options.filed)):
        given = prefix.get(variable) or (sh.exported(variable) if variable else ())
        if given and not any(True for _ in values_of(words, option)):
            words = [(*literal(f"{option[0]}=", sh.where), *given), *words]
    texts = [text_of(word) for word in words]
    _add_kept(sh, name, texts, found)
    opening = next((text for text in texts if options.opens and text.startswith(options.opens)), "")
    if opening:
        found.unread = UnknownPiece(f"{name} {opening}", sh.where)
    found.inherits |= any(text in options.keeps for text in texts)
    found.inherits &= not any(text in options.clears for text in texts)
    for start in options.carries:
        exported = {key: sh.exported(key) for key in sh.variables} | prefix
        carried = {key: value for key, value in exported.items() if value and key.startswith(start)}
        found.variables |= {key.removeprefix(start): value for key, value in carried.items()}
    if options.manifest:
        _activate_pixi(sh, words, found)
    own = literal(options.own_file, sh.where)
    if own and sh.files.kind(sh.files_path(own)) == "file":
        read_file(sh, own, found)
    for value in values_of(words, options.files):  # which options overrule, wherever they stand
        read_file(sh, value, found, as_it_stands=options.literal_files)
    for value in values_of(words, options.lists):
        _read_list(sh, value, found, only=options.only)
    for value in values_of(words, options.sets):
        read_one(sh, value, found)
    for index, text in enumerate(texts[:-2]):
        if text in options.pairs and NAME.fullmatch(texts[index + 1]):
            found.variables[texts[index + 1]] = words[index + 2]
    for word in reversed(words) if options.words else ():
        if not ASSIGNMENT.match(text_of(word)):
            break
        read_one(sh, word, found)
    found.variables = {name: sh.user_value(name, value) for name, value in found.variables.items()}
    return found


def keep_setting(sh: Shell, fields: Sequence[Value]) -> bool:
    """Keep what a command of SETTERS sets for later; False for another command."""
    program = name_of(text_of(fields[0]))
    words, launcher, apart = SETTERS.get(program, ((), "", False))
    given = _OF_SETTERS.read(fields[1:]) if launcher else None
    if given is None:
        return False
    texts = given.texts()
    if program == "tmux" and texts[:1] == ["set-environment"]:
        texts[0] = "setenv"
    if tuple(texts[: len(words)]) != words:
        return False
    kept = sh.log.kept.setdefault(launcher, {})
    operands = [*given.operands[len(words) :], *given.options.get("e", [])]
    why = UnknownPiece(" ".join([program, *words]), sh.where)
    target = given.text("t")
    if apart and operands:
        known = len(operands) == 2 and not given.has("Fru")
        kept[text_of(operands[0])] = target, operands[1] if known else (TextPiece("", sh.where, why),)
    for operand in [] if apart else operands:
        name, equals, _ = text_of(operand).partition("=")
        if equals and NAME.fullmatch(name):
            kept[name] = target, from_character(operand, len(name) + 1)
        elif name.endswith("-") or doubt_in([operand]):
            kept[name.rstrip("-")] = target, (TextPiece("", sh.where, why),)
        elif launcher in ("kubectl", "oc"):
            target = name
    if given.has("F") and not apart:
        kept[""] = target, (TextPiece("", sh.where, why),)
    return True


def _add_kept(sh: Shell, name: str, texts: Sequence[str], found: CommandEnvironment) -> None:
    """Add what was set before; open where it may be of another session or pod, or of one that runs."""
    for key, (target, value) in sh.log.kept.get(name, {}).items():
        there = not target or any(text == target or text.startswith(f"{target}:") for text in texts)
        if not there or (not {"send-keys", "send", "exec"}.isdisjoint(texts) and name in ("tmux", "screen")):
            value = (TextPiece(text_of(value), sh.where, UnknownPiece(f"{name} {texts[0]}", sh.where)),)
        if NAME.fullmatch(key):
            found.variables[key] = value
        else:
            found.unread = doubt_in([value])


def _activate_pixi(sh: Shell, words: Sequence[Value], found: CommandEnvironment) -> None:
    """The activation of pixi's project; what only some of its environments or machines have is open."""
    given = [*values_of(words, ("--manifest-path", "-m")), literal("pixi.toml", sh.where)]
    paths = [sh.files_path(each) for each in [*given[:1], literal("pyproject.toml", sh.where)]]
    path = next((path for path in paths if sh.files.kind(path) == "file"), paths[0])
    why = UnknownPiece(f"the activation of {path.rpartition('/')[2]}", sh.where)
    content = sh.files.read(path)
    project = None if content is None else _toml(text_of(content))
    if content is None or project is None or doubt_in([content]):
        found.unread = why
        return
    if path.endswith("pyproject.toml"):
        project = value_at(project, "tool.pixi")
    for place, section in _activations(project or {}):
        if section.get("scripts"):
            found.unread = why
        for name, value in section_at(section, "env").items():
            known = not place and isinstance(value, str) and "$" not in value and name not in found.variables
            piece = TextPiece(str(value), Where(path, 1), None if known else why)
            found.variables[name] = (piece,)


def _toml(text: str) -> Mapping[str, object] | None:
    """Return what a TOML file holds, None where it is wrong. Python 3.10 reads none."""
    if sys.version_info < (3, 11):
        return None
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _activations(project: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each activation of a project, with the feature or the platform that it is of; its own first."""
    yield "", section_at(project, "activation")
    for kind in ("feature", "target"):
        for name, section in section_at(project, kind).items():
            if isinstance(section, Mapping):
                yield from ((f"{name}{place}", found) for place, found in _activations(section) if found)


def of_script(name: str, script: Value, words: Sequence[Value]) -> list[Value]:
    """The words that the lines of a scheduler's script add in front of those of its command line.

    Of Slurm's ``--export`` the command line's alone counts.
    """
    options = LAUNCHERS[name]
    found: list[Value] = []
    for line in text_of(script).splitlines():
        if line.strip() and not line.startswith("#"):
            break
        start = next((start for start in options.directives if line.startswith(start)), "")
        if start:
            place = script[0].where
            found += [literal(word, place) for word in line.removeprefix(start).split()]
    if "--export" in options.lists and any(True for _ in values_of(words, options.lists)):
        return list(words)
    return [*found, *words]


def values_of(words: Sequence[Value], options: tuple[str, ...]) -> Iterator[Value]:
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
        variable = sh.variables.get(name)
        if name in found.given:
            found.variables[name] = found.given[name]
        elif variable is not None and variable.exported and variable.value is not None:
            found.variables[name] = variable.value
        elif name in (assigned := sh.assigned_alone()):
            found.unexported[name] = assigned[name]


def _read_list(sh: Shell, value: Value, environment: CommandEnvironment, *, only: bool) -> None:
    """Slurm's ``ALL,NAME=value,NAME``; without ALL only these go along. LSF writes ``all`` and ``none``."""
    items = [slice_value(value, *found.span()) for found in re.finditer(r"[^,\s][^,]*", text_of(value))]
    if (doubt := doubt_in([value])) is not None and "=" not in text_of(items[-1] if items else ()):
        environment.unread = environment.unread or doubt
    names = [text_of(item).strip() for item in items]
    if only:
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
