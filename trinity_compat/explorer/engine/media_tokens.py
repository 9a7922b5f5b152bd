"""The tokens that stand for images, videos and sounds in a prompt of a model that takes them.

veRL 0.9.1 names those of images and videos (``get_vision_placeholder_token_ids``) and bans them from answers:
a sampled one has nothing behind it, and the next forward pass would end the run. The same holds for sounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

_SOUND = "audio"
# Of Gemma 4's processor: the token of a medium, and what it writes before and behind a run of them.
_WRAPPED = (("image", "boi", "eoi"), (_SOUND, "boa", "eoa"))


def placeholders(processor: Any) -> list[int]:
    """Token ids that are never sampled, and of which a text shows one for each image, video or sound.

    None of them without a processor.
    """
    from verl.utils.tokenizer import get_processor_token_id
    from verl.workers.rollout.utils import get_vision_placeholder_token_ids

    seen: list[int] = get_vision_placeholder_token_ids(processor)
    heard: int | None = get_processor_token_id(processor, _SOUND)
    return seen if heard is None else [*seen, heard]


def hears(processor: Any) -> bool:
    """Whether sounds in a prompt reach the model: it has a token for them and a tower.

    ``processor``: as veRL's ``hf_processor`` gives it, with the model's ``config``.
    """
    from verl.utils.tokenizer import get_processor_token_id

    tower = getattr(getattr(processor, "config", None), "audio_config", None)
    return tower is not None and get_processor_token_id(processor, _SOUND) is not None


def asked(prompt_ids: Sequence[int], processor: Any) -> list[int]:
    """A prompt as vLLM takes it: one token for each image or sound, which its own processor writes out.

    veRL 0.9.1 makes one of many for Qwen's models (``qwen2_5_vl_dedup_image_tokens``); of Gemma 4's it hands
    over what its processor wrote out already, and vLLM writes its own beside it: the engine answers another
    prompt than the one that is trained on.
    """
    from verl.workers.rollout.utils import qwen2_5_vl_dedup_image_tokens

    ids: list[int] = qwen2_5_vl_dedup_image_tokens(list(prompt_ids), processor)
    for token, begin, end in _wrapped(processor):
        ids = list(_gathered(ids, token, begin, end))
    return ids


def _wrapped(processor: Any) -> Iterator[tuple[int, int, int]]:
    """(a medium's token, the one before a run of them, the one behind it)."""
    for kind, *ends in _WRAPPED:
        token = getattr(processor, f"{kind}_token_id", None)
        marks = [getattr(processor, f"{end}_token", None) for end in ends]
        if token is not None and None not in marks:
            begin, end = processor.tokenizer.convert_tokens_to_ids(marks)
            yield token, begin, end


def _gathered(ids: Sequence[int], token: int, begin: int, end: int) -> Iterator[int]:
    """``ids`` with one ``token`` in place of each ``begin``, run of ``token`` and ``end``."""
    runs = [(own, len(list(same))) for own, same in groupby(ids)]
    kinds = [begin, token, end]
    place = 0
    while place < len(runs):
        here = runs[place : place + 3]
        if [own for own, _ in here] == kinds:
            yield from [begin] * (here[0][1] - 1) + [token] + [end] * (here[2][1] - 1)
            place += 3
        else:
            yield from [runs[place][0]] * runs[place][1]
            place += 1
