"""The texts of prompts and answers, decoded beside the event loop."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection, Sequence
from typing import Any

from trinity_compat.explorer.engine.trajectory import Trajectory


class TextDecoder:
    """Decodes in a thread, without Python's lock where the tokenizer can.

    ``placeholders``: tokens that stand for an image, hundreds in a row; a prompt's text shows one of them.
    """

    def __init__(self, tokenizer: Any, placeholders: Collection[int] = ()) -> None:
        # A copy: a tokenizer that encodes elsewhere meanwhile may change its settings.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._placeholders = frozenset(placeholders)

    async def texts(self, parts: Sequence[Trajectory]) -> list[tuple[str, str]]:
        """Return prompt and response of each part."""
        return await asyncio.to_thread(self._texts, parts)

    def _texts(self, parts: Sequence[Trajectory]) -> list[tuple[str, str]]:
        prompts = list(dict.fromkeys(tuple(part.prompt_ids) for part in parts))
        shown = self._decoded([self._shown(ids) for ids in prompts], skip=False)
        of_prompt = dict(zip(prompts, shown, strict=True))
        responses = self._decoded([part.response_ids for part in parts], skip=True)
        answered = zip(parts, responses, strict=True)
        return [(of_prompt[tuple(part.prompt_ids)], response) for part, response in answered]

    def _decoded(self, rows: Sequence[Sequence[int]], *, skip: bool) -> list[str]:
        """Decode as ``decode`` does; ``skip``: without special tokens.

        Its own batches are one text after the other, with Python's lock (transformers 5.10,
        tokenization_utils_tokenizers.py, ``_decode``).
        """
        from transformers import PreTrainedTokenizerFast

        mine = self._tokenizer
        plain = getattr(type(mine), "_decode", None) is PreTrainedTokenizerFast._decode
        if plain and not mine.clean_up_tokenization_spaces:
            return list(mine.backend_tokenizer.decode_batch(list(map(list, rows)), skip_special_tokens=skip))
        return [mine.decode(ids, skip_special_tokens=skip) for ids in rows]

    def _shown(self, ids: Sequence[int]) -> list[int]:
        """Return a prompt with one placeholder for each run of them."""
        return [
            token
            for token, before in zip(ids, [None, *ids], strict=False)
            if token != before or token not in self._placeholders
        ]
