"""Texts that are decoded beside the event loop are those of the tokenizer's own ``decode``."""

import asyncio
import copy

import pytest

from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.scheduling.texts import TextDecoder
from trinity_compat.run.toy import make_tokenizer

IMAGE = 7


class OwnDecode(type(make_tokenizer())):
    """A tokenizer whose class decodes in its own way."""

    def _decode(self, token_ids, **kwargs):
        return f"own: {super()._decode(token_ids, **kwargs)}"


def own_decode():
    made = copy.deepcopy(make_tokenizer())
    made.__class__ = OwnDecode
    return made


def cleaned():
    made = make_tokenizer()
    made.clean_up_tokenization_spaces = True
    return made


@pytest.mark.parametrize(
    "tokenizer", [make_tokenizer(), own_decode(), cleaned()], ids=["plain", "own", "cleaned"]
)
def test_texts_are_those_of_decode(tokenizer):
    end = tokenizer.eos_token_id
    prompt = tokenizer.encode("sort 12 ,  é 👋")
    parts = [
        Trajectory(prompt, [*tokenizer.encode("a , b"), end], [1], [0.0]),
        Trajectory(prompt, [], [], []),
        Trajectory([IMAGE, IMAGE, IMAGE, 20, IMAGE, IMAGE, 20, 20], [end, 30, end], [1], [0.0]),
    ]
    texts = asyncio.run(TextDecoder(tokenizer, [IMAGE]).texts(parts))
    shown = [prompt, prompt, [IMAGE, 20, IMAGE, 20, 20]]
    assert texts == [
        (tokenizer.decode(ids), tokenizer.decode(part.response_ids, skip_special_tokens=True))
        for ids, part in zip(shown, parts, strict=True)
    ]
