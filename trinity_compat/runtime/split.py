"""Who gets which GPUs in a run: those that the launch names, split as ``translate`` splits them.

veRL runs rollout and training on the same GPUs, one after the other; here both go on at once, apart.
``explorer.rollout_model.engine_num`` × ``tensor_parallel_size`` of the YAML are the explorer's, the rest of
``cluster`` the trainer's. Where ``--set`` gives the rollout of a YAML GPUs of its own (``rollout.nnodes``),
they stay beside the trainer's; and a CPU has none to split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trinity_compat.dotted import value_at
from trinity_compat.errors import UserError
from trinity_compat.gpus import ENGINES, give_engines, trainer_gpus
from trinity_compat.translate.sections.gpus import SEQUENCE, Machine, halvings, sharing
from trinity_compat.translate.trinity_reader import TrinityReader as Reading


def split_gpus(
    verl: dict[str, Any],
    config: Mapping[str, Any],
    *,
    mode: str,
    explorers: int,
    device: str,
    sets: Sequence[str] = (),
) -> list[str]:
    """Write the shares into ``verl``, the explorer's as GPUs of its rollout's own; return lines for the user.

    Raises UserError where no split can run, or the YAML's own can't.
    """
    trainer, rollout = verl["trainer"], verl["actor_rollout_ref"]["rollout"]
    total = trainer_gpus(verl)
    if rollout.get("nnodes"):
        return []
    lines = list(_on_one(verl, mode)) if device != "cpu" and total == 1 else []
    if mode == "colocate":
        return lines
    if device == "cpu" or total == 1:
        return [*lines, *_by_hand(rollout, config, sets, explorers, device)]
    machine, tensor_parallel, explorer = _split(verl, _asked(config, total))
    engines = explorer // tensor_parallel
    each = _of_each(engines, explorers, f"the explorers' {explorer} GPUs hold {engines} of {tensor_parallel}")
    lines = list(_lowered(verl, tensor_parallel, machine.sequence))
    share = total - explorer
    trainer["nnodes"], trainer["n_gpus_per_node"] = _nodes(share, machine.per_node)
    used = f"{engines} engine(s) of {tensor_parallel}"
    lines.append(
        f"{total} GPUs = {explorer} for generation ({used}) + {share} for training; --set {ENGINES}=N"
    )
    give_engines(rollout, each, device)
    return lines


def _on_one(verl: dict[str, Any], mode: str) -> Iterator[str]:
    """A launch with one GPU trains on it alone; in mode colocate its engine has no other either."""
    width = verl["actor_rollout_ref"]["rollout"]["tensor_model_parallel_size"]
    return _lowered(verl, 1 if mode == "colocate" else width, 1)


def _of_each(engines: int, explorers: int, why: str) -> int:
    """Engines of each explorer. Raises UserError where that leaves some over: they would stand idle, on GPUs
    that the trainer could use."""
    if engines % explorers:
        fits = " or ".join(str(number) for number in range(1, engines + 1) if engines % number == 0)
        raise UserError(
            f"--explorers {explorers}: they cannot share {engines} engine(s) evenly; {why}",
            hint=f"write --explorers {fits}, or --set {ENGINES}=N, a multiple of {explorers}",
        )
    return engines // explorers


def _by_hand(
    rollout: dict[str, Any], config: Mapping[str, Any], sets: Sequence[str], explorers: int, device: str
) -> list[str]:
    """Where there is nothing to split: as many engines as ``--set`` says, one where it doesn't."""
    if not any(text.partition("=")[0] == ENGINES for text in sets):
        return []
    engines = Reading(config).get(ENGINES)
    if type(engines) is not int or engines < explorers:
        raise UserError(f"--set {ENGINES}={engines}: each of --explorers {explorers} needs one at least")
    give_engines(rollout, _of_each(engines, explorers, f"--set {ENGINES}={engines}"), device)
    return [f"{engines} engine(s) for generation"]


def _asked(config: Mapping[str, Any], total: int) -> int | None:
    """The explorer's GPUs as the YAML says, None where it doesn't or speaks of another number in all."""
    reading = Reading(config)
    engines, width = (
        reading.get(f"explorer.rollout_model.{name}") for name in ("engine_num", "tensor_parallel_size")
    )
    cluster = [reading.get(f"cluster.{name}", 1) for name in ("node_num", "gpu_per_node")]
    if not isinstance(engines, int) or math.prod(cluster) != total:
        return None
    return engines * (width or 1)


def _split(verl: Mapping[str, Any], asked: int | None) -> tuple[Machine, int, int]:
    """(what is split, the engine's tensor parallel size, the explorer's GPUs): the first sizes that fit, the
    sequence's and the engine's being halved, as neither changes what is computed."""
    actor, rollout = "actor_rollout_ref.actor", verl["actor_rollout_ref"]["rollout"]
    megatron = value_at(verl, f"{actor}.strategy") == "megatron"
    sequence = sharing(actor, lambda key: int(value_at(verl, key) or 1), megatron=megatron)
    for sp in [sequence] if megatron else halvings(sequence):
        for tp in halvings(int(rollout["tensor_model_parallel_size"])):
            machine = _machine(verl, tp, sp)
            choices = machine.choices()
            if asked in choices:
                return machine, tp, asked
            if choices and asked is None:
                return machine, tp, machine.nearest_half(choices)
    raise _impossible(_machine(verl, int(rollout["tensor_model_parallel_size"]), sequence), asked)


def _impossible(machine: Machine, asked: int | None) -> UserError:
    explorer = asked or max(machine.engine, machine.total // 2)
    able = [count // machine.engine for count in machine.choices()]
    return UserError(
        f"{machine.total} GPUs, {explorer} of them for the explorer: {machine.fault(explorer)}",
        hint=f"--set {ENGINES}=N, where N may be {', '.join(map(str, able))}"
        if able
        else "give the run more GPUs, smaller parallel sizes, or another ppo_mini_batch_size",
    )


def _machine(verl: Mapping[str, Any], tp: int, sp: int) -> Machine:
    trainer, actor = verl["trainer"], verl["actor_rollout_ref"]["actor"]
    experiences = int(actor["ppo_mini_batch_size"]) * int(verl["actor_rollout_ref"]["rollout"]["n"])
    return Machine(int(trainer["nnodes"]), int(trainer["n_gpus_per_node"]), tp, 0, experiences, sp)


def _lowered(verl: dict[str, Any], tp: int, sp: int) -> Iterator[str]:
    """Write the sizes that fit a share, with a line for each that is smaller than the launch's."""
    arr = verl["actor_rollout_ref"]
    if tp != arr["rollout"]["tensor_model_parallel_size"]:
        yield f"rollout.tensor_model_parallel_size = {tp}: the explorer's share of the GPUs holds no more"
        arr["rollout"]["tensor_model_parallel_size"] = tp
    if arr["actor"].get("strategy") == "megatron":
        return
    roles = {"actor": arr["actor"], "ref": arr.get("ref") or {}, "critic": verl.get("critic") or {}}
    for name, role in roles.items():
        if int(role.get(SEQUENCE) or 1) > sp:
            yield f"{name}.{SEQUENCE} = {sp}: the trainer's share of the GPUs holds no more"
            role[SEQUENCE] = sp


def _nodes(gpus: int, per_node: int) -> tuple[int, int]:
    return (gpus // per_node, per_node) if gpus > per_node else (1, gpus)
