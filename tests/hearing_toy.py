"""A model that hears, of Gemma 4's kind, the only one with sounds whose processor veRL 0.9.1 knows; and a
task with one sound in each prompt, of another length in each row.

Needs torchvision, which the processor's other half imports.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import (
    AutoTokenizer,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4VideoProcessor,
)
from vision_toy import warm_start

from trinity_compat.run.toy import make_tokenizer

RATE = 16_000  # samples a second
MARKS = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}
TURNS = ["<|tool_response>", "<|turn>", "<turn|>"]  # veRL's ContinuousToken of Gemma 4 asks for them
CHAT_TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}\
{% if part['type'] == 'audio' %}<|audio|>\
{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_hearing_toy(directory, *, rows=4, warm_steps=None):
    """Write model/, data/train.parquet and data/val.parquet; returns ``directory``. ``warm_steps``: of a warm
    start; None leaves the weights out."""
    (directory / "data").mkdir(parents=True)
    for name in ("train", "val"):
        pq.write_table(
            pa.Table.from_pylist([_row(index) for index in range(rows)]), directory / f"data/{name}.parquet"
        )
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [*MARKS.values(), *TURNS]})
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory / "model")
    tokenizer = AutoTokenizer.from_pretrained(directory / "model", extra_special_tokens=MARKS)
    parts = (Gemma4AudioFeatureExtractor(), Gemma4ImageProcessor(), tokenizer, Gemma4VideoProcessor())
    Gemma4Processor(*parts, chat_template=CHAT_TEMPLATE).save_pretrained(directory / "model")
    if warm_steps is None:
        _config(tokenizer).save_pretrained(directory / "model")
    else:
        warm_start(tokenizer, warm_steps, _model).save_pretrained(directory / "model")
    return directory


def _model(tokenizer):
    return Gemma4ForConditionalGeneration(_config(tokenizer))


def _config(tokenizer):
    text = {
        "vocab_size": len(tokenizer) + 5,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 0,
        "max_position_embeddings": 512,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = small | {"intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 32}
    vision["default_output_length"] = 280  # vLLM asks for it
    audio = small | {"output_proj_dims": 64, "subsampling_conv_channels": [128, 8]}
    ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(mark) for name, mark in MARKS.items()}
    ids["eoa_token_index"] = ids.pop("eoa_token_id")
    ids["video_token_id"] = tokenizer.convert_tokens_to_ids("<|video|>")
    return Gemma4Config(
        text_config=text,
        vision_config=vision,
        audio_config=audio,
        architectures=["Gemma4ForConditionalGeneration"],
        tie_word_embeddings=True,
        **ids,
    )


def _row(index):
    seconds = np.arange(RATE * (2 + index) // 10) / RATE
    return {
        "data_source": "toy/tones",
        "prompt": [{"role": "user", "content": f"<audio>what {index}"}],
        "audios": [np.sin(2 * np.pi * 220 * (index + 1) * seconds).tolist()],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index},
    }
