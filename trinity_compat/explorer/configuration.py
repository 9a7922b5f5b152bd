"""veRL's configuration of a run, with its tokenizer and processor."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from trinity_compat.common.errors import UserError
from trinity_compat.common.gc_pause import gc_paused
from trinity_compat.common.paths import from_home
from trinity_compat.job.run_spec import RunSpec


def configuration(spec: RunSpec) -> tuple[DictConfig, Any, Any]:
    """Load veRL's configuration, tokenizer and processor as its main_ppo does."""
    with gc_paused():
        from verl.utils import hf_processor, hf_tokenizer
        from verl.utils.fs import copy_to_local

    config = OmegaConf.create(dict(spec.verl))
    model = config.actor_rollout_ref.model
    looks_local = model.path.startswith(("/", "./", "../", "~"))
    if looks_local and not (from_home(model.path) / "config.json").exists():
        raise UserError(
            f"actor_rollout_ref.model.path={model.path}: no model there (config.json is missing)",
            hint="download the model first, or write its Hugging Face name",
        )
    path = copy_to_local(model.get("tokenizer_path") or model.path)
    trust = bool(config.data.get("trust_remote_code", False))
    return config, hf_tokenizer(path, trust_remote_code=trust), hf_processor(path, trust_remote_code=trust)
