"""Patch: ``verl.utils.model.load_valuehead_model``, on a CPU and where flash-attn is missing. verl 0.9.1.

Why: verl hard-codes attn_implementation="flash_attention_2" there and ignores
``critic.model.override_config.attn_implementation``. On a CPU it holds while an engine builds a critic.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

_WITHOUT_FLASH = ("sdpa", "eager")


def apply_without_flash_attention() -> None:
    """Replace verl's function where flash-attn is not installed; no-op the second time."""
    import verl.utils.model as target

    if importlib.util.find_spec("flash_attn") is None:
        target.load_valuehead_model = load_valuehead_model


def load_valuehead_model(
    local_path: str, torch_dtype: torch.dtype, model_config: PretrainedConfig, trust_remote_code: bool
) -> PreTrainedModel:
    """Load a token classifier with one label.

    Its attention is ``model_config``'s if that works without flash-attn, else sdpa.
    """
    from transformers import AutoModelForTokenClassification

    wanted = getattr(model_config, "_attn_implementation", None)
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=wanted if wanted in _WITHOUT_FLASH else "sdpa",
        trust_remote_code=trust_remote_code,
    )
