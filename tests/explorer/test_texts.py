"""Texts that are decoded beside the event loop are those of the tokenizer's own ``decode``."""

import asyncio
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

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


def trained(decoder):
    """A tokenizer with merges, and added tokens that are special, plain, and of characters beyond bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoder
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    backend.train_from_iterator(["héllo wörld 👋🏽 你好 the quick brown fox"] * 50, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    made.add_tokens([AddedToken("plain é 你", special=False), AddedToken("<|x y|>", special=True)])
    return made


BYTES = trained(decoders.ByteLevel())


@pytest.mark.parametrize(
    "tokenizer",
    [make_tokenizer(), own_decode(), cleaned(), trained(decoders.Fuse())],
    ids=["plain", "own", "cleaned", "fused"],
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


@settings(deadline=None, max_examples=400)
@given(st.lists(st.lists(st.integers(0, len(BYTES) + 3), max_size=9), min_size=1, max_size=3))
def test_parts_of_characters_and_unknown_tokens_read_as_decode_gives_them(answers):
    parts = [Trajectory(ids, ids, [1] * len(ids), [0.0] * len(ids)) for ids in answers]
    texts = asyncio.run(TextDecoder(BYTES).texts(parts))
    assert texts == [(BYTES.decode(ids), BYTES.decode(ids, skip_special_tokens=True)) for ids in answers]
