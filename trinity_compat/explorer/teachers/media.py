"""Images, videos and sounds of a prompt, on their way to a teacher's server.

``PromptReader`` takes them out of a task as veRL's agent loop does, opened and resized; ``PromptMedia`` is
their form as bytes: JSON (``typed_json``) that names images and arrays by their SHA-256, and these as PNG and
in numpy's format. Nothing in it is a pickle, nor executed when it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from trinity_compat.buffer import typed_json
from trinity_compat.buffer.images import kept, opened
from trinity_compat.buffer.media import filled, found, media_counts

_KINDS = {"images": "image", "videos": "video", "audios": "audio"}  # veRL's names → vLLM's
Items = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class PromptMedia:
    """Encoded media of a prompt. ``text``: JSON with references to ``parts``, which are named by digest."""

    text: str
    parts: Mapping[str, bytes]

    @classmethod
    def encode(cls, items: Items, kwargs: Mapping[str, Any]) -> PromptMedia:
        """Encode vLLM's ``multi_modal_data``, a list for each kind, and ``mm_processor_kwargs``.

        Raises TypeError for a value that ``typed_json`` lacks.
        """
        tree = kept({"items": [{"type": kind, "of": [*each]} for kind, each in items.items()]})
        text = typed_json.dumps({**tree, "kwargs": dict(kwargs)})
        return cls(text, {each.digest: each.data for each in found(tree)})

    def decode(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (``multi_modal_data``, ``mm_processor_kwargs``). Raises ValueError for anything else."""
        try:
            tree = opened(filled(typed_json.loads(self.text), self.parts))
            return {each["type"]: list(each["of"]) for each in tree["items"]}, dict(tree["kwargs"])
        except Exception as error:  # whatever PIL, numpy and our reader raise for damaged data
            raise ValueError(f"media that cannot be read: {type(error).__name__}: {error}") from error


class PromptReader:
    """Reads the media of tasks for a policy with a ``processor``; without one there are none.

    ``data``: veRL's section.
    """

    def __init__(self, data: DictConfig, processor: Any) -> None:
        self._data, self._processor = data, processor

    async def read(self, task: Mapping[str, Any]) -> PromptMedia | None:
        """Return the media of a task's prompt, as its agent loop has them; None for text alone."""
        messages = task.get("raw_prompt")
        if self._processor is None or not any(media_counts(messages).values()):
            return None
        return await asyncio.to_thread(self._read, messages)

    def _read(self, messages: object) -> PromptMedia:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopWorker
        from verl.utils.dataset.rl_dataset import get_dataset_class

        kwargs = self._data.get("mm_processor_kwargs") or {}
        loop = SimpleNamespace(
            processor=self._processor,
            data_config=self._data,
            dataset_cls=get_dataset_class(self._data),
            mm_processor_kwargs=OmegaConf.to_container(kwargs) if isinstance(kwargs, DictConfig) else kwargs,
        )
        media = asyncio.run(AgentLoopBase.process_multi_modal_info(loop, list(opened(messages))))
        items = {kind: media[name] for name, kind in _KINDS.items() if media.get(name)}
        return PromptMedia.encode(items, AgentLoopWorker._get_mm_processor_kwargs(loop, media.get("audios")))
