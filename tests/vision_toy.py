"""A Qwen2.5-VL of half a million parameters, and a task with one or two coloured squares in each prompt.

Needs torchvision and qwen-vl-utils, as every run with images does.
"""

from __future__ import annotations

import base64
import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from trinity_compat.run.toy import make_tokenizer

MARKS = ["<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
CHAT_TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}\
{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
COLOURS = {"red": (255, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}


VIDEO, CLIP = "video", "clip"
_FRAMES = {VIDEO: 3, CLIP: 2}


def make_vision_toy(directory, *, rows=16, images=(1, 1, 0, 2), warm_steps=40):
    """Write model/, data/train.parquet and data/val.parquet; returns ``directory``. ``images``: how many the
    rows have, over and over, or VIDEO for one of three frames, CLIP of two. (A micro-batch without any fails
    in veRL 0.9.1 under transformers 5: models/transformers/qwen2_vl.py takes what the tower returns for a
    tensor.)"""
    write_rows(directory / "data" / "train.parquet", rows, images, seed=0)
    write_rows(directory / "data" / "val.parquet", 4, images, seed=1)
    write_model(directory / "model", warm_steps)
    return directory


def write_rows(path, count, images, *, seed):
    """veRL's columns, the images as bytes, a video's frames as data URLs."""
    rng = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([_row(rng, index, images[index % len(images)]) for index in range(count)]), path
    )


def _row(rng, index, images):
    filmed = images in _FRAMES
    colours = rng.choices(list(COLOURS), k=_FRAMES.get(images, images))
    squares = [square(COLOURS[colour], index) for colour in colours]
    marks = "<video>" if filmed else "<image>" * len(colours)
    return {
        "data_source": "toy/colours",
        "prompt": [{"role": "user", "content": f"{marks}what {index}"}],
        "images": [] if filmed else [{"bytes": each, "path": None} for each in squares],
        "videos": [film(squares)] if filmed else [],
        "reward_model": {"style": "rule", "ground_truth": " ".join(colours)},
        "extra_info": {"index": index},
    }


def film(squares):
    """Of frames of 56 × 56 pixels, as qwen-vl-utils takes it."""
    urls = [f"data:image/png;base64,{base64.b64encode(each).decode()}" for each in squares]
    return {"video": urls, "resized_height": 56, "resized_width": 56, "sample_fps": 2.0}


def square(colour, index):
    """A PNG; its size differs from row to row."""
    out = io.BytesIO()
    Image.new("RGB", (56 + 28 * (index % 3), 84), colour).save(out, "PNG")
    return out.getvalue()


def write_model(path, warm_steps):
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    tokenizer.chat_template = CHAT_TEMPLATE
    model = warm_start(tokenizer, warm_steps, _model)
    processor = Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=112 * 112),
        video_processor=Qwen2VLVideoProcessor(min_pixels=56 * 56, max_pixels=112 * 112),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
    for each in (model, tokenizer, processor):
        each.save_pretrained(path)


def warm_start(tokenizer, steps, make):
    """Letters after any prompt. Without it a token that the engine never samples, but the trainer's softmax
    counts, would have its even share of the probability."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rng = random.Random(0)
        model = make(tokenizer).float()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(steps):
            asked = [f"<|im_start|>user\nwhat {rng.randrange(9)}<|im_end|>\n<|im_start|>assistant\n"] * 32
            texts = [text + "".join(rng.choices("abcdEFGH", k=8)) for text in asked]
            ids = torch.tensor(tokenizer(texts, add_special_tokens=False)["input_ids"])
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.eval()


def strengthen(model, tower):
    """Make media change the answers of a model in a folder: a toy's tower is random, and small."""
    weights = load_file(model / "model.safetensors")
    draw = torch.Generator().manual_seed(1)
    for name, value in weights.items():
        if tower in name and value.ndim > 1:
            value.add_(torch.randn(value.shape, generator=draw) * 0.2)
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def _model(tokenizer):
    return Qwen2_5_VLForConditionalGeneration(_config(tokenizer))


def _config(tokenizer):
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = {
        "vocab_size": len(tokenizer) + 5,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": 128,
        "fullatt_block_indexes": [1],
    }
    marks = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = zip(marks, tokenizer.convert_tokens_to_ids(MARKS[1:]), strict=True)
    return Qwen2_5_VLConfig(
        text_config=text | ends, vision_config=vision, tie_word_embeddings=True, **dict(ids), **ends
    )
