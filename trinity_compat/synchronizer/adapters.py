"""A LoRA adapter as a version: its tensors under PEFT's names, and its configuration as bytes.

The configuration is sent as one more tensor, so that files and broadcast transport, count and check an
adapter like a whole model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trinity_compat.common.errors import UserError
from trinity_compat.job.lora import MERGE
from trinity_compat.synchronizer.held_weights import checksum_in_any_order
from trinity_compat.synchronizer.transports.safetensors_io import Named

if TYPE_CHECKING:
    from peft import PeftConfig

CONFIG = "adapter_config.json"  # PEFT's file name
# Read by vLLM from PEFT's configuration (0.28, lora/peft_helper.py: PEFTHelper).
_READ = ("r", "lora_alpha", "target_modules", "bias", "use_rslora")
# They change an adapter's meaning, and vLLM refuses or, worse, ignores them.
_UNREAD = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication")
_LANGUAGE = "language_model"  # transformers' name of it inside a multimodal model
_HINT = f"write {MERGE}=True: whole models are transferred then, with the adapter merged in"


def as_version(adapter: Iterable[Named], peft: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the configuration, as uint8 [bytes of JSON], and the adapter's tensors.

    Raises UserError for an adapter that vLLM would misread.
    """
    if unread := next((name for name in _UNREAD if peft.get(name)), None):
        raise UserError(f"the adapter has {unread}={peft[unread]}, which vLLM does not read", hint=_HINT)
    read = {name: peft[name] for name in _READ if name in peft}
    text = json.dumps(read, default=sorted, sort_keys=True)  # PEFT's target_modules may be a set
    yield CONFIG, torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    yield from adapter


def taken_apart(version: Iterable[Named]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Split what ``as_version`` made into tensors and configuration. Raises ValueError for a whole model."""
    tensors = dict(version)
    if CONFIG not in tensors:
        raise ValueError("the version is a whole model, and this engine was started for LoRA adapters")
    config: dict[str, Any] = json.loads(bytes(tensors.pop(CONFIG).cpu().tolist()))
    return tensors, config


def refuse_left_out(adapted: Iterable[str], layers: Iterable[str]) -> None:
    """Raise ValueError where an engine with these ``layers`` would silently ignore part of an adapter.

    Both are vLLM's names; those of experts may end with ``.base_layer`` in an adapter.
    """
    if missing := sorted({name.removesuffix(".base_layer") for name in adapted} - set(layers)):
        raise ValueError(f"vLLM has no place for the adapter's {missing[0]} ({len(missing)} in all); {_HINT}")


class LayerWeights(Protocol):
    """The fields that are read of vLLM's LoRALayerWeights; a packed layer's are lists."""

    lora_a: Any
    lora_b: Any


def refuse_other_values(
    sent: Mapping[str, torch.Tensor], peft: Mapping[str, Any], dtype: str, held: Mapping[str, LayerWeights]
) -> None:
    """Raise ValueError where the adapter that vLLM holds has other values than those that arrived.

    vLLM merges the scaling into B (0.28, lora/lora_weights.py: ``optimize``).
    """
    kind = getattr(torch, dtype)
    scaling = peft["lora_alpha"] / (peft["r"] ** 0.5 if peft.get("use_rslora") else peft["r"])
    expected = checksum_in_any_order(
        tensor.to("cpu", kind) * (1 if "lora_A" in name or "lora_embedding_A" in name else scaling)
        for name, tensor in sent.items()
    )
    parts = [part for layer in held.values() for part in (layer.lora_a, layer.lora_b)]
    flat = [t for part in parts for t in (part if isinstance(part, list | tuple) else [part])]
    if checksum_in_any_order(tensor.to("cpu") for tensor in flat if tensor is not None) != expected:
        raise ValueError("vLLM holds another adapter than the one that arrived")


class ModelConfigView(Protocol):
    """The fields that are read of veRL's HFModelConfig."""

    hf_config: Any
    trust_remote_code: bool
    lora_rank: int
    target_modules: Any
    exclude_modules: Any
    lora_adapter_path: str | None


def beside_language_model(model: ModelConfigView) -> str:
    """Return an adapted module of a multimodal model outside its language model, by name; "" for none.

    vLLM adapts language models only. The model is built without memory, and PEFT finds the modules as it does
    for veRL's actor (verl 0.9.1, workers/engine/fsdp/transformer_impl.py: ``_build_lora_module``).
    """
    from peft import get_peft_model
    from verl.utils.model import get_hf_auto_model_class

    kind = get_hf_auto_model_class(hf_config=model.hf_config)
    with torch.device("meta"):
        made = kind.from_config(model.hf_config, trust_remote_code=model.trust_remote_code)
        adapted = get_peft_model(made, _peft_config(model), low_cpu_mem_usage=True)
    names = (name for name, module in adapted.named_modules() if hasattr(module, "lora_A"))
    return next((name for name in names if _LANGUAGE not in name.split(".")), "")


def _peft_config(model: ModelConfigView) -> PeftConfig:
    from peft import LoraConfig
    from verl.utils.py_functional import convert_to_regular_types

    if model.lora_adapter_path:
        return LoraConfig.from_pretrained(model.lora_adapter_path)
    parts = ("target_modules", "exclude_modules")
    named = {part: convert_to_regular_types(getattr(model, part)) for part in parts}
    return LoraConfig(task_type="CAUSAL_LM", r=model.lora_rank, **named)
