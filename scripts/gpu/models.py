"""Models of real size with random weights, and what is measured on them without a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Published shapes; the tokenizer is the toy's, of which the rest of the vocabulary is never drawn.
SHAPES: Mapping[str, tuple[str, tuple[int, int, int, int, int, int], bool]] = {
    # hidden, intermediate, layers, heads, key-value heads, head size; tied embeddings
    "qwen2.5-0.5b": ("Qwen2", (896, 4864, 24, 14, 2, 64), True),
    "qwen3-0.6b": ("Qwen3", (1024, 3072, 28, 16, 8, 128), True),
    "qwen2.5-7b": ("Qwen2", (3584, 18944, 28, 28, 4, 128), False),
}
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
VOCABULARY = 151936
# Answers of some length, over a launch whose toy script asks for eight tokens.
LAUNCH = (
    "data.max_response_length=1024",
    "data.train_batch_size=32",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    "actor_rollout_ref.rollout.ignore_eos=True",
)
_PROMPTS, _IN, _OUT = 512, 128, 512


def random_model(folder: Path, shape: str) -> Path:
    """Write it once, in bfloat16, made on the GPU."""
    import torch
    import transformers

    from trinity_compat.runtime.toy import make_tokenizer

    if (folder / "done").exists():
        return folder
    family, sizes, tied = SHAPES[shape]
    tokenizer = make_tokenizer()
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=tied,
        **dict(zip(_SIZES, sizes, strict=True)),
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "done").touch()
    return folder


def nbytes(folder: Path) -> int:
    """Of its weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def copy_speeds() -> Mapping[str, float]:
    """GB/s: bytes that arrived, over 4 GiB."""
    import torch

    source, target = (torch.empty(4 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    return {
        "GB/s on the device": _speed(lambda: target.copy_(source), source.numel()),
        "GB/s to it": _speed(lambda: target[: host.numel()].copy_(host, non_blocking=True), host.numel()),
        "GB/s from it": _speed(lambda: host.copy_(source[: host.numel()], non_blocking=True), host.numel()),
    }


def _speed(copy: Any, count: int) -> float:
    import torch

    copy()
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(5):
        copy()
    torch.cuda.synchronize()
    return 5 * count / 1e9 / (time.monotonic() - began)


def throughput(model: Path, out: Path, limit_s: float) -> Mapping[str, float]:
    """Tokens/s of answers: offline with and without a seed for each request, and as vLLM's bench measures."""
    found = {}
    for name in ("none", "each"):
        command = [sys.executable, __file__, str(model), name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s / 3)
        (out / f"seeds_{name}.log").write_text(done.stdout + done.stderr)
        found[f"tokens/s, seeds {name}"] = float(json.loads(done.stdout.splitlines()[-1]))
    bench = [
        *("vllm", "bench", "throughput", "--model", str(model), "--dataset-name", "random"),
        *("--random-input-len", str(_IN), "--random-output-len", str(_OUT), "--num-prompts", str(_PROMPTS)),
        *("--max-model-len", "2048", "--gpu-memory-utilization", "0.5"),
    ]
    done = subprocess.run(bench, capture_output=True, text=True, timeout=limit_s / 3)
    (out / "bench.log").write_text(done.stdout + done.stderr)
    said = re.search(r"([\d.]+) output tokens/s", done.stdout)
    return {**found, "tokens/s, vllm bench": float(said[1]) if said else float("nan")}


def _generate(model: str, seeds: str) -> float:
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, max_model_len=2048, gpu_memory_utilization=0.5)
    prompts = [{"prompt_token_ids": [5 + (i + j) % 200 for j in range(_IN)]} for i in range(_PROMPTS)]
    params = [
        SamplingParams(max_tokens=_OUT, ignore_eos=True, logprobs=0, seed=i if seeds == "each" else None)
        for i in range(_PROMPTS)
    ]
    engine.generate(prompts[:8], params[:8], use_tqdm=False)
    began = time.monotonic()
    engine.generate(prompts, params, use_tqdm=False)
    return _PROMPTS * _OUT / (time.monotonic() - began)


if __name__ == "__main__":
    print(json.dumps(_generate(sys.argv[1], sys.argv[2])))
