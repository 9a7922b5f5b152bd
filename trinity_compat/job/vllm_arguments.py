"""vLLM's engine arguments by release, and what a release makes of the arguments of an older one.

Data: ``translators/generated/vllm/arguments.json`` says from which release to which vLLM takes an argument,
and which are switches (scripts/generate/make_vllm_arguments.py); ``upgrade.jsonl`` has a row for each that is
gone: its ``new`` name (dotted for a field of a section), null where it says nothing any more. With ``values``
only the values listed there (as JSON text) are carried, null being nothing; others, and rows without a new
name and without values to drop, are refused with what to ``write``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypedDict

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.releases import VLLM_ON_CPU as CPU
from trinity_compat.common.releases import VLLM_ON_GPU as GPU
from trinity_compat.common.resources import data_json, data_path
from trinity_compat.common.suggestions import nearest, question

SECTION = "actor_rollout_ref.rollout.engine_kwargs.vllm"


class _Arguments(TypedDict):
    """arguments.json: ``arguments`` has the first and the last release that takes each."""

    releases: list[str]
    booleans: list[str]
    arguments: dict[str, list[str]]


class _Always(TypedDict):
    old: str
    new: str | None
    why: str


class _Row(_Always, total=False):
    """A line of upgrade.jsonl."""

    values: dict[str, object]
    write: str


@dataclass(frozen=True, slots=True)
class ArgumentTranslation:
    """One argument under another release of vLLM.

    ``written``: dotted names with values, empty where the release gets nothing. ``why``: "" where the release
    has the argument itself. ``refused``: what to write instead.
    """

    written: Mapping[str, object] = field(default_factory=dict)
    why: str = ""
    refused: str = ""


def release_for(device: str) -> str:
    """Return the vLLM release of a run's engines on ``device``."""
    return CPU if device == "cpu" else GPU


def given_in(verl: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the arguments that a veRL configuration passes to vLLM unchanged."""
    kwargs = verl["actor_rollout_ref"]["rollout"].get("engine_kwargs") or {}
    found: Mapping[str, object] = kwargs.get("vllm") or {}
    return found


def set_by_verl(value: Callable[[str], object], rollout: str = "actor_rollout_ref.rollout") -> dict[str, str]:
    """Return the arguments that veRL sets over the launch's own, each with the key that it follows.

    ``value``: of a key of veRL's. ``rollout``: the engine's section; adapters have only the policy's. Source:
    ``launch_server`` in veRL 0.9.1's vllm_async_server.py, where ``args`` change after ``engine_kwargs``.
    Those of data-parallel ranks are refused (``run_refusals``).
    """
    model = f"{rollout.rpartition('.')[0]}.model"
    experts, images = f"{rollout}.expert_parallel_size", f"{rollout}.limit_images"
    replay, split = f"{rollout}.enable_rollout_routing_replay", f"{rollout}.disaggregation.enabled"
    found = {"enable_expert_parallel": experts}
    if value(images):
        found["limit_mm_per_prompt"] = images
    rank = next((key for key in (f"{model}.lora.rank", f"{model}.lora_rank") if value(key)), "")
    if rank and not value(f"{model}.lora.merge"):
        names = ["enable_lora", "max_loras", "max_lora_rank"]
        if value(f"{model}.lora.fully_sharded_loras"):
            names.append("fully_sharded_loras")
        found |= dict.fromkeys(names, rank)
    if value(replay):
        found["enable_return_routed_experts"] = replay
    if value(split):
        found["kv_transfer_config"] = split
    if value(f"{rollout}.prometheus.enable") and value(name := f"{rollout}.prometheus.served_model_name"):
        found["served_model_name"] = name
    return found


@cache
def arguments_of(release: str) -> frozenset[str]:
    """Return the arguments that vLLM ``release`` takes, one of the releases in arguments.json."""
    taken = _arguments()
    order = taken["releases"]
    at = order.index(release)
    return frozenset(
        name
        for name, (first, last) in taken["arguments"].items()
        if order.index(first) <= at <= order.index(last)
    )


def is_switch(name: str) -> bool:
    """Return whether vLLM's argument is true or false: its command line takes no value for it."""
    return name.replace("-", "_") in _arguments()["booleans"]


def fate(name: str, value: object, release: str) -> ArgumentTranslation:
    """Translate the argument ``name`` with ``value`` to ``release``."""
    if value is None:
        return ArgumentTranslation(why="null says nothing")
    if name in arguments_of(release):
        return ArgumentTranslation({name: value})
    row = _rows().get(name)
    if row is None:
        return ArgumentTranslation(refused=_unknown(name, release))
    values, new = row.get("values"), row["new"]
    if values is None:
        return ArgumentTranslation({new: value} if new else {}, row["why"])
    text = json.dumps(value)
    if text not in values:
        return ArgumentTranslation(why=row["why"], refused=f"write {row.get('write') or new}")
    replacement = values[text]
    return ArgumentTranslation({new: replacement} if new and replacement is not None else {}, row["why"])


def carried(given: Mapping[str, object], release: str) -> dict[str, object]:
    """Translate ``given`` to ``release``.

    A value that became part of a section joins what is given of that section, which wins. Raises UserError
    for the first argument that the release lacks and nothing replaces.
    """
    written: dict[str, object] = {}
    for name, value in given.items():
        found = fate(name, value, release)
        if found.refused:
            raise refusal(name, value, release, found)
        written |= found.written
    out = {name: value for name, value in written.items() if "." not in name}
    for path in (name for name in written if "." in name):
        section, _, part = path.partition(".")
        out[section] = {part: written[path], **section_of(section, out.get(section))}
    return out


def section_of(name: str, value: object) -> dict[str, object]:
    """Return the argument ``name``, a dictionary or JSON text for vLLM; empty for null.

    Raises UserError for another value.
    """
    try:
        found = json.loads(value) if isinstance(value, str) and value else value
    except json.JSONDecodeError as error:
        raise UserError(f"{SECTION}.{name}={value}: is not JSON ({error})") from error
    if not found:
        return {}
    if not isinstance(found, Mapping):
        raise UserError(f"{SECTION}.{name}={value}: is not a dictionary")
    return dict(found)


def refusal(
    name: str,
    value: object,
    release: str,
    found: ArgumentTranslation,
    where: Where | None = None,
    section: str = SECTION,
) -> UserError:
    """Return the error for an argument that ``release`` cannot take."""
    message = f"{section}.{name}={value}: vLLM {release} has no argument {name}"
    return UserError(f"{message} ({found.why})" if found.why else message, where=where, hint=found.refused)


def changes(given: Mapping[str, object], release: str) -> Iterator[str]:
    """Yield a line for each argument that ``release`` gets under another name, or not at all."""
    for name, value in given.items():
        found = fate(name, value, release)
        if found.refused or name in found.written or value is None:
            continue
        became = (
            ", ".join(f"{path}={replacement}" for path, replacement in found.written.items()) or "nothing"
        )
        yield f"{SECTION}.{name}={value}: vLLM {release} gets {became} ({found.why})"


def _unknown(name: str, release: str) -> str:
    span = _arguments()["arguments"].get(name)
    if span:
        return f"leave it out: it came with vLLM {span[0]}"
    near = nearest(name, sorted(arguments_of(release) | _rows().keys()), cutoff=0.75)
    return question(near) or f"vLLM {release} has nothing like it: leave it out"


def _arguments() -> _Arguments:
    return data_json("translators/generated/vllm/arguments.json")


@cache
def _rows() -> Mapping[str, _Row]:
    text = data_path("translators/by_hand/vllm/upgrade.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["old"]: row for row in rows}
