"""What a reward model is: one that gives a text a number, or one that a reward function asks in words.

veRL up to 0.7 scored with a training worker, ``AutoModelForTokenClassification`` with one label: a causal
model got a head of random weights there (veRL's own tests do that). vLLM wants the head among the weights, so
that such a model is served from a folder that has one, drawn in the same way from a seed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity_compat.common.errors import RunError
from trinity_compat.common.nested import value_at
from trinity_compat.common.paths import from_home

MODEL = "reward.reward_model.model_path"
NO_HEAD = (
    "it generates text and has no head that scores: it gets one of random weights, as veRL up to 0.7 gave it,"
    " so that its rewards mean nothing"
)
_SPEAKS, _SCORES = "ForCausalLM", "ForSequenceClassification"
_INDEX = "model.safetensors.index.json"


def asks_function(verl: Mapping[str, Any]) -> bool:
    """Whether the launch's own function asks the model, so that it may be of any kind; else veRL asks it for
    a score (verl 0.9.1, reward_loop.py: compute_score)."""
    return bool(value_at(verl, "reward.custom_reward_function.path"))


def needs_head(verl: Mapping[str, Any], architectures: Sequence[str]) -> bool:
    """Whether veRL would ask a model of these classes for a score that it has no head for."""
    return not asks_function(verl) and bool(architectures) and all(map(_speaks, architectures))


def architectures_in(folder: Path) -> Sequence[str]:
    """The classes that a model's folder names; none for a name on a hub, or what is not a model."""
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or ()
    except (OSError, ValueError):
        return ()


def _speaks(architecture: str) -> bool:
    return architecture.endswith(_SPEAKS)


def scoring_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` of a causal model as that of the same one with a head of one number."""
    names = [str(name).replace(_SPEAKS, _SCORES) for name in config.get("architectures") or ()]
    return {**config, "architectures": names, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def served_model(verl: Mapping[str, Any], made_in: Path) -> tuple[str, int | None]:
    """(the folder or hub name to serve, its max_position_embeddings).

    A model that needs a head is linked to ``made_in``, with one. Raises RunError for one that cannot be read.
    """
    from transformers import AutoConfig

    name = str(value_at(verl, MODEL))
    try:
        path = _here(name)
        config = AutoConfig.from_pretrained(path)
        if needs_head(verl, config.architectures or ()):
            seed = int(value_at(verl, "reward.reward_model.rollout.seed") or 0)
            path = str(with_head(_downloaded(path), made_in, config, seed=seed))
        return path, getattr(config.get_text_config(), "max_position_embeddings", None)
    except (OSError, ValueError) as error:
        raise RunError(f"{MODEL}={name}: {error}") from error


def _here(name: str) -> str:
    """A folder as its server finds it, wherever that runs; a name on a hub as it is."""
    if "://" in name:
        from verl.utils.fs import copy_to_local

        return str(copy_to_local(name))
    folder = from_home(name)
    return str(folder.absolute()) if folder.is_dir() else name


def _downloaded(path: str) -> Path:
    """The folder itself, or that of a name on a hub."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path))


def with_head(model: Path, target: Path, config: Any, *, seed: int) -> Path:
    """A folder ``target`` with what lies in ``model``, linked, and a head: float32 [1, hidden size], normal
    with the model's own ``initializer_range``. ``config``: the model's, as transformers reads it."""
    import torch
    from safetensors.torch import save_file

    if not list(model.glob("*.safetensors")):
        raise ValueError("its weights are not in safetensors files, so no head can be put beside them")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in model.iterdir():
        # transformers takes a model.safetensors for the whole, whatever stands in an index.
        part = "part-" if file.suffix == ".safetensors" else ""
        (target / f"{part}{file.name}").symlink_to(file.resolve())
    text = config.get_text_config()
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(1, text.hidden_size, generator=draw) * getattr(text, "initializer_range", 0.02)
    save_file({"score.weight": weight}, target / "score.safetensors")
    plain = json.loads((model / "config.json").read_text(encoding="utf-8"))
    _replace(target / "config.json", scoring_config(plain))
    _replace(target / _INDEX, {"metadata": {}, "weight_map": dict(_places(target))})
    return target


def _places(folder: Path) -> Iterator[tuple[str, str]]:
    """(name of a tensor, its file): what vLLM and transformers go by where there are several files."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            yield from ((name, file.name) for name in weights.keys())  # noqa: SIM118


def _replace(link: Path, value: Mapping[str, Any]) -> None:
    link.unlink(missing_ok=True)
    link.write_text(json.dumps(value, indent=1), encoding="utf-8")
