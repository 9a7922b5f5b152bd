"""Reader of the actor in a checkpoint of veRL's FSDP trainer; FSDP is not needed.

Shard files hold pickled DTensors; they are opened with torch's ``weights_only`` reader, which creates only
tensors. verl 0.9.1 (utils/checkpoint/fsdp_checkpoint_manager.py).
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch.distributed.tensor import DTensor

from trinity_compat.common.errors import UserError

_RANK_ZERO = re.compile(r"model_world_size_(\d+)_rank_0\.pt")
_LORA = re.compile(r"(.+)\.lora_A\.default\.weight")


def load_fsdp_state_dict_from_verl_checkpoint(checkpoint_path: str | Path) -> dict[str, torch.Tensor]:
    """Read the whole model of ``…/global_step_N/actor`` by parameter name, in the checkpoint's dtype.

    Named as in Trinity's FAQ, whose function returns bfloat16 for any dtype. Raises UserError
    for a folder without a complete set of shards.
    """
    shards = [_load(path) for path in _shard_files(Path(checkpoint_path))]
    return {name: _whole(name, [shard.pop(name) for shard in shards]) for name in sorted(shards[0])}


def actor_weights(folder: Path, *, lora_scale: float = 0.0) -> dict[str, torch.Tensor]:
    """Read the model of ``folder`` (…/global_step_N/actor) in an inference engine's form.

    It is merged from shards, else from the Hugging Face files beside them, with LoRA adapters added to their
    layers, times ``lora_scale`` (α/r).
    """
    exported = sorted((folder / "huggingface").glob("*.safetensors"))
    if exported and not any(_RANK_ZERO.fullmatch(path.name) for path in folder.glob("*.pt")):
        return dict(_exported(exported))
    return merge_lora(load_fsdp_state_dict_from_verl_checkpoint(folder), lora_scale)


def merge_lora(weights: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Merge a peft model's adapters: W + ``scale`` · B A. Other models are returned unchanged."""
    adapted = [match[1] for name in weights if (match := _LORA.fullmatch(name))]
    if not adapted:
        return dict(weights)
    plain = {_plain(name): value for name, value in weights.items() if ".lora_" not in name}
    for module in adapted:
        low, high = (weights[f"{module}.lora_{part}.default.weight"].float() for part in "AB")
        name = _plain(f"{module}.weight")
        plain[name] = (plain[name].float() + scale * high @ low).to(plain[name].dtype)
    return plain


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _shard_files(folder: Path) -> list[Path]:
    sizes = {int(m[1]) for path in folder.glob("*.pt") if (m := _RANK_ZERO.fullmatch(path.name))}
    config = folder / "fsdp_config.json"
    if len(sizes) > 1 and config.exists():
        sizes &= {int(json.loads(config.read_text())["world_size"])}
    if not sizes:
        raise UserError(
            f"{folder} holds no shards of an FSDP checkpoint (model_world_size_N_rank_M.pt)",
            hint=next(
                (hint for pattern, hint in _OTHERS.items() if any(folder.glob(pattern))),
                "it is …/global_step_N/actor of a job",
            ),
        )
    if len(sizes) > 1:
        raise UserError(
            f"{folder} holds shards of several world sizes: {', '.join(map(str, sorted(sizes)))}",
            hint="remove those of the run that you do not want",
        )
    (size,) = sizes
    files = [folder / f"model_world_size_{size}_rank_{rank}.pt" for rank in range(size)]
    if missing := [path.name for path in files if not path.exists()]:
        raise UserError(
            f"{folder}: {missing[0]} is missing; the checkpoint is not whole",
            hint="each machine of a run on several wrote its own ranks: copy them together",
        )
    return files


_OTHERS = {
    "dist_ckpt": "hf_model in actor.checkpoint.save_contents writes what can be read beside a Megatron"
    " checkpoint",
    "step-*": "it holds torchtitan's checkpoint, which only torchtitan reads",
}


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        shard: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} can't be read as tensors: {reason}") from error
    return shard


def _whole(name: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join one parameter from its parts, in order of rank. Of replicas (HSDP) the first one counts."""
    first = parts[0]
    if not isinstance(first, DTensor):
        if any(not torch.equal(first, part) for part in parts[1:]):
            raise UserError(f"{name} is not sharded, and yet differs from rank to rank")
        return first
    placement = first.placements[-1]
    if placement.is_replicate():
        return _local(first)
    if not placement.is_shard():
        raise UserError(f"{name} is placed as {placement}: only shards and replicas can be put together")
    inner = first.device_mesh.shape[-1]
    return torch.cat([_local(part) for part in parts[:inner]], dim=placement.dim)


def _local(part: torch.Tensor) -> torch.Tensor:
    return part._local_tensor if isinstance(part, DTensor) else part


def _exported(files: Sequence[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in files:
        with safe_open(path, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 (a safetensors handle is not a mapping)
                yield name, handle.get_tensor(name)
