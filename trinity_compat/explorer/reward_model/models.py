"""What a reward model is: one that gives a text a number, or one that a reward function asks in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.dotted import value_at
from trinity_compat.errors import RunError

MODEL = "reward.reward_model.model_path"
_SPEAKS, _SCORES = "ForCausalLM", "ForSequenceClassification"


def asks_function(verl: Mapping[str, Any]) -> bool:
    """Whether the launch's own function asks the model, so that it may be of any kind; else veRL asks it for a
    score (verl 0.9.1, reward_loop.py: compute_score)."""
    return bool(value_at(verl, "reward.custom_reward_function.path"))


def only_speaks(config: Mapping[str, Any]) -> bool:
    """Whether a model's config.json is of one that generates text and scores none."""
    names = config.get("architectures") or ()
    return bool(names) and all(str(name).endswith(_SPEAKS) for name in names)


def scoring_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` of a causal model as that of the same one with a head of one number."""
    names = [str(name).replace(_SPEAKS, _SCORES) for name in config.get("architectures") or ()]
    return {**config, "architectures": names, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def local_model(verl: Mapping[str, Any]) -> tuple[str, int | None]:
    """(the reward model's folder or hub name, its max_position_embeddings). Raises RunError for one that cannot
    be read."""
    from transformers import AutoConfig
    from verl.utils.fs import copy_to_local
    from verl.workers.rollout.utils import get_max_position_embeddings

    name = str(value_at(verl, MODEL))
    path = copy_to_local(name)
    try:
        return path, get_max_position_embeddings(AutoConfig.from_pretrained(path))
    except (OSError, ValueError) as error:
        raise RunError(f"{MODEL}={name}: {error}") from error
