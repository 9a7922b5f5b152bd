"""The reward model: its engines and its GPUs.

Stock veRL 0.9.1 serves it on the trainer's GPUs in turns with everything else, or on a pool of its own
(``reward.reward_model.enable_resource_pool``). Here its engines are awake for the whole run: on the pool,
beside the launch's other GPUs; without one, on a share of them that ``translate`` has chosen. A CPU has one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.job.gpus import reward_model_places
from trinity_compat.job.served_models import ServedModel, entry
from trinity_compat.run.plan import served
from trinity_compat.run.plan.verl_view import VerlView
from trinity_compat.translate.sections.gpus import halvings
from trinity_compat.translate.sections.reward import (
    AUXILIARY,
    ENABLE,
    MODEL,
    POOL,
    TENSOR_PARALLEL,
    engine_settings,
    is_taught,
    share_of,
)
from trinity_compat.translate.trinity_reader import TrinityReader

_WHO = "the reward model"
_OF_PROFILE = ("dtype", "enforce_eager")  # settings that the CPU profile has for every model
_POOL = (f"{MODEL}.nnodes", f"{MODEL}.n_gpus_per_node")
_OWN_POOL = (
    f"write {POOL}=True with {_POOL[0]} and {_POOL[1]}, which are GPUs of its own; or"
    " serve it elsewhere and ask it from reward.custom_reward_function"
)


@dataclass(frozen=True, slots=True)
class RewardModelPlacement:
    """A configuration with the reward model in its place.

    GPUs ``taken`` of the launch's own, or ``added`` to them as ``translate`` counts a cluster; ``note`` on
    the split, "" where there is nothing to say.
    """

    verl: VerlView
    lines: list[str]
    taken: int = 0
    added: int = 0
    note: str = ""


def with_reward_model(
    verl: VerlView, config: Tree, *, device: str, mode: str, explorers: int, room: int | None = None
) -> RewardModelPlacement:
    """Place the reward model, and the YAML's further models.

    ``config``: the Trinity configuration. ``explorers``: the number of commands that serve a part of each.
    ``room``: the GPUs that models may take, by default all but one for each side. Raises UserError for models
    that do not fit.
    """
    room = verl.trainer.gpus - 2 if room is None else room
    further = _further_models(config)
    if not value_at(verl.tree, ENABLE):
        if further and is_taught(TrinityReader(config)):
            raise UserError(
                f"{AUXILIARY}.1: the first model is the teacher, which the trainer holds; no other is served"
                " beside it",
                hint="leave it out, or serve it elsewhere and ask it from the workflow",
            )
        return RewardModelPlacement(verl, [])
    first = _first_placed(verl, config, device=device, mode=mode, explorers=explorers, room=room)
    name = value_at(config, f"{AUXILIARY}.0.name")
    models = [ServedModel(str(value_at(verl.tree, f"{MODEL}.model_path")), name and str(name)), *further]
    if device == "cpu":
        for number, each in enumerate(models):
            kept = {key: value for key, value in each.settings.items() if key not in _OF_PROFILE}
            models[number] = replace(each, engines=1, width=1, settings=kept)
    placement = replace(first, verl=first.verl.changed(entry(models)))
    return placement if device == "cpu" else _with_further_models(placement, further, explorers, room)


def _further_models(config: Tree) -> list[ServedModel]:
    """Return the YAML's models after the first. Raises UserError for one without a path."""
    models = []
    for place, given in enumerate(value_at(config, AUXILIARY) or ()):
        if place == 0:
            continue
        settings = engine_settings(TrinityReader(config), place)
        reading = TrinityReader(given)
        if not (path := reading.get("model_path")):
            raise UserError(
                f"{AUXILIARY}.{place}.model_path is missing: a model needs a folder or a hub's name"
            )
        name = reading.get("name")
        engines, width = (int(reading.get(size) or 1) for size in ("engine_num", "tensor_parallel_size"))
        models.append(ServedModel(str(path), name and str(name), engines, width, settings))
    return models


def _with_further_models(
    placement: RewardModelPlacement, further: Sequence[ServedModel], explorers: int, room: int
) -> RewardModelPlacement:
    """Take the GPUs of further models from the launch's."""
    if not further:
        return placement
    for each in further:
        served.checked_engines(each.engines, explorers, _WHO)
    more = sum(each.engines * each.width for each in further)
    total = placement.verl.trainer.gpus
    if placement.taken + more > room:
        raise UserError(
            f"{AUXILIARY}: {placement.taken + more} GPUs for its models leave of {total} none for both"
            " trainer and explorer",
            hint="lower engine_num or tensor_parallel_size, or serve a model elsewhere",
        )
    note = f"{placement.note}, {more} for {len(further)} further model(s)"
    return replace(placement, taken=placement.taken + more, note=note)


def _first_placed(
    verl: VerlView, config: Tree, *, device: str, mode: str, explorers: int, room: int
) -> RewardModelPlacement:
    """Place the launch's own reward model."""
    if not value_at(verl.tree, f"{MODEL}.model_path"):
        raise UserError(f"{ENABLE}=True: {MODEL}.model_path is not set", hint=f"write {MODEL}.model_path=…")
    on_vllm, lines = served.on_vllm(verl, f"{MODEL}.rollout", _WHO)
    if device == "cpu":
        return RewardModelPlacement(on_vllm.changed(reward_model_places(1, 1)), lines)
    if mode == "colocate":
        raise served.refusal_of_turns(
            ENABLE,
            "the reward model has",
            "--mode both gives each its own GPUs; or serve the model elsewhere and ask it from"
            " reward.custom_reward_function",
        )
    if value_at(verl.tree, POOL):
        nodes, each = (on_vllm.size(key) for key in _POOL)
        width = next(tp for tp in halvings(on_vllm.size(TENSOR_PARALLEL)) if each % tp == 0)
        engines = served.checked_engines(nodes * each // width, explorers, _WHO)
        note = f"{nodes * each} GPUs of its own for the reward model ({engines} engine(s) of {width})"
        added = -(-nodes * each // on_vllm.trainer.gpus_per_node) * on_vllm.trainer.gpus_per_node
        return RewardModelPlacement(
            on_vllm.changed({TENSOR_PARALLEL: width}), [*lines, *_lowered(on_vllm, width), note], added=added
        )
    wanted = asked_of(config, f"{AUXILIARY}.0", verl.trainer.gpus)
    return _on_a_share(on_vllm, lines, wanted, explorers, room)


def _on_a_share(
    verl: VerlView, lines: list[str], wanted: int | None, explorers: int, room: int
) -> RewardModelPlacement:
    total = verl.trainer.gpus
    width = next((tp for tp in halvings(verl.size(TENSOR_PARALLEL)) if tp <= room), None)
    if width is None:
        raise UserError(
            f"{ENABLE}=True: {total} GPU(s) hold no trainer, explorer and reward model beside each other",
            hint=_OWN_POOL,
        )
    engines = served.checked_engines((wanted or share_of(total, width)) // width or 1, explorers, _WHO)
    taken = engines * width
    note = f"{taken} for the reward model ({engines} engine(s) of {width})"
    lines = [*lines, *_lowered(verl, width)]
    return RewardModelPlacement(
        verl.changed(reward_model_places(engines, width)), lines, taken=taken, note=note
    )


def _lowered(verl: VerlView, width: int) -> list[str]:
    if width == verl.size(TENSOR_PARALLEL):
        return []
    return [f"{TENSOR_PARALLEL} = {width}: the reward model's share of the GPUs holds no more"]


def asked_of(config: Tree, engine: str, total: int) -> int | None:
    """Return the GPUs of the YAML's engines at the path ``engine``.

    None where the YAML doesn't set them, or sets another number than ``total`` in all.
    """
    reading = TrinityReader(config)
    engines = reading.get(f"{engine}.engine_num")
    cluster = [reading.get(f"cluster.{name}", 1) for name in ("node_num", "gpu_per_node")]
    # --set may have changed the number of GPUs: the YAML's share is of another machine then.
    if not isinstance(engines, int) or math.prod(cluster) != total:
        return None
    return engines * int(reading.get(f"{engine}.tensor_parallel_size") or 1)
