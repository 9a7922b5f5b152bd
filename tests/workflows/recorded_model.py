"""A model that gives recorded answers, and a tokenizer with one token per byte."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trinity_compat.workflows.model import Written

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ANSWERS = ("12", "21", "1")


def make_tokenizer():
    """As the toy's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    marks = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    raw.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = TEMPLATE
    return made


class Recorded:
    """Implements ``Writer``: each prompt's answers are ANSWERS, in turn."""

    def __init__(self):
        self.asked = []
        self._tokenizer = make_tokenizer()

    async def write(self, prompt_ids, sampling):
        said = {name: value for name, value in sampling.items() if value is not None}
        self.asked.append({"prompt": self._tokenizer.decode(list(prompt_ids)), "sampling": said})
        start = sampling.get("seed", 7) - 7
        return [self._written(ANSWERS[(start + i) % len(ANSWERS)]) for i in range(sampling.get("n") or 1)]

    async def score(self, token_ids):
        return [-1.0] * (len(token_ids) - 1)

    def _written(self, text):
        ids = self._tokenizer(text + "<|im_end|>").input_ids
        return Written(ids, [-0.5] * len(ids), "stop")
