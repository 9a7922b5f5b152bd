"""Models that the proof makes, and what is measured without a run. Each in a process of its own: what torch
keeps of a GPU's memory goes with it.

    models.py make SHAPE FOLDER | copies     prints FOUND and JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jobs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """``sizes``: as _SIZES; ``tied``: one matrix for embeddings and output. ``batch`` prompts of 8 answers of
    ``answer`` tokens make a step; ``words`` are more of the launch."""

    family: str
    sizes: tuple[int, int, int, int, int, int]
    tied: bool
    vocabulary: int = 151936
    batch: int = 32
    answer: int = 512
    words: tuple[str, ...] = ()

    def launch(self) -> tuple[str, ...]:
        """Over the toy's script, which asks for eight tokens. All answers are as long as they may be."""
        actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
        return (
            f"data.max_response_length={self.answer}",
            f"data.train_batch_size={self.batch}",
            f"{actor}.ppo_mini_batch_size={self.batch}",
            f"{actor}.ppo_micro_batch_size_per_gpu=8",
            f"{rollout}.log_prob_micro_batch_size_per_gpu=8",
            f"{rollout}.gpu_memory_utilization=0.5",
            f"{rollout}.ignore_eos=True",
            *self.words,
        )


# Parameters and Adam's moments of 7.6 billion take 92 GB in float32: in bfloat16, and out of the device while
# vLLM has it, on both sides alike, so that device and host (128 GiB) hold them beside vLLM and two versions.
_LARGE = tuple(
    f"actor_rollout_ref.actor.fsdp_config.{name}"
    for name in ("model_dtype=bfloat16", "param_offload=True", "optimizer_offload=True")
)
# Published shapes, and one that a CPU bears.
SHAPES: Mapping[str, Shape] = {
    "tiny": Shape("Qwen3", (64, 128, 2, 2, 1, 32), True, vocabulary=2048, batch=4, answer=16),
    # Qwen2 has vLLM's model runner V1, Qwen3 V2. Few layers: they start in half a minute.
    "four-layers-v1": Shape("Qwen2", (1024, 4096, 4, 16, 8, 64), True),
    "four-layers-v2": Shape("Qwen3", (1024, 4096, 4, 16, 8, 64), True),
    "qwen2.5-0.5b": Shape("Qwen2", (896, 4864, 24, 14, 2, 64), True),
    "qwen3-0.6b": Shape("Qwen3", (1024, 3072, 28, 16, 8, 128), True),
    "qwen2.5-7b": Shape("Qwen2", (3584, 18944, 28, 28, 4, 128), False, batch=8, words=_LARGE),
}


def random_model(folder: Path, shape: str, limit_s: float) -> Path:
    """Write it once, in bfloat16."""
    if not (folder / "done").exists():
        asked("make", shape, str(folder), log=folder.with_suffix(".log"), limit_s=limit_s)
    return folder


def asked(*words: str, log: Path, limit_s: float) -> Any:
    """Run this file with ``words`` and return the JSON that it prints. Raises Failed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    said = jobs.output([sys.executable, __file__, *words], log, limit_s)
    return json.loads(said.rpartition("FOUND ")[2].splitlines()[0])


def nbytes(folder: Path) -> int:
    """Size of the model's weights in bytes."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _make(shape: str, folder: str) -> int:
    """Returns the number of its parameters."""
    import torch
    import transformers

    told, tokenizer = SHAPES[shape], whole_tokenizer(SHAPES[shape].vocabulary)
    config = getattr(transformers, f"{told.family}Config")(
        vocab_size=told.vocabulary,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=told.tied,
        **dict(zip(_SIZES, told.sizes, strict=True)),
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = getattr(transformers, f"{told.family}ForCausalLM")(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (Path(folder) / "done").touch()
    return sum(parameter.numel() for parameter in model.parameters())


def whole_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """The toy's, with a token for every row of the model's matrix. What a tokenizer lacks the engine never
    draws, and of a model that knows nothing most of the probability would be there: the handover's self-test
    would find engine and trainer apart."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from trinity_compat.run.toy import make_tokenizer

    toy = make_tokenizer()
    told = json.loads(toy.backend_tokenizer.to_str())
    names = {**toy.get_vocab(), **{f"<{index}>": index for index in range(len(toy), vocabulary)}}
    told["model"]["vocab"] = names
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(told)),
        eos_token=toy.eos_token,
        pad_token=toy.pad_token,
        additional_special_tokens=["<|im_start|>"],
    )
    made.chat_template = toy.chat_template
    return made


def _copies() -> Mapping[str, float]:
    """GB/s of bytes that arrived: 4 GiB on the device, 1 GiB to it and from it."""
    import torch

    source, target = (torch.empty(4 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    part = target[: host.numel()]
    return {
        "GB/s on the device": _speed(lambda: target.copy_(source), source.numel()),
        "GB/s to it": _speed(lambda: part.copy_(host, non_blocking=True), host.numel()),
        "GB/s from it": _speed(lambda: host.copy_(part, non_blocking=True), host.numel()),
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


def vision_toy(folder: Path, device: str, limit_s: float) -> Mapping[str, str]:
    """Write the tests' model that sees, with rows of one or two images; the environment that runs with it."""
    tests = str(jobs.REPO / "tests")
    env = {"TOY_DIR": str(folder)}
    if device == "cpu":  # a CPU's torch needs a torchvision that is told so
        sys.path.append(tests)
        from vision import python_path

        env["PYTHONPATH"] = python_path()
    made = (
        "import pathlib, vision_toy as toy; toy.make_vision_toy(pathlib.Path({!r}), rows=64, images=(1, 2))"
    )
    path = os.pathsep.join([tests, env.get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", made.format(str(folder))]
    folder.mkdir(parents=True, exist_ok=True)
    jobs.output(command, folder / "make.log", limit_s, {"PYTHONPATH": path})
    (folder / "reward.py").write_text(_REWARD)
    return env


_REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(letter.isascii() for letter in solution_str) / 8
"""

if __name__ == "__main__":
    does = {"make": _make, "copies": _copies}[sys.argv[1]]
    print("FOUND", json.dumps(does(*sys.argv[2:])), flush=True)
