"""Arguments of the reward model's server, as a pure function of veRL's configuration.

Source: verl 0.9.1, workers/rollout/vllm_rollout/vllm_async_server.py, which serves a reward model like
the policy: the arguments are those of ``engine_arguments`` for ``reward.reward_model.rollout``, but
``max_model_len`` is the model's where the launch sets none: a prompt in the reward model's template is
longer than the policy's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.common.nested import value_at
from trinity_compat.explorer.engine.arguments import engine_arguments

SECTION = "reward.reward_model"


def reward_arguments(
    verl: Mapping[str, Any], *, model_path: str, device: str, index: int = 0, positions: int | None = None
) -> dict[str, Any]:
    """Return the arguments of vLLM's AsyncEngineArgs for server ``index``, in plain containers.

    ``model_path``: the model's folder, or its name on a hub; ``positions``: its max_position_embeddings, None
    if unknown. Raises UserError as ``engine_arguments`` does.
    """
    rollout = value_at(verl, f"{SECTION}.rollout")
    length = rollout.get("max_model_len") or positions
    # Its weights never change: the files are read as they are.
    settings = {**rollout, "max_model_len": length, "quantization": None, "mtp": None}
    as_policy = {"actor_rollout_ref": {"rollout": settings, "model": {}}}
    arguments = engine_arguments(as_policy, model_path=model_path, device=device, index=index)
    # Requests name the model as the launch does (verl 0.9.1, reward_loop.py).
    arguments["served_model_name"] = value_at(verl, f"{SECTION}.model_path")
    if not length:
        del arguments["max_model_len"]
    return arguments
