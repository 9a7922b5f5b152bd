"""Services of compose files: what ``docker compose run``, ``exec`` and ``up`` start, in which environment.

Sources: docs.docker.com, "Compose file reference" (interpolation, merge, extends) and "docker compose".
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.files import absolute
from trinity_compat.launch.bash.options import OptionSpec, ParsedOptions
from trinity_compat.launch.bash.state import Shell, Variable
from trinity_compat.launch.bash.traced_text import (
    EMPTY,
    Prefix,
    TextPiece,
    Value,
    doubt_in,
    literal,
    named,
    slice_value,
    text_of,
)
from trinity_compat.launch.bash.words import lookup, parameters
from trinity_compat.launch.bash.wrappers.environments import CommandEnvironment, read_file, read_one
from trinity_compat.launch.model import EnvRef, UnknownPiece
from trinity_compat.launch.yaml_nodes import NULL, documents, elements, is_scalar, mapping, placed, plain_text

if TYPE_CHECKING:
    from yaml import Node

ALONE = {"docker-compose", "podman-compose"}
_WITH_COMPOSE = {"docker", "podman", "nerdctl"}
_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_OVERRIDES = tuple(name.replace(".y", ".override.y") for name in _FILES)


def _options(values: str, long: str, *, leading: bool = True) -> OptionSpec:
    """The options with a value. Of the ``long`` ones those that count here have a letter or a digit."""
    pairs = (each.partition("=") for each in long.split())
    letters = {f"--{name}": letter or "0" for name, _, letter in pairs}
    return OptionSpec(values=f"{values}0123", long=letters, leading=leading, lenient=True)


_DOCKER = _options("Hcl", "host context config log-level")
_PROJECT = _options(
    "fpHc",
    "file=f profile=1 env-file=2 project-directory=3 project-name host context ansi progress parallel",
)
_COMMAND = _options(
    "euvwpl",
    "env=e entrypoint=1 env-from-file=2 volume=v workdir=w user publish label name index cap-add cap-drop",
)
_UP = _options("t", "scale timeout exit-code-from attach no-attach pull wait-timeout", leading=False)
_REFERENCE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(:?[-?+])?)", re.ASCII)
_WORD = re.compile(r"""\s+|"((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.)|([^\s"'\\]+)""", re.S)
_FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?")
_DEEPEST = 8  # services that extend each other


def words_of(fields: Sequence[Value]) -> list[Value] | None:
    """The words behind ``docker compose`` or ``docker-compose``; None for another command."""
    name = text_of(fields[0]).rsplit("/", 1)[-1]
    if name in ALONE:
        return list(fields[1:])
    given = _DOCKER.read(fields[1:]) if name in _WITH_COMPOSE else None
    return given.operands[1:] if given and given.texts()[:1] == ["compose"] else None


def started(
    sh: Shell, words: Sequence[Value], prefix: Prefix
) -> Iterator[tuple[list[Value], CommandEnvironment]]:
    """Each command that ``docker compose`` with these words starts, with its environment."""
    given = _PROJECT.read(words)
    verb, *rest = given.operands if given else [EMPTY]
    if given is None or text_of(verb) not in ("run", "exec", "up", "start"):
        return
    project = _project(sh, given, prefix)
    if text_of(verb) in ("up", "start"):
        if project.unread is not None:
            _note_missed(project, project.unread)
        options = _UP.read(rest)
        named = options.texts() if options else []
        yield from _of_services(project, named or _enabled(project, given))
        return
    options = _COMMAND.read(rest)
    if options is None or not options.operands:
        return
    service, *own = options.operands
    if text_of(verb) == "run" and "--no-deps" not in map(text_of, rest):
        names = [name for name in _needed(project, [text_of(service)]) if name != text_of(service)]
        yield from _of_services(project, names)
    layers = project.services.get(text_of(service), [])
    unread = project.unread or doubt_in([service])
    if not layers and unread is None:
        unread = UnknownPiece(f"the service {text_of(service)} of {project.shown}", sh.where)
    environment = _environment(project, layers, options)
    call = own if text_of(verb) == "exec" else _command(project, layers, own, options)
    environment.unread = environment.unread or unread
    if not call and unread is not None:
        _note_missed(project, unread)
    elif call:
        yield call, environment


@dataclass(frozen=True, slots=True)
class _Layer:
    """The keys of a service in one file; ``folder`` is where its paths start."""

    keys: Mapping[str, Node]
    file: str
    folder: str


@dataclass(slots=True)
class _Project:
    """The services of a project, each as what its files say, one after the other.

    ``sh`` has the variables that interpolation takes; ``unread``: a file that cannot be read.
    """

    sh: Shell
    shown: str = ""
    services: dict[str, list[_Layer]] = field(default_factory=dict)
    unread: UnknownPiece | EnvRef | None = None

    def read(self, path: str, folder: str = "") -> dict[str, _Layer]:
        """The services of one file; ``-`` is stdin."""
        content = self.sh.stdin if path == "-" else self.sh.files.read(path)
        doubt = self.sh.files.unread_at(path) or doubt_in([content or EMPTY])
        nodes = _documents(text_of(content)) if content and doubt is None else []
        if not content or not nodes:
            self.unread = self.unread or doubt or UnknownPiece(posixpath.basename(path), self.sh.where)
            return {}
        file, folder = content[0].where.file, folder or posixpath.dirname(path)
        top = mapping(nodes[0])
        if "include" in top:
            self.unread = self.unread or UnknownPiece(f"include of {file}", self.sh.where)
        services = mapping(top["services"]) if "services" in top else top
        return {name: _Layer(mapping(node), file, folder) for name, node in services.items()}

    def add(self, path: str, folder: str) -> None:
        """Read a file on top of those before."""
        found = self.read(path, folder)
        for name in found:
            self.services.setdefault(name, []).extend(self._extended(found, name, path, _DEEPEST))

    def _extended(self, services: Mapping[str, _Layer], name: str, path: str, depth: int) -> list[_Layer]:
        """A service on top of the one that it ``extends``."""
        layer = services.get(name)
        if layer is None or not depth:
            self.unread = self.unread or UnknownPiece(f"extends: {name}", self.sh.where)
            return []
        base = layer.keys.get("extends")
        if base is None:
            return [layer]
        file, other = mapping(base).get("file"), mapping(base).get("service", base)
        if file is not None:
            path = absolute(layer.folder, plain_text(file))
            services = self.read(path)
        return [*self._extended(services, plain_text(other), path, depth - 1), layer]

    def mount(self, node: Node, layer: _Layer) -> tuple[str, str] | None:
        """A folder of the host that a service has, in the short or the long form."""
        keys = mapping(node)
        texts = [text_of(self.filled(keys[key], layer)) for key in ("source", "target") if key in keys]
        return _mount_of(":".join(texts) if keys else text_of(self.filled(node, layer)), layer.folder)

    def filled(self, node: Node, layer: _Layer) -> Value:
        """A scalar with its references to variables filled in."""
        pieces = (_filled(self.sh, bit.text, bit.where) for bit in placed(node, layer.file))
        return tuple(bit for value in pieces for bit in value)


def _documents(text: str) -> list[Node]:
    import yaml  # only here: reading a shell script needs none of it

    try:
        return documents(text)
    except yaml.YAMLError:
        return []


def _project(sh: Shell, given: ParsedOptions, prefix: Prefix) -> _Project:
    """The project of the files that ``-f`` names, or COMPOSE_FILE, or of the nearest one upwards."""
    shell = sh.child(prefix)
    named = given.options.get("f", [])
    if not named and (listed := shell.exported("COMPOSE_FILE")):
        named = [literal(name, sh.where) for name in text_of(listed).split(":")]
    paths = ["-" if text_of(name) == "-" else sh.files_path(name) for name in named]
    paths = paths or list(_default_files(sh))
    first = posixpath.dirname(paths[0]) if paths and paths[0] != "-" else text_of(sh.cwd)
    folder = sh.files_path(given.value("3")) if given.has("3") else first
    files = [sh.files_path(name) for name in given.options.get("2", [])]
    _take_variables(shell, files or [f"{folder}/.env"], needed=bool(files))
    project = _Project(shell, ", ".join(map(posixpath.basename, paths)), unread=doubt_in(named))
    for path in paths:
        project.add(path, folder)
    if not paths:
        project.shown = _FILES[0]
        project.unread = UnknownPiece(_FILES[0], sh.where)
    return project


def _default_files(sh: Shell) -> Iterator[str]:
    folder = text_of(sh.cwd)
    while not any(sh.files.kind(f"{folder}/{name}") == "file" for name in _FILES):
        if folder in ("/", ""):
            return
        folder = posixpath.dirname(folder)
    for names in (_FILES, _OVERRIDES):
        paths = (f"{folder}/{name}" for name in names)
        yield from [path for path in paths if sh.files.kind(path) == "file"][:1]


def _take_variables(sh: Shell, files: Sequence[str], *, needed: bool) -> None:
    """``.env`` or ``--env-file``: what the shell's own variables do not say."""
    found = CommandEnvironment(inherits=False, given={})
    for path in files:
        if needed or sh.files.kind(path) == "file":
            read_file(sh, literal(path, sh.where), found)
    sh.assigned_unread = found.unread or sh.assigned_unread
    for name, value in found.variables.items():
        if name in sh.variables:
            continue
        if sh.from_surroundings(name) and doubt_in([value]) is None:
            value = (TextPiece(text_of(value), sh.where, EnvRef(name, text_of(value))),)
        sh.variables[name] = Variable(value=value, exported=True)


def _filled(sh: Shell, text: str, where: Where) -> Value:
    """``$NAME``, ``${NAME}``, ``${NAME:-word}`` and its kind; ``$$`` is ``$``."""
    out: list[TextPiece] = []
    while (found := _REFERENCE.search(text)) is not None:
        out += literal(text[: found.start()], where)
        end = found.end()
        if found[0] == "$$":
            out.append(TextPiece("$", where))
        elif found[1]:
            out += lookup.lookup(sh, found[1], where) or EMPTY
        else:
            depth = 1  # to behind the brace that closes the one before the word
            while end < len(text) and depth:
                depth += (text[end] == "{") - (text[end] == "}")
                end += 1
            word = _filled(sh, text[found.end() : end - 1], where)
            out += parameters.or_word(sh, found[2], found[3] or "", word, where)
        text = text[end:]
    return (*out, *literal(text, where))


def _of_services(project: _Project, names: Sequence[str]) -> Iterator[tuple[list[Value], CommandEnvironment]]:
    """The commands of the services in the file, those that they depend on first."""
    for name in _needed(project, names):
        layers = project.services.get(name, [])
        if call := _command(project, layers, [], None):
            yield call, _environment(project, layers, None)


def _enabled(project: _Project, given: ParsedOptions) -> list[str]:
    """The services that ``up`` starts where it names none."""
    profiles = {text_of(value) for value in given.options.get("1", [])}
    profiles |= set(text_of(project.sh.exported("COMPOSE_PROFILES")).split(","))
    found = []
    for name, layers in project.services.items():
        own = {plain_text(node) for layer in layers for node in elements(layer.keys.get("profiles"))}
        if not own or "*" in profiles or not own.isdisjoint(profiles):
            found.append(name)
    return found


def _needed(project: _Project, names: Sequence[str]) -> list[str]:
    """The services with those that they depend on, each after its own."""
    found: dict[str, None] = {}
    pending = [(name, False) for name in reversed(names)]
    seen: set[str] = set()
    while pending:
        name, below_done = pending.pop()
        if below_done:
            found[name] = None
        elif name not in seen:
            seen.add(name)
            nodes = [layer.keys.get("depends_on") for layer in project.services.get(name, [])]
            below = [key for node in nodes for key in (*mapping(node), *map(plain_text, elements(node)))]
            pending += [(name, True), *((other, False) for other in reversed(below))]
    return list(found)


def _note_missed(project: _Project, why: UnknownPiece | EnvRef) -> None:
    message = f"docker compose starts what {project.shown} says, and {named(why)} cannot be read here"
    project.sh.warn("TP109", f"{message}; a training main that it starts is not found")


def _command(
    project: _Project, layers: Sequence[_Layer], own: Sequence[Value], options: ParsedOptions | None
) -> list[Value]:
    """The words that the container runs: the entry point, and the command of the line or of the file."""
    entry = _words(project, layers, "entrypoint")
    command = list(own) or _words(project, layers, "command")
    if options is not None and options.has("1"):
        entry, command = _split(options.value("1")), list(own)
    return [*entry, *command]


def _words(project: _Project, layers: Sequence[_Layer], key: str) -> list[Value]:
    """``command`` or ``entrypoint`` as the last file has it: a list of words, or a text that is split."""
    layer = next((layer for layer in reversed(layers) if key in layer.keys), None)
    if layer is None:
        return []
    node = layer.keys[key]
    if is_scalar(node):
        return [] if node.tag == NULL else _split(project.filled(node, layer))
    return [project.filled(item, layer) for item in elements(node)]


def _split(value: Value) -> list[Value]:
    """The words of a text, split as a shell splits them, their quotes taken off."""
    # an open piece without a text is a character while the text is split
    marked = tuple(replace(bit, text="\ue000") if bit.source and not bit.text else bit for bit in value)
    words: list[Value] = []
    inside = False
    for found in _WORD.finditer(text_of(marked)):
        if found.lastindex is None:
            inside = False
            continue
        piece = slice_value(marked, *found.span(found.lastindex))
        if found.lastindex == 1:
            piece = tuple(replace(bit, text=re.sub(r'\\(["\\])', r"\1", bit.text)) for bit in piece)
        words[-1:] = [(*words[-1], *piece)] if inside else [*words[-1:], piece]
        inside = True
    return [tuple(replace(bit, text=bit.text.replace("\ue000", "")) for bit in word) for word in words]


def _environment(
    project: _Project, layers: Sequence[_Layer], options: ParsedOptions | None
) -> CommandEnvironment:
    """The variables of a container: ``env_file``, above it ``environment``, above that ``-e``."""
    found = CommandEnvironment(inherits=False, given={})
    sh, given = project.sh, options.options if options else {}
    for layer in layers:
        files = layer.keys.get("env_file")
        for node in elements(files) or ([files] if files is not None and is_scalar(files) else []):
            keys = mapping(node)
            path = project.filled(keys.get("path", node), layer)
            full = literal(absolute(layer.folder, text_of(path)), sh.where) if not doubt_in([path]) else path
            optional = plain_text(keys.get("required")) == "false" and sh.files.kind(text_of(full)) == ""
            if not optional:
                read_file(sh, full, found)
    for layer in layers:
        variables = layer.keys.get("environment")
        for item in elements(variables):
            read_one(sh, project.filled(item, layer), found)
        for name, item in mapping(variables).items():
            if item.tag == NULL:
                read_one(sh, literal(name, sh.where), found)
            else:
                found.variables[name] = _as_go_prints(project.filled(item, layer), item)
    found.mounts, found.cwd = _folders(project, layers, given)
    for value in given.get("2", []):
        read_file(sh, value, found)
    for value in given.get("e", []):
        read_one(sh, value, found)
    return found


def _folders(
    project: _Project, layers: Sequence[_Layer], given: Mapping[str, list[Value]]
) -> tuple[tuple[tuple[str, str], ...], str]:
    """The mounts of a container, the deeper ones first, and the host's folder in which its command starts."""
    here = text_of(project.sh.cwd)
    volumes = [project.mount(node, layer) for layer in layers for node in elements(layer.keys.get("volumes"))]
    volumes += [_mount_of(text_of(value), here) for value in given.get("v", [])]
    mounts = tuple(sorted(filter(None, volumes), reverse=True))
    named = [(layer.keys["working_dir"], layer) for layer in layers if "working_dir" in layer.keys]
    places = [*(project.filled(node, layer) for node, layer in named), *given.get("w", [])]
    if not places:
        return mounts, ""
    place = replace(project.sh, mounts=mounts).files_path(places[-1])
    return mounts, place if place != absolute("/", text_of(places[-1])) else ""


def _mount_of(text: str, folder: str) -> tuple[str, str] | None:
    """``HOST:CONTAINER[:ro]`` as the folder in the container and the host's; None for a named volume."""
    host, target, *_ = [*text.split(":"), ""]
    return (target.rstrip("/"), absolute(folder, host)) if host[:1] in (".", "/") and target else None


def _as_go_prints(value: Value, node: Node) -> Value:
    """A number with a point or an exponent that is not quoted, as Compose writes it: 1e-6 is 1e-06."""
    text = plain_text(node)
    if getattr(node, "style", None) is not None or not _FLOAT.fullmatch(text):
        return value
    return literal(repr(float(text)).removesuffix(".0"), value[0].where)
