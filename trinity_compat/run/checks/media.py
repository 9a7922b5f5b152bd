"""Check that the model takes the images, videos and sounds of the data.

Under veRL 0.9.1 the first such row would end the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from verl.workers.config import HFModelConfig

from trinity_compat.explorer.engine.media_tokens import takes_audio
from trinity_compat.run.checks.trainer_side import Stage
from trinity_compat.run.plan.media import Kind, held

_KEY = "data.train_files"
_DOES: dict[Kind, str] = {"images": "see", "videos": "see", "audios": "hear"}


def stages(config: DictConfig, model: HFModelConfig, cwd: Path) -> Iterator[Stage]:
    """As ``trainer_side.stages``, of a model whose own files are here."""
    data = OmegaConf.to_container(OmegaConf.create({"data": config.data}), resolve=True)
    for kind, where in held(dict(data), cwd).items():
        yield _KEY, partial(_check, kind, where, model)


def _check(kind: Kind, where: str, model: HFModelConfig) -> None:
    """Raises ValueError for a model that veRL gives no processor for this, or that has no part for it."""
    if model.processor is None:
        raise ValueError(
            f"{where}, and {model.path} does not {_DOES[kind]}: veRL's hf_processor finds no processor of it"
            " that it knows"
        )
    if kind == "audios" and not takes_audio(model.processor):
        raise ValueError(
            f"{where}, and {model.path} does not hear: of the processors that veRL knows only Gemma 4's takes"
            " sounds, of a model with an audio_config"
        )
