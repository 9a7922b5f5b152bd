"""The tokens that stand for images, videos and sounds in a prompt of a model that takes them.

veRL 0.9.1 names those of images and videos (``get_vision_placeholder_token_ids``) and bans them from answers:
a sampled one has nothing behind it, and the next forward pass would end the run. The same holds for sounds.
"""

from __future__ import annotations

from typing import Any

_SOUND = "audio"


def placeholders(processor: Any) -> list[int]:
    """Token ids that are never sampled, and of which a text shows one for each image, video or sound. None of
    them without a processor."""
    from verl.utils.tokenizer import get_processor_token_id
    from verl.workers.rollout.utils import get_vision_placeholder_token_ids

    seen: list[int] = get_vision_placeholder_token_ids(processor)
    heard: int | None = get_processor_token_id(processor, _SOUND)
    return seen if heard is None else [*seen, heard]


def hears(processor: Any) -> bool:
    """Whether sounds in a prompt reach the model: it has a token for them and a tower. ``processor``: as
    veRL's ``hf_processor`` gives it, with the model's ``config``."""
    from verl.utils.tokenizer import get_processor_token_id

    tower = getattr(getattr(processor, "config", None), "audio_config", None)
    return tower is not None and get_processor_token_id(processor, _SOUND) is not None
