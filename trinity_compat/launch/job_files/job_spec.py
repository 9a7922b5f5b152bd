"""Job specifications in YAML: of SkyPilot, dstack, Kubernetes, Ray, Azure ML, GitHub and Docker Compose.

Their commands are shell code, or the words of a program. What ``${{ … }}`` gives is open; other templates
(``{{ … }}``) are not filled in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch.bash.traced_text import TextPiece, Value, lines_of, literal
from trinity_compat.launch.entrypoints import PPO
from trinity_compat.launch.job_files import hydra_records
from trinity_compat.launch.model import UnknownPiece
from trinity_compat.launch.ray_submit import env_vars
from trinity_compat.launch.source_contents import Contents, SourceCommand
from trinity_compat.launch.yaml_nodes import documents, elements, is_scalar, mapping, placed, plain_text

if TYPE_CHECKING:
    from yaml import Node

SKYPILOT, KUBERNETES, RAY = "a SkyPilot task", "a Kubernetes manifest", "a Ray job"
DSTACK, GITHUB, AZURE = "a dstack configuration", "a GitHub workflow", "an Azure ML job"
COMPOSE, OVERRIDES = "a compose file", "the overrides of a run, as Hydra keeps them"
_OF_SERVICE = {"image", "build", "command", "entrypoint", "extends"}
_OF_SKYPILOT = {"resources", "setup", "num_nodes", "workdir", "envs", "file_mounts", "name"}
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
_TEMPLATE = re.compile(r"\$\{\{(.*?)\}\}", re.S)  # of GitHub and Azure ML
_GPUS = re.compile(r"(?:.*:)?(\d+)(?::\d+GB)?")  # dstack: H100:80GB:8, H100:8, 8
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")  # what Kubernetes fills in
_NODES = 20_000  # of one file, aliases followed


def kind_of(text: str) -> str | None:
    """Return the kind of a job specification, or None for any other YAML."""
    import yaml  # only here: reading a shell script needs none of it

    try:
        return _kind_of(documents(text))
    except yaml.YAMLError:
        return None


def read(name: str, text: str) -> Contents:
    """Return a job specification's commands, with their lines. Raises UserError for any other YAML."""
    import yaml

    try:
        found = documents(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = Where(name, mark.line + 1 if mark else 0)
        raise UserError(f"not a YAML file: {getattr(error, 'problem', error)}", where=where) from None
    kind = _kind_of(found)
    if kind is None:
        raise UserError(
            "neither a shell script nor a job specification (SkyPilot, dstack, Kubernetes, Ray job, Azure ML,"
            " GitHub workflow, compose)",
            where=Where(name),
            hint="translate and audit take a veRL configuration in YAML",
        )
    if kind == OVERRIDES:
        note = f"{kind}: the main is the one of hydra.yaml beside it, or {PPO}"
        return Contents((hydra_records.of_overrides(name, found[0]),), note)
    if kind == COMPOSE:
        note = f"{kind}: the commands of its services are read, as `docker compose up` starts them"
        return Contents((_of_compose(name, text),), note)
    mounted = _config_maps(found, name)
    commands = tuple(command for node in found for command in _commands(node, name, mounted))
    return Contents(commands, f"{kind}: its commands are read as bash would, its templates are not filled in")


def _kind_of(nodes: list[Node]) -> str | None:
    return next(filter(None, map(_kind, nodes)), None)


def _kind(node: Node) -> str | None:
    if hydra_records.are_overrides(node):
        return OVERRIDES
    keys = set(mapping(node))
    if {"apiVersion", "kind"} <= keys:
        return KUBERNETES
    if "run" in keys and keys & _OF_SKYPILOT:
        return SKYPILOT
    if "commands" in keys and plain_text(mapping(node).get("type")) in ("task", "service", "dev-environment"):
        return DSTACK
    if any("steps" in mapping(job) for job in mapping(mapping(node).get("jobs")).values()):
        return GITHUB
    if is_scalar(mapping(node).get("command")) and keys & {"$schema", "code", "environment"}:
        return AZURE
    services = mapping(mapping(node).get("services")).values()
    if any(mapping(service).keys() & _OF_SERVICE for service in services):
        return COMPOSE
    return RAY if is_scalar(mapping(node).get("entrypoint")) else None


def _commands(node: Node, name: str, maps: Mapping[str, Mapping[str, Value]]) -> Iterator[SourceCommand]:
    items, kind = mapping(node), _kind(node)
    if kind == SKYPILOT:
        env = _literals(_of_skypilot(items), name) | _variables(items.get("envs"), name)
        for key in ("setup", "run"):
            yield from _code(items.get(key), name, env)
    elif kind == DSTACK:
        yield from _of_dstack(items, name)
    elif kind == GITHUB:
        yield from _of_github(items, name)
    elif kind == AZURE:
        for found in _code(items["command"], name, _variables(items.get("environment_variables"), name)):
            yield replace(found, cwd=plain_text(items.get("code")))
    elif kind == RAY:
        given = mapping(items.get("runtime_env")).get("env_vars")
        yield from _code(items["entrypoint"], name, _variables(given, name))
    elif kind == KUBERNETES:
        volumes = {
            plain_text(volume["name"]): maps.get(plain_text(mapping(volume["configMap"]).get("name")), {})
            for volume in map(mapping, _below(node))
            if {"name", "configMap"} <= volume.keys()
        }
        for container in map(mapping, _below(node)):
            files: dict[str, Value] = {}
            for mount in map(mapping, elements(container.get("volumeMounts"))):
                held = volumes.get(plain_text(mount.get("name")), {})
                path, one = plain_text(mount.get("mountPath")).rstrip("/"), plain_text(mount.get("subPath"))
                files |= {path if one else f"{path}/{name}": held[name] for name in held if one in ("", name)}
            env, unread = _environment(container, maps, name)
            for command in _container(container, name, env):
                yield replace(command, files=files, unread=unread)


def _environment(
    container: Mapping[str, Node], maps: Mapping[str, Mapping[str, Value]], name: str
) -> tuple[dict[str, Value], UnknownPiece | None]:
    """Return the variables of a container, and what may set others: a map or a secret of another file.

    ``env`` wins over ``envFrom``, and may name what stands before it. The command of a RayJob is one of its
    head's container.
    """
    head = mapping(mapping(container.get("rayClusterSpec")).get("headGroupSpec"))
    for first in elements(mapping(mapping(head.get("template")).get("spec")).get("containers"))[:1]:
        return _environment(mapping(first), maps, name)
    found: dict[str, Value] = {}
    unread = None
    for source in map(mapping, elements(container.get("envFrom"))):
        held = maps.get(plain_text(mapping(source.get("configMapRef")).get("name")))
        if held is None:
            unread = UnknownPiece("envFrom", _place(source, name))
        found |= {f"{plain_text(source.get('prefix'))}{key}": value for key, value in (held or {}).items()}
    for item in map(mapping, elements(container.get("env"))):
        variable = plain_text(item.get("name"))
        if "value" in item:
            found[variable] = _with_variables(placed(item["value"], name), found)
        elif variable:
            of_map = mapping(mapping(item.get("valueFrom")).get("configMapKeyRef"))
            held = maps.get(plain_text(of_map.get("name")), {})
            place = _place(item, name)
            opened = (TextPiece("", place, UnknownPiece(f"valueFrom of {variable}", place)),)
            found[variable] = held.get(plain_text(of_map.get("key")), opened)
    return found, unread


def _place(items: Mapping[str, Node], name: str) -> Where:
    return Where(name, min((node.start_mark.line + 1 for node in items.values()), default=0))


def _config_maps(nodes: Sequence[Node], name: str) -> dict[str, dict[str, Value]]:
    """Return the files of each ConfigMap of a manifest, by its name."""
    found = (mapping(node) for node in nodes)
    maps = (items for items in found if plain_text(items.get("kind")) == "ConfigMap")
    return {
        plain_text(mapping(items.get("metadata")).get("name")): {
            file: placed(content, name) for file, content in mapping(items.get("data")).items()
        }
        for items in maps
    }


def _of_dstack(items: dict[str, Node], name: str) -> Iterator[SourceCommand]:
    """One script of all commands, with the variables that dstack sets on the first node.

    See dstack's docs, "Tasks": ``nodes``, ``env`` and "System environment variables".
    """
    lines = [placed(each, name) for each in elements(items["commands"])]
    gpu = mapping(items.get("resources")).get("gpu")
    gpus = _GPUS.fullmatch(plain_text(mapping(gpu).get("count", gpu)))
    own = {"DSTACK_NODES_NUM": plain_text(items.get("nodes")) or "1", "DSTACK_NODE_RANK": "0"}
    own |= {"DSTACK_GPUS_PER_NODE": gpus[1]} if gpus else {}
    pairs = (plain_text(each).partition("=") for each in elements(items.get("env")))
    own |= {key: text for key, is_set, text in pairs if is_set}
    env = _literals(own, name) | _variables(items.get("env"), name)
    code = tuple(bit for line in lines if line for bit in (*line, *literal("\n", line[-1].where)))
    yield SourceCommand(code[0].where if code else Where(name), code, env=env)


def _of_github(items: dict[str, Node], name: str) -> Iterator[SourceCommand]:
    """The steps of each job, with the variables of workflow, job and step."""
    for job in map(mapping, mapping(items.get("jobs")).values()):
        for step in map(mapping, elements(job.get("steps"))):
            given = (_variables(each.get("env"), name) for each in (items, job, step))
            env = {key: value for variables in given for key, value in variables.items()}
            for found in _code(step.get("run"), name, env):
                yield replace(found, cwd=plain_text(step.get("working-directory")))


def _of_compose(name: str, text: str) -> SourceCommand:
    """``docker compose up`` of every service, whatever its profile, from the text and the file's folder."""
    where = Where(name, 1)
    folder = os.path.abspath(os.path.dirname(name))  # noqa: PTH100, PTH120
    words = ("docker", "compose", "-f", "-", "--project-directory", folder, "--profile", "*", "up")
    return SourceCommand(
        where, words=tuple(literal(word, where) for word in words), stdin=lines_of(text, where)
    )


def _of_skypilot(items: dict[str, Node]) -> dict[str, str]:
    """Return the variables that SkyPilot sets on the first node; a number that is not written out stays open.

    See SkyPilot's docs, "Environment variables".
    """
    nodes = items.get("num_nodes")
    counts = {"SKYPILOT_NUM_NODES": plain_text(nodes) if nodes is not None else "1"}
    accelerators = mapping(items.get("resources")).get("accelerators")
    if accelerators is None:
        counts["SKYPILOT_NUM_GPUS_PER_NODE"] = "0"
    else:
        named = [plain_text(count) for count in mapping(accelerators).values()]
        if not named and (text := plain_text(accelerators)):  # H100:8, or H100 for one
            named = [text.partition(":")[2] or "1"]
        if len(named) == 1:  # not a choice
            counts["SKYPILOT_NUM_GPUS_PER_NODE"] = named[0]
    known = {name: text for name, text in counts.items() if text.isdigit()}
    return {"SKYPILOT_NODE_RANK": "0", **known}


def _with_variables(value: Value, env: Mapping[str, Value]) -> Value:
    """The text of ``command`` or ``args`` as Kubernetes fills it in: ``$(NAME)``, where it has the variable.

    ``$$(NAME)`` is ``$(NAME)`` (Kubernetes' documentation, "Define a Command and Arguments for a Container").
    """
    out: list[TextPiece] = []
    for bit in value:
        end = 0
        for found in _REFERENCE.finditer(bit.text):
            out.append(replace(bit, text=bit.text[end : found.start()]))
            as_it_is = literal("$" if found[0] == "$$" else found[0], bit.where)
            out += env.get(found[1] or "", as_it_is)
            end = found.end()
        out.append(replace(bit, text=bit.text[end:]))
    return tuple(out)


def _code(node: Node | None, name: str, env: Mapping[str, Value]) -> Iterator[SourceCommand]:
    if node is not None and is_scalar(node):
        code = _with_templates(placed(node, name))
        yield SourceCommand(code[0].where if code else Where(name), code, env=env)


def _variables(node: Node | None, name: str) -> dict[str, Value]:
    return {key: _with_templates(placed(item, name)) for key, item in mapping(node).items()}


def _literals(texts: Mapping[str, str], name: str) -> dict[str, Value]:
    return {key: literal(text, Where(name)) for key, text in texts.items()}


def _with_templates(value: Value) -> Value:
    """The text with a piece that is not known in place of each ``${{ … }}``."""
    out: list[TextPiece] = []
    for bit in value:
        end = 0
        for found in _TEMPLATE.finditer(bit.text):
            out.append(replace(bit, text=bit.text[end : found.start()]))
            out.append(TextPiece("", bit.where, UnknownPiece(found[0], bit.where)))
            end = found.end()
        out.append(replace(bit, text=bit.text[end:]))
    return tuple(out)


def _container(items: dict[str, Node], name: str, env: Mapping[str, Value]) -> Iterator[SourceCommand]:
    """One that has an image: its ``command`` and ``args`` are words; of a shell's the last is code.

    Ray's own manifests hold a job as text (``entrypoint``), and its runtime environment as YAML in a text.
    """
    if "entrypoint" in items:
        given = env_vars(plain_text(items.get("runtimeEnvYAML")))
        yield from _code(items["entrypoint"], name, {**env, **_literals(given, name)})
    if "image" not in items:
        return
    nodes = [*elements(items.get("command")), *elements(items.get("args"))]
    texts = [plain_text(item) for item in nodes]
    if texts[:1] and texts[0] in _SHELLS and any(text.startswith("-") and "c" in text for text in texts[1:]):
        for found in _code(nodes[-1], name, env):
            yield replace(found, code=_with_variables(found.code, env))
    elif nodes:
        words = tuple(_with_variables(placed(item, name), env) for item in nodes)
        yield SourceCommand(Where(name, nodes[0].start_mark.line + 1), words=words, env=env)


def _below(node: Node) -> Iterator[Node]:
    """``node`` and every node in it; no more than a file of that size can need."""
    left = [node]
    for _ in range(_NODES):
        if not left:
            return
        found = left.pop()
        yield found
        left += [*reversed([*mapping(found).values(), *elements(found)])]
