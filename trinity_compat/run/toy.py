"""A model and a task small enough to learn on a laptop: sort four digits.

The model is a Qwen2 of 0.3 M parameters over bytes. A short supervised warm start teaches it to answer
with the digits in ascending order, in descending order, or as they came, each a third of the time. Which
of them is wanted nothing tells it but the reward: that is what reinforcement learning has to find, and
the warm start's mistakes are what it has to correct. Everything follows from the seed.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from trinity_compat.common.atomic_write import replacing, write_text

DIGITS = 4
DATA_SOURCE = "toy/sort"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


_FILES = 2  # raised where the same spec makes other files than it did


class ToyRow(TypedDict):
    """A row as veRL reads it."""

    data_source: str
    prompt: list[dict[str, str]]
    ability: str
    reward_model: dict[str, str]
    extra_info: dict[str, object]


@dataclass(frozen=True, slots=True)
class ToySpec:
    """Recipe of the toy. ``warm_steps`` are supervised updates over ``warm_batch`` answers each."""

    seed: int = 0
    train_rows: int = 4096
    val_rows: int = 64
    warm_steps: int = 300
    warm_batch: int = 128
    warm_lr: float = 2e-3


Watched = Callable[[Sequence[int]], Iterable[int]]  # goes through the steps and shows how far it is


def make_toy(directory: Path, spec: ToySpec | None = None, *, progress: Watched = iter) -> Path:
    """Write the toy model and data to ``model/`` and ``data/`` below ``directory``, and return it.

    train.parquet and val.parquet are veRL's tasks, sft.parquet and sft_val.parquet hold conversations with
    the right answer, dpo.parquet a right and a wrong one. The marker ``toy.json`` is written last; with the
    same spec in it nothing is written again. ``progress`` receives the steps of the warm start.
    """
    spec = spec or ToySpec()
    marker = directory / "toy.json"
    wanted = json.dumps({**asdict(spec), "files": _FILES}, indent=1) + "\n"
    if marker.exists() and marker.read_text() == wanted:
        return directory
    marker.unlink(missing_ok=True)
    train, val = task_rows(spec)
    _write_rows(train, directory / "data" / "train.parquet")
    _write_rows(val, directory / "data" / "val.parquet")
    _write_rows([_conversation(row) for row in train], directory / "data" / "sft.parquet")
    _write_rows([_conversation(row) for row in val], directory / "data" / "sft_val.parquet")
    _write_rows([_preference(row) for row in train], directory / "data" / "dpo.parquet")
    path = directory / "model"
    part = path.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    tokenizer = make_tokenizer()
    model = warm_start(spec, tokenizer, progress)
    tokenizer.save_pretrained(part)
    model.save_pretrained(part)
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)
    write_text(marker, wanted)
    return directory


def answer(digits: str) -> str:
    """The task's truth: the digits in ascending order."""
    return "".join(sorted(digits))


def _descending(digits: str) -> str:
    return answer(digits)[::-1]


def _unchanged(digits: str) -> str:
    return digits


_HABITS: tuple[Callable[[str], str], ...] = (answer, _descending, _unchanged)


def task_rows(spec: ToySpec) -> tuple[list[ToyRow], list[ToyRow]]:
    """Rows in veRL's format, train and val; no question stands in both."""
    rng = random.Random(spec.seed)
    questions = [f"{n:0{DIGITS}d}" for n in rng.sample(range(10**DIGITS), spec.train_rows + spec.val_rows)]
    val, train = questions[: spec.val_rows], questions[spec.val_rows :]
    return [_row(q, i, "train") for i, q in enumerate(train)], [_row(q, i, "val") for i, q in enumerate(val)]


def _row(digits: str, index: int, split: str) -> ToyRow:
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"sort {digits}"}],
        "ability": "toy",
        "reward_model": {"style": "rule", "ground_truth": answer(digits)},
        "extra_info": {"split": split, "index": index},
    }


def _conversation(row: ToyRow) -> dict[str, object]:
    """The task with its right answer, as messages."""
    answered = {"role": "assistant", "content": row["reward_model"]["ground_truth"]}
    return {"messages": [*row["prompt"], answered]}


def _preference(row: ToyRow) -> dict[str, object]:
    """The task with its right answer, and with the same digits the other way round."""
    truth = row["reward_model"]["ground_truth"]
    return {"prompt": row["prompt"][0]["content"], "chosen": truth, "rejected": truth[::-1]}


def _write_rows(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        pq.write_table(pa.Table.from_pylist(list(rows)), file)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, and ChatML's marks.

    A BPE without merges: transformers 5 replaces a custom pre-tokenizer of a qwen2 model by its own
    byte-level one, so anything else would lose blanks and newlines.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    # head_dim 32 is the least that vLLM's CPU attention takes. Five unused rows in the vocabulary,
    # as real checkpoints have them: the explorer must never sample one.
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 5,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config).float()


def warm_start(
    spec: ToySpec, tokenizer: PreTrainedTokenizerFast, progress: Watched = iter
) -> Qwen2ForCausalLM:
    """Teach the answer's form: ``warm_steps`` of supervised learning on questions of its own draw."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = _new_model(tokenizer)
        optimizer = torch.optim.AdamW(model.parameters(), lr=spec.warm_lr)
        rng = random.Random(spec.seed + 1)
        for _ in progress(range(spec.warm_steps)):
            ids, labels = _warm_batch(tokenizer, rng, spec.warm_batch)
            optimizer.zero_grad()
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
    return model.eval()


def _warm_batch(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, int64 [count, length]; labels are -100 outside the answer."""
    chat = [{"role": "user", "content": "sort QUESTION"}]
    template = str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))
    texts = []
    for _ in range(count):
        digits = f"{rng.randrange(10**DIGITS):0{DIGITS}d}"
        texts.append(template.replace("QUESTION", digits) + rng.choice(_HABITS)(digits) + tokenizer.eos_token)
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    ids = torch.tensor(rows)
    labels = torch.full_like(ids, -100)
    labels[:, -(DIGITS + 1) :] = ids[:, -(DIGITS + 1) :]
    return ids, labels
