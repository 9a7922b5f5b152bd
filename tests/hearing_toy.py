"""A processor that hears, Gemma 4's, which is the only one with sounds that veRL 0.9.1 knows; and a task with
one sound in each prompt. There is no model to it: none of this kind runs on vLLM's CPU build within a test.

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
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4VideoProcessor,
)

from trinity_compat.runtime.toy import make_tokenizer

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


def make_hearing_toy(directory, *, rows=4):
    """Write model/ (without weights), data/train.parquet and data/val.parquet; returns ``directory``."""
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
    Gemma4Config(architectures=["Gemma4ForConditionalGeneration"]).save_pretrained(directory / "model")
    return directory


def _row(index):
    seconds = np.arange(RATE * (2 + index) // 10) / RATE
    return {
        "data_source": "toy/tones",
        "prompt": [{"role": "user", "content": f"<audio>what {index}"}],
        "audios": [np.sin(2 * np.pi * 220 * (index + 1) * seconds).tolist()],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index},
    }
