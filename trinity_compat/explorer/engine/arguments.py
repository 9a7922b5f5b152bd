"""vLLM's arguments, as a pure function of veRL's configuration, and its processes' environment.

No vLLM, torch or veRL is imported.

Source: verl 0.9.1, workers/rollout/vllm_rollout/vllm_async_server.py (``__init__``, ``_validate_configs``,
``launch_server``). Differences from stock veRL:

- ``load_format``: the engine reads the model path, where stock's starts with random weights ("dummy") and
  waits for the trainer's: the model path is version 0 here.
- ``enable_sleep_mode`` only where the trainer uses the same device.
- ``max_model_len``, where the launch sets none: prompt + response instead of the model's maximum; veRL
  requests no more tokens than those.
- ``hf_overrides`` has the ``max_position_embeddings`` of ``model.override_config``: stock's vLLM would read
  the model's own, and refuse the longer ``max_model_len`` that the launch makes possible.
- no LoRA arguments where versions are whole models (``lora.py``).
- with ``rollout.quantization=fp8`` ``load_format`` is stock's "dummy": such an engine's weights differ from
  the model's files. ``WeightReceiver.receive_model`` loads version 0 as it does every other.
- no ``data_parallel_size``: such ranks are separate engines, or one wider engine (run/plan/engine.py).
- on a CPU no chunked prefill (vLLM 0.28 cannot rewind a request's random generator there: "CPU Generator
  does not use offset"), no tensor parallelism, and no batch-invariant kernels, which are Triton's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from trinity_compat.common import optional_packages
from trinity_compat.common.nested import value_at
from trinity_compat.job.lora import engine_settings
from trinity_compat.job.vllm_arguments import carried, given_in, release_for, section_of, set_by_verl

# Passed on under the same name; a key that is absent or null is vLLM's default, as on its command line.
_SAME = (
    "dtype",
    "max_num_seqs",
    "enable_prefix_caching",
    "logprobs_mode",
    "enforce_eager",
    "gpu_memory_utilization",
    "disable_log_stats",
    "scheduling_policy",
)

# Defaults of veRL 0.9.1's MtpConfig, where a launch sets only some fields of rollout.mtp.
_DRAFTS = {"method": "mtp", "num_speculative_tokens": 1}


def engine_arguments(
    verl: Mapping[str, Any],
    *,
    model_path: str,
    device: str,
    index: int = 0,
    shared: bool = False,
    positions: int | None = None,
    layers: int = 0,
) -> dict[str, Any]:
    """Return the arguments of vLLM's AsyncEngineArgs for engine ``index``, in plain containers.

    ``model_path``: the model's folder; ``shared``: the trainer uses the same device in turns; ``positions``:
    the model's max_position_embeddings, None if unknown; ``layers``: its num_hidden_layers. Raises
    UserError for an argument of ``engine_kwargs.vllm`` that the device's vLLM lacks.
    """
    rollout = verl["actor_rollout_ref"]["rollout"]
    length = _length(rollout, positions)
    chunked = bool(rollout.get("enable_chunked_prefill", True)) and device != "cpu"
    arguments: dict[str, Any] = {
        "model": model_path,
        "trust_remote_code": bool(verl["actor_rollout_ref"]["model"].get("trust_remote_code", False)),
        **{name: rollout[name] for name in _SAME if rollout.get(name) is not None},
        "load_format": _load_format(rollout),
        "max_model_len": length,
        # Without chunks a whole prompt has to fit into a step.
        "max_num_batched_tokens": max(int(rollout["max_num_batched_tokens"]), 0 if chunked else length),
        "enable_chunked_prefill": chunked,
        "tensor_parallel_size": 1 if device == "cpu" else rollout["tensor_model_parallel_size"],
        "seed": (rollout.get("seed") or 0) + index,
        "override_generation_config": _generation(rollout),
        **({"enable_sleep_mode": True} if shared and device != "cpu" else {}),
        **(
            {"enable_expert_parallel": True}
            if (rollout.get("expert_parallel_size") or 1) > 1 and device != "cpu"
            else {}
        ),
        **({"quantization": rollout["quantization"]} if is_quantized(rollout) else {}),
        **_overrides(verl, layers),
        **engine_settings(verl),
    }
    overwritten = set_by_verl(partial(value_at, verl))
    user = {name: value for name, value in given_in(verl).items() if name not in overwritten}
    if images := rollout.get("limit_images"):
        user["limit_mm_per_prompt"] = {"image": images}
    user = carried(user, release_for(device))
    arguments["compilation_config"] = _compilation(rollout, user)
    if drafts := _speculation(rollout):
        user["speculative_config"] = drafts | section_of("speculative_config", user.get("speculative_config"))
    return arguments | user


def engine_environment(verl: Mapping[str, Any], device: str, index: int = 0) -> dict[str, str]:
    """Return the environment variables of engine ``index``'s processes that the configuration needs.

    ``full_determinism``: our vLLM plugin reads the two of veRL's (plugins/vllm_entry.py), vLLM itself the
    third.
    """
    rollout = verl["actor_rollout_ref"]["rollout"]
    fp8 = {"VERL_VLLM_FP8_QUANT_ENABLED": "1"} if is_quantized(rollout) else {}
    if not rollout.get("full_determinism"):
        return fp8
    seed = str((rollout.get("seed") or 0) + index)
    invariant = {} if device == "cpu" else {"VLLM_BATCH_INVARIANT": "1"}
    seeds = {"VERL_FULL_DETERMINISM": "1", "VERL_SEED": seed, "PYTHONHASHSEED": seed}
    return seeds | invariant | fp8


def is_quantized(rollout: Mapping[str, Any]) -> bool:
    """Return whether the engine's layers have another type than the weights that it receives."""
    return bool(rollout.get("quantization"))


def _length(rollout: Mapping[str, Any], positions: int | None) -> int:
    length = rollout.get("max_model_len")
    needed = int(rollout["prompt_length"]) + int(rollout["response_length"])
    return int(length) if length else min(needed, positions or needed)


def _overrides(verl: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return the differences from the model's configuration.

    The trainer's model takes model.override_config; of that, the engine gets the maximal length of a text.
    With FP8 it gets the layers' format, as in veRL's server (``_apply_quantization``): blocks of 128 × 128
    with a scale each, in all layers but the routers of experts.
    """
    override = verl["actor_rollout_ref"]["model"].get("override_config") or {}
    positions = (override.get("model_config") or override).get("max_position_embeddings")
    out: dict[str, Any] = {"max_position_embeddings": positions} if positions else {}
    rollout = verl["actor_rollout_ref"]["rollout"]
    if is_quantized(rollout):
        out["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": rollout["quantization"],
            "weight_block_size": [128, 128],
            "ignored_layers": [f"model.layers.{layer}.mlp.gate" for layer in range(layers)],
        }
        if file := rollout.get("quantization_config_file"):
            out["quantization_config_file"] = file
    return {"hf_overrides": out} if out else {}


def _speculation(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drafts of several tokens by the model's MTP layers, where model.mtp enables them in rollout.

    veRL's update sends each version to the drafting layers as well (``_iter_all_models``).
    """
    mtp = rollout.get("mtp") or {}
    if not (mtp.get("enable") and mtp.get("enable_rollout")):
        return {}
    return {name: mtp.get(name, default) for name, default in _DRAFTS.items()}


def _load_format(rollout: Mapping[str, Any]) -> str:
    name = str(rollout.get("load_format") or "auto")
    if is_quantized(rollout):
        return "dummy"
    return "auto" if name.startswith("dummy") else name


def _generation(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling defaults of requests, in place of the model's generation_config.json."""
    return {
        "temperature": rollout["temperature"],
        "top_k": rollout["top_k"],
        "top_p": rollout["top_p"],
        "repetition_penalty": 1.0,
        "max_new_tokens": rollout["response_length"],
    }


def _compilation(rollout: Mapping[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    """Remove compilation_config from ``user`` and complete it.

    CUDA graphs are full unless it sets them, or the context is split for decoding, which supports none.
    """
    settings = section_of("compilation_config", user.pop("compilation_config", None))
    split = int(user.get("decode_context_parallel_size") or 1) > 1
    out = {"cudagraph_mode": "FULL_AND_PIECEWISE", **settings}
    if split and out["cudagraph_mode"] == "FULL_AND_PIECEWISE":
        out["cudagraph_mode"] = "PIECEWISE"
    if sizes := rollout.get("cudagraph_capture_sizes"):
        out["cudagraph_capture_sizes"] = list(sizes)
    return out


START_S = 600.0  # a large model takes minutes to load and to compile

CPU_ENV = {
    # One process and no compilation: 2 s instead of 40 s until the first token.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def worker_env(device: str, env: Mapping[str, str]) -> dict[str, str]:
    """Build an engine process's environment: our defaults, this process's variables, the run's."""
    base = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", **optional_packages.vllm_plugins()}
    if device == "cpu":
        base |= CPU_ENV | {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    kept = {name: os.environ[name] for name in base if name in os.environ and name != "OMP_NUM_THREADS"}
    return {**base, **kept, **env, **({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if device == "cpu" else {})}
