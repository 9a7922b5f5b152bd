"""The toy, and beside it a reward model of random weights: what it likes can be learned, and is like nothing
else."""

import torch
from toys import made_toy
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from trinity_compat.buffer import open_buffer
from trinity_compat.run.toy import ToySpec, make_tokenizer


def make_judge_toy(directory):
    """Write the toy, warm enough for answers that differ, and ``rm/``; returns ``directory``."""
    folder = made_toy(directory, ToySpec(train_rows=256, val_rows=8, warm_steps=20))
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 5,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        num_labels=1,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    Qwen2ForSequenceClassification(config).float().save_pretrained(folder / "rm")
    tokenizer.save_pretrained(folder / "rm")
    return folder


def trained_answers(one):
    """Of every step {step: [(task, experience)]}, as the run ``one`` stored them for training."""
    found = {}
    buffer = open_buffer(f"sqlite:///{one.job}/buffer/experiences.db")
    for group in buffer.groups("train"):
        found.setdefault(group.explorer_step, []).extend((group.task, part) for part in group.experiences)
    buffer.close()
    return found


def check_scores(model, scored):
    """Every (reward, text) is what the reward model of transformers makes of the text."""
    tokenizer = make_tokenizer()
    for reward, text in scored:
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            assert abs(reward - model(input_ids=ids).logits[0, 0].item()) < 1e-4, text


def check_learned(rewards):
    """``rewards``: of every step the answers'. Up by half of what answers of one step differ by."""
    means = [sum(step) / len(step) for step in rewards]
    spread = torch.tensor(rewards[0]).std().item()
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + spread / 2, means
