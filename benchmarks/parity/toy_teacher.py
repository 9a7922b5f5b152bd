"""A teacher that knows the toy's answer: the toy's model after supervised learning on right answers.

With the words of a launch that has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trinity_compat.common.atomic_write import write_text

STEPS, BATCH, RATE = 600, 128, 1e-3
TEACHER = "distillation.teacher_models.teacher_model"
# The reward is logged and not trained on: what rises is what the teacher knows.
DISTILLED = (
    "distillation.enabled=True",
    "distillation.n_gpus_per_node=1",
    "distillation.nnodes=1",
    "distillation.distillation_loss.loss_mode=forward_kl_topk",
    "distillation.distillation_loss.topk=16",
    "distillation.distillation_loss.use_policy_gradient=False",
    "distillation.distillation_loss.use_task_rewards=False",
    f"{TEACHER}.inference.tensor_model_parallel_size=1",
)


def make_teacher(toy: Path) -> Path:
    """Write the teacher to ``teacher/`` in the toy's folder, and return it; a second call does nothing."""
    folder = toy / "teacher"
    marker = folder / "done"
    if marker.exists():
        return folder
    tokenizer = AutoTokenizer.from_pretrained(toy / "model")
    model = AutoModelForCausalLM.from_pretrained(toy / "model", dtype=torch.float32)
    ids, labels = _answered(toy / "data" / "sft.parquet", tokenizer)
    order = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(ids), (BATCH,), generator=order)
        optimizer.zero_grad()
        model(input_ids=ids[rows], labels=labels[rows]).loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_text(marker, "")
    return folder


def _answered(file: Path, tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, int64 [rows, length]; labels are -100 outside the answer."""
    rows = [row["messages"] for row in pq.read_table(file).to_pylist()]
    asked = [
        tokenizer.apply_chat_template(row[:-1], add_generation_prompt=True, tokenize=False) for row in rows
    ]
    answers = [row[-1]["content"] + tokenizer.eos_token for row in rows]
    whole = [prompt + answer for prompt, answer in zip(asked, answers, strict=True)]
    ids = torch.tensor(tokenizer(whole, add_special_tokens=False)["input_ids"])
    labels = ids.clone()
    labels[:, : len(tokenizer(asked[0], add_special_tokens=False)["input_ids"])] = -100
    return ids, labels
