"""LoRA: whether a version of the policy is the adapter alone, or a whole model with the adapter merged in.

Explorer and trainer ask here, with the same configuration, so that one loads what the other writes. As an
adapter wherever veRL 0.9.1 hands one to vLLM (``model.lora.merge`` is false, vllm_async_server.py:
``lora_as_adapter``), less what ``why_whole`` names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from trinity_compat.common.containers import Tree
from trinity_compat.common.nested import put, value_at

MODEL = "actor_rollout_ref.model"
MERGE = f"{MODEL}.lora.merge"
# vLLM 0.28, config/lora.py: MaxLoRARanks. An adapter of another rank takes the next one's room.
_ROOMS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_STRATEGIES = ("fsdp", "fsdp2")


def lora_rank(verl: Tree) -> int:
    """Of the adapter that is trained; 0 where the whole model is."""
    named = (value_at(verl, f"{MODEL}.{key}") for key in ("lora.rank", "lora_rank"))
    return next((int(rank) for rank in named if rank), 0)


def is_handed_over(verl: Tree) -> bool:
    """Whether versions hold the adapter alone."""
    return lora_rank(verl) > 0 and why_whole(verl) is None


def why_whole(verl: Tree) -> str | None:
    """Why an adapter is merged into what it adapts before the explorer gets it; None where it isn't."""
    strategy = value_at(verl, "actor_rollout_ref.actor.strategy", "fsdp")
    rank = lora_rank(verl)
    reasons = {
        f"{MERGE}=True": value_at(verl, MERGE),
        f"actor.strategy={strategy} hands out no adapter": strategy not in _STRATEGIES,
        f"vLLM takes adapters of rank {_ROOMS[-1]} at most": rank > _ROOMS[-1],
        "vLLM adapts layers, and model.target_parameters names parameters": value_at(
            verl, f"{MODEL}.target_parameters"
        ),
        "the engine quantizes what it is given": value_at(verl, "actor_rollout_ref.rollout.quantization"),
    }
    return next((why for why, holds in reasons.items() if holds), None)


def merged(verl: Tree) -> dict[str, object]:
    """A copy of the configuration in which versions are whole models."""
    tree = copy.deepcopy(dict(verl))
    put(tree, MERGE, True)
    return tree


def for_model(verl: Tree, beside: Callable[[], str]) -> Tree:
    """The configuration for the model that it names.

    ``beside``: a module that is adapted and lies outside of a language model, where there is one
    (``adapters.beside_language_model``): vLLM leaves it out in silence, so that model's versions are whole.
    Not asked where they are anyway.
    """
    return merged(verl) if is_handed_over(verl) and beside() else verl


def engine_settings(verl: Tree) -> dict[str, object]:
    """vLLM's arguments for adapters, as veRL's server gives them (vllm_async_server.py, 0.9.1); none where
    versions are whole models."""
    if not is_handed_over(verl):
        return {}
    sharded = {"fully_sharded_loras": True} if value_at(verl, f"{MODEL}.lora.fully_sharded_loras") else {}
    room = next(room for room in _ROOMS if lora_rank(verl) <= room)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room, **sharded}
