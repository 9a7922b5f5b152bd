"""A model that gives recorded answers in the toy's tokens, one for a byte."""

from trinity_compat.run.toy import make_tokenizer
from trinity_compat.trinity.workflows.model import GeneratedAnswer

ANSWERS = ("12", "21", "1")


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
        return GeneratedAnswer(ids, [-0.5] * len(ids), "stop")
