"""The texts of prompts and answers, decoded beside the event loop."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity_compat.explorer.engine.trajectory import Trajectory


class TextDecoder:
    """Decodes in a thread, without Python's lock where the tokenizer can.

    ``placeholders``: tokens that stand for an image, hundreds in a row; a prompt's text shows one of them.
    """

    def __init__(self, tokenizer: Any, placeholders: Collection[int] = ()) -> None:
        # A copy: a tokenizer that encodes elsewhere meanwhile may change its settings.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._placeholders = sorted(placeholders)
        self._plain = _is_plain(self._tokenizer)
        self._bytes = _bytes_of_tokens(self._tokenizer.backend_tokenizer) if self._plain else None

    async def texts(self, parts: Sequence[Trajectory]) -> list[tuple[str, str]]:
        """Return prompt and response of each part."""
        return await asyncio.to_thread(self._texts, parts)

    def _texts(self, parts: Sequence[Trajectory]) -> list[tuple[str, str]]:
        prompts = [np.asarray(part.prompt_ids, np.int32) for part in parts]
        distinct = {ids.tobytes(): ids for ids in prompts}
        shown = self._decoded([self._shown(ids) for ids in distinct.values()], skip=False)
        of_prompt = dict(zip(distinct, shown, strict=True))
        responses = self._decoded([np.asarray(part.response_ids, np.int32) for part in parts], skip=True)
        return [(of_prompt[ids.tobytes()], text) for ids, text in zip(prompts, responses, strict=True)]

    def _decoded(self, rows: Sequence[npt.NDArray[np.int32]], *, skip: bool) -> list[str]:
        """Decode as the tokenizer's ``decode`` does; ``skip``: without special tokens.

        Its own batches are one text after the other, with Python's lock (transformers 5.10,
        tokenization_utils_tokenizers.py, ``_decode``).
        """
        if self._bytes:
            taken = (self._bytes[skip].take(ids, mode="clip").tolist() for ids in rows)
            return [b"".join(each).decode("utf-8", "replace") for each in taken]
        lists = [ids.tolist() for ids in rows]
        if self._plain:
            return list(self._tokenizer.backend_tokenizer.decode_batch(lists, skip_special_tokens=skip))
        return [self._tokenizer.decode(ids, skip_special_tokens=skip) for ids in lists]

    def _shown(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return a prompt with one placeholder for each run of them."""
        repeated = np.isin(ids, self._placeholders)
        repeated[:1] = False
        repeated[1:] &= ids[1:] == ids[:-1]
        return ids[~repeated]


def _is_plain(tokenizer: Any) -> bool:
    """Return whether texts are those of the tokenizers library, as they come."""
    from transformers import PreTrainedTokenizerFast

    plain = getattr(type(tokenizer), "_decode", None) is PreTrainedTokenizerFast._decode
    return plain and not tokenizer.clean_up_tokenization_spaces


def _bytes_of_tokens(backend: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Return the bytes of each token, with and without those of special tokens; None for other decoders.

    A tokenizer of GPT-2's kind writes a byte as a character, and decodes by looking up each (tokenizers 0.22,
    decoders/byte_level.rs): the table gives the same text in a small part of the time. Its last row stands
    for all tokens that the tokenizer lacks.
    """
    from tokenizers.decoders import ByteLevel
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if not isinstance(backend.decoder, ByteLevel):
        return None
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    added = backend.get_added_tokens_decoder()
    content = {number: token for token, number in backend.get_vocab(with_added_tokens=False).items()}
    content |= {number: token.content for number, token in added.items()}
    special = {token.content for token in added.values() if token.special}
    whole = np.full(max(content, default=-1) + 2, b"", dtype=object)
    for number, token in content.items():
        known = byte_of.keys() >= set(token)
        whole[number] = bytes(byte_of[each] for each in token) if known else token.encode()
    skipped = whole.copy()
    skipped[[number for number, token in content.items() if token in special]] = b""
    return whole, skipped
