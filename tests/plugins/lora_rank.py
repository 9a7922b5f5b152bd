"""One rank of veRL's own engine with an adapter under FSDP2, on a CPU.

The units are the layers' MLPs (``wrap_policy``), so that the attention's adapters are the root's own.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

SCALE = 2.0  # lora_alpha / r


def go(rank: int, model: str, folder: str, world: int, patched: bool) -> None:
    """Rank 0 writes what is handed over (``merged.pt``), and the engine's weights and adapters before that
    and after it (``before.pt``, ``after.pt``)."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    from trinity_compat.plugins import lora_merge

    if patched:
        lora_merge.apply()
        lora_merge.apply()
    engine = engine_of(model)
    fill(engine.module)
    engine.module(torch.arange(8)[None]).logits.float().logsumexp(-1).sum().backward()  # resharded behind it
    engine.module.zero_grad()
    before = whole(engine.module)
    weights, _ = engine.get_per_tensor_param()
    merged = dict(weights)
    after = whole(engine.module)
    if rank == 0:
        for name, value in (("before", before), ("merged", merged), ("after", after)):
            torch.save(value, f"{folder}/{name}.pt")
    dist.destroy_process_group()


def engine_of(model: str):
    """As veRL's worker makes it."""
    import verl  # noqa: F401  the plugins choose the platform
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    from trinity_compat.plugins.cpu_engine import CpuEngineWithLMHead

    settings = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        wrap_policy={"transformer_layer_cls_to_wrap": ["Qwen2MLP"]},
    )
    model_config = HFModelConfig(
        path=model,
        use_remove_padding=False,
        override_config={"attn_implementation": "eager"},
        lora_rank=4,
        lora_alpha=8,
        lora={"merge": True},
    )
    model_config.model_type = "language_model"
    optimizer = FSDPOptimizerConfig(lr=0.1, total_training_steps=9)
    engine = CpuEngineWithLMHead(model_config, settings, optimizer, CheckpointConfig())
    engine.initialize()
    return engine


def fill(module: torch.nn.Module) -> None:
    """PEFT begins with B = 0."""
    with torch.no_grad():
        for name, value in module.named_parameters():
            if "lora_B" in name:
                value.fill_(0.01)


def whole(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter, whole."""
    state = module.state_dict()
    return {name: getattr(value, "full_tensor", lambda v=value: v)().clone() for name, value in state.items()}
