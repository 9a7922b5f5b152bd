"""Placeholder tokens of images, videos and sounds in a prompt.

veRL 0.9.1 names those of images and videos (``get_vision_placeholder_token_ids``) and bans them from answers:
a sampled one has no image behind it, and the next forward pass would end the run. The same holds for sounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

_SOUND = "audio"
# Of Gemma 4's processor: a medium, and the tokens that it writes before and after a run of its tokens.
_WRAPPED = (("image", "boi", "eoi"), (_SOUND, "boa", "eoa"))


def placeholders(processor: Any) -> list[int]:
    """Return the token ids that are never sampled; empty without a processor.

    A text shows one for each image, video or sound.
    """
    from verl.utils.tokenizer import get_processor_token_id
    from verl.workers.rollout.utils import get_vision_placeholder_token_ids

    visual: list[int] = get_vision_placeholder_token_ids(processor)
    sound: int | None = get_processor_token_id(processor, _SOUND)
    return visual if sound is None else [*visual, sound]


def takes_audio(processor: Any) -> bool:
    """Return whether sounds in a prompt reach the model: it has a token and a tower for them.

    ``processor``: as from veRL's ``hf_processor``, with the model's ``config``.
    """
    from verl.utils.tokenizer import get_processor_token_id

    tower = getattr(getattr(processor, "config", None), "audio_config", None)
    return tower is not None and get_processor_token_id(processor, _SOUND) is not None


def collapse_placeholders(prompt_ids: Sequence[int], processor: Any) -> list[int]:
    """Return a prompt in vLLM's form: one token for each image or sound, which vLLM's processor expands.

    veRL 0.9.1 makes one of many for Qwen's models (``qwen2_5_vl_dedup_image_tokens``); for Gemma 4's it
    passes on the expanded prompt, which vLLM expands again: the engine answers another prompt than the one
    that is trained on.
    """
    from verl.workers.rollout.utils import qwen2_5_vl_dedup_image_tokens

    ids: list[int] = qwen2_5_vl_dedup_image_tokens(list(prompt_ids), processor)
    for token, begin, end in _wrapped(processor):
        ids = list(_collapsed(ids, token, begin, end))
    return ids


def _wrapped(processor: Any) -> Iterator[tuple[int, int, int]]:
    """Yield (a medium's token, the one before a run of them, the one after it)."""
    for kind, *ends in _WRAPPED:
        token = getattr(processor, f"{kind}_token_id", None)
        marks = [getattr(processor, f"{end}_token", None) for end in ends]
        if token is not None and None not in marks:
            begin, end = processor.tokenizer.convert_tokens_to_ids(marks)
            yield token, begin, end


def _collapsed(ids: Sequence[int], token: int, begin: int, end: int) -> Iterator[int]:
    """Yield ``ids`` with one ``token`` in place of each ``begin``, run of ``token`` and ``end``."""
    runs = [(value, len(list(same))) for value, same in groupby(ids)]
    kinds = [begin, token, end]
    place = 0
    while place < len(runs):
        here = runs[place : place + 3]
        if [value for value, _ in here] == kinds:
            yield from [begin] * (here[0][1] - 1) + [token] + [end] * (here[2][1] - 1)
            place += 3
        else:
            yield from [runs[place][0]] * runs[place][1]
            place += 1
