"""The models that a launch names, as folders that veRL and vLLM can open without a network.

An existing folder is used as it is, and so is a hub's name with a config.json in the local cache. For
others a stand-in is written: the published configuration of the named model, or of the nearest one, with a
tokenizer of bytes and without weights, which the check does not load.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trinity_compat.common.nested import put, section_at, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.explorer.rewards.reward_model.address import is_served
from trinity_compat.explorer.rewards.reward_model.models import MODEL as REWARD
from trinity_compat.explorer.rewards.reward_model.models import asks_function, scoring_config
from trinity_compat.job.distillation import teacher_entries
from trinity_compat.job.known_models import StandInModel, stand_in

GENERIC = " (the name does not say which model it is)"
_TOKENIZER_FILE = Path(__file__).with_name("stand_in_tokenizer.json")
_MODEL = "actor_rollout_ref.model"
_ACTOR = tuple(f"{_MODEL}.{name}" for name in ("path", "hf_config_path", "tokenizer_path"))
_CRITIC = tuple(f"critic.model.{name}" for name in ("path", "hf_config_path", "tokenizer_path"))
_EXPERTS, _WITH_EXPERTS = "actor_rollout_ref.rollout.expert_parallel_size", "Qwen3-30B-A3B"
_TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "additional_special_tokens": ["<|im_start|>"],
    "model_max_length": 10**9,
    "chat_template": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def localise(
    verl: dict[str, object], folder: Path, *, cwd: Path, execute: bool, critic: bool
) -> Iterator[tuple[str, str]]:
    """Point every model key of ``verl``, also an existing critic's, at a folder on this machine.

    Yields (key, name of the stand-in) where a stand-in replaces the model; ``folder`` is where stand-ins are
    written. Without ``execute`` a model with code of its own is replaced too: opening it would run that code.
    A launch with expert parallelism gets a stand-in with experts, whatever the model's name says.
    """
    spreads_experts = (value_at(verl, _EXPERTS) or 1) > 1
    of_teachers = (f"{entry.section}.model_path" for entry in teacher_entries(verl))
    served = (*((REWARD,) if is_served(verl) else ()), *of_teachers)
    for key in (*_ACTOR, *(_CRITIC if critic else ()), *served):
        value = value_at(verl, key)
        if not isinstance(value, str) or not value:
            continue
        here = _on_this_machine(value, cwd)
        if here and (execute or not _brings_code(here)):
            put(verl, key, str(here))
            continue
        chosen = stand_in(value)
        language = section_at(chosen.config, "text_config") or chosen.config
        has_experts = any("experts" in name for name in language)
        if key in _ACTOR and spreads_experts and not has_experts:
            chosen = replace(stand_in(_WITH_EXPERTS), generic=True)
        if key == REWARD and not asks_function(verl):
            chosen = StandInModel(f"{chosen.name} (scoring)", scoring_config(chosen.config), chosen.generic)
        put(verl, key, str(write(chosen, folder)))
        yield key, f"{chosen.name}{GENERIC if chosen.generic else ''}"


def _on_this_machine(text: str, cwd: Path) -> Path | None:
    if "://" in text:
        return None
    path = cwd / from_home(text)
    if (path / "config.json").is_file() or (path.is_dir() and any(path.glob("tokenizer*"))):
        return path
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(text, "config.json")
    except HFValidationError:  # a path, not a name on a hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def _brings_code(folder: Path) -> bool:
    """Return whether opening the folder with trust_remote_code would run its code."""
    for name in ("config.json", "tokenizer_config.json"):
        try:
            if "auto_map" in json.loads((folder / name).read_text(encoding="utf-8")):
                return True
        except (OSError, ValueError):
            continue
    return False


def write(chosen: StandInModel, folder: Path) -> Path:
    """Write the stand-in's files below ``folder``, once; returns its own folder."""
    target = folder / re.sub(r"[^\w.-]+", "-", chosen.name)
    if (target / "config.json").is_file():
        return target
    target.mkdir(parents=True)
    (target / "tokenizer.json").write_bytes(_TOKENIZER_FILE.read_bytes())
    (target / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER))
    (target / "config.json").write_text(json.dumps(chosen.config))
    return target
