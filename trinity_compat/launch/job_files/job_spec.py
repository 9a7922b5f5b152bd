"""Job specifications in YAML: SkyPilot tasks, Kubernetes manifests, Ray jobs, compose files.

Their commands are shell code, or the words of a program. Templates (``{{ … }}``) are not filled in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch.bash.traced_text import Value, lines_of, literal
from trinity_compat.launch.entrypoints import PPO
from trinity_compat.launch.job_files import hydra_records
from trinity_compat.launch.ray_submit import env_vars
from trinity_compat.launch.source_contents import Contents, SourceCommand
from trinity_compat.launch.yaml_nodes import documents, elements, is_scalar, mapping, placed, plain_text

if TYPE_CHECKING:
    from yaml import Node

SKYPILOT, KUBERNETES, RAY = "a SkyPilot task", "a Kubernetes manifest", "a Ray job"
COMPOSE, OVERRIDES = "a compose file", "the overrides of a run, as Hydra keeps them"
_OF_SERVICE = {"image", "build", "command", "entrypoint", "extends"}
_OF_SKYPILOT = {"resources", "setup", "num_nodes", "workdir", "envs", "file_mounts", "name"}
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
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
            "neither a shell script nor a job specification (SkyPilot, Kubernetes, Ray job, compose)",
            where=Where(name),
            hint="translate and audit take a veRL configuration in YAML",
        )
    if kind == OVERRIDES:
        note = f"{kind}: the main is the one of hydra.yaml beside it, or {PPO}"
        return Contents((hydra_records.of_overrides(name, found[0]),), note)
    if kind == COMPOSE:
        note = f"{kind}: the commands of its services are read, as `docker compose up` starts them"
        return Contents((_of_compose(name, text),), note)
    commands = tuple(command for node in found for command in _commands(node, name))
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
    services = mapping(mapping(node).get("services")).values()
    if any(mapping(service).keys() & _OF_SERVICE for service in services):
        return COMPOSE
    return RAY if is_scalar(mapping(node).get("entrypoint")) else None


def _commands(node: Node, name: str) -> Iterator[SourceCommand]:
    items, kind = mapping(node), _kind(node)
    if kind == SKYPILOT:
        given = mapping(items.get("envs")).items()
        env = _of_skypilot(items) | {key: plain_text(value) for key, value in given}
        for key in ("setup", "run"):
            yield from _code(items.get(key), name, env)
    elif kind == RAY:
        variables = mapping(mapping(items.get("runtime_env")).get("env_vars")).items()
        yield from _code(items["entrypoint"], name, {key: plain_text(item) for key, item in variables})
    elif kind == KUBERNETES:
        for found in _below(node):
            yield from _container(mapping(found), name)


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


def _with_variables(value: Value, env: dict[str, str]) -> Value:
    """The text of ``command`` or ``args`` as Kubernetes fills it in: ``$(NAME)``, where it has the variable.

    ``$$(NAME)`` is ``$(NAME)`` (Kubernetes' documentation, "Define a Command and Arguments for a Container").
    """
    return tuple(
        replace(bit, text=_REFERENCE.sub(lambda found: _filled(found, env), bit.text)) for bit in value
    )


def _filled(found: re.Match[str], env: dict[str, str]) -> str:
    return "$" if found[0] == "$$" else env.get(found[1], found[0])


def _code(node: Node | None, name: str, env: dict[str, str]) -> Iterator[SourceCommand]:
    if node is not None and is_scalar(node):
        code = placed(node, name)
        where = code[0].where if code else Where(name)
        yield SourceCommand(where, code, env={key: literal(value, where) for key, value in env.items()})


def _container(items: dict[str, Node], name: str) -> Iterator[SourceCommand]:
    """One that has an image: its ``command`` and ``args`` are words; of a shell's the last is code.

    Ray's own manifests hold a job as text (``entrypoint``), and its runtime environment as YAML in a text.
    """
    if "entrypoint" in items:
        yield from _code(items["entrypoint"], name, env_vars(plain_text(items.get("runtimeEnvYAML"))))
    if "image" not in items:
        return
    nodes = [*elements(items.get("command")), *elements(items.get("args"))]
    pairs = [mapping(item) for item in elements(items.get("env"))]
    named = (pair for pair in pairs if {"name", "value"} <= pair.keys())
    env = {plain_text(pair["name"]): plain_text(pair["value"]) for pair in named}
    texts = [plain_text(item) for item in nodes]
    if texts[:1] and texts[0] in _SHELLS and any(text.startswith("-") and "c" in text for text in texts[1:]):
        yield from _code(nodes[-1], name, env)
    elif nodes:
        words = tuple(_with_variables(placed(item, name), env) for item in nodes)
        where = Where(name, nodes[0].start_mark.line + 1)
        variables = {key: literal(value, where) for key, value in env.items()}
        yield SourceCommand(where, words=words, env=variables)


def _below(node: Node) -> Iterator[Node]:
    """``node`` and every node in it; no more than a file of that size can need."""
    left = [node]
    for _ in range(_NODES):
        if not left:
            return
        found = left.pop()
        yield found
        left += [*reversed([*mapping(found).values(), *elements(found)])]
