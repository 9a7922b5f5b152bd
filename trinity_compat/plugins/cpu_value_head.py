"""Stands for ``verl.utils.model.load_valuehead_model`` while a CPU engine builds a critic. verl 0.9.1.

Why: verl hard-codes attn_implementation="flash_attention_2" there, whatever
``critic.model.override_config.attn_implementation`` says.
"""

from __future__ import annotations

from typing import Any

_ON_CPU = ("sdpa", "eager")


def load_valuehead_model(
    local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool
) -> Any:
    """A token classifier with one label; attention as ``model_config`` says if a CPU has it, else sdpa."""
    from transformers import AutoModelForTokenClassification

    wanted = getattr(model_config, "_attn_implementation", None)
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=wanted if wanted in _ON_CPU else "sdpa",
        trust_remote_code=trust_remote_code,
    )
