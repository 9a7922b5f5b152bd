"""Inputs of the model for prompts with images, videos or audio, computed by veRL's functions.

The buffer stores the media of the data. What veRL's agent loop would add to the tokens
(``multi_modal_inputs``, and position ids in the model's own dimensions) follows from media, tokens and the
processor, so it is computed here and never stored. verl 0.9.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Self

import torch
from omegaconf import DictConfig, OmegaConf
from torch.nn.functional import pad
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopWorker
from verl.utils.dataset.rl_dataset import get_dataset_class
from verl.utils.model import compute_position_id_with_mask

from trinity_compat.buffer.images import opened

# What follows from the media alone: the same for all answers to a prompt. Other processors' inputs, as
# Mllama's cross_attention_mask, follow from the tokens as well.
_OF_MEDIA = {
    *("pixel_values", "image_grid_thw", "images_seqlens"),
    *("pixel_values_videos", "video_grid_thw", "second_per_grid_ts"),
    *("input_features", "input_features_mask", "feature_attention_mask"),
}

_SOUND, _SOUND_MASK = "input_features", "input_features_mask"  # of Gemma 4

Inputs = dict[str, torch.Tensor]
# Of a row: its prompt's tokens, int64 [1, P], all its tokens and its attention mask, int64 [1, P+R] both.
RowTokens = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class MultiModal:
    """Multi-modal inputs for a model with a ``processor``; no-op without one."""

    def __init__(self, config: DictConfig, tokenizer: Any, processor: Any) -> None:
        self._worker = None if processor is None else _Worker(config.data, tokenizer, processor)

    @classmethod
    def none(cls) -> Self:
        """Inputs of a model without a processor: none."""
        return cls(OmegaConf.create(), None, None)

    def add(self, batch: DataProto, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Add to each row of ``batch`` the inputs that its task's media yield.

        ``multi_modal_inputs`` as the processor returns them (pixel_values float32 [patches, …],
        image_grid_thw int64 [images, 3], images_seqlens int64 [images], pixel_values_videos and
        video_grid_thw likewise, input_features of sounds), and ``position_ids`` (int64 [N, 4, P+R] where the
        model counts text, time, height and width, else [N, P+R]).
        """
        if self._worker is None:
            return
        columns = (batch.batch[name].split(1) for name in ("prompts", "input_ids", "attention_mask"))
        rows = zip(*columns, strict=True)
        made = self.inputs_of(rows, tasks)
        for row, (inputs, _) in enumerate(made):
            batch.non_tensor_batch["multi_modal_inputs"][row] = inputs
        batch.batch["position_ids"] = torch.cat([positions for _, positions in made])

    def inputs_of(
        self, rows: Iterable[RowTokens], tasks: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Inputs, torch.Tensor]]:
        """Inputs and position ids of each row."""
        worker = self._worker
        if worker is None:
            return [({}, compute_position_id_with_mask(attention)) for *_, attention in rows]
        known: dict[int, _Prompt] = {}
        made = []
        for (prompt, ids, attention), task in zip(rows, tasks, strict=True):
            if id(task) not in known:
                known[id(task)] = _Prompt(worker, task, prompt)
            inputs = known[id(task)].inputs(ids)
            made.append((inputs, worker.positions(ids, attention, inputs)))
        level(inputs for inputs, _ in made)
        return made


def level(rows: Iterable[Inputs]) -> None:
    """Pad all sounds to the length of the longest, in place.

    veRL's engine puts the sounds of a micro-batch into one tensor (``extract_multi_modal_inputs``, verl
    0.9.1), and pads the last dimension alone. Added frames are masked, as the processor masks them for
    several sounds; the model makes no token of them. Changes the dictionaries of ``rows``: input_features
    float32 [sounds, frames, mel bins] and input_features_mask bool [sounds, frames].
    """
    heard = [inputs for inputs in rows if _SOUND_MASK in inputs]
    frames = max((inputs[_SOUND_MASK].shape[1] for inputs in heard), default=0)
    for inputs in heard:
        if short := frames - inputs[_SOUND_MASK].shape[1]:
            inputs[_SOUND] = pad(inputs[_SOUND], (0, 0, 0, short))
            inputs[_SOUND_MASK] = pad(inputs[_SOUND_MASK], (0, short))


class _Worker(AgentLoopWorker):
    """veRL's functions for one answer, without its servers and tools."""

    def __init__(self, data: DictConfig, tokenizer: Any, processor: Any) -> None:
        self.tokenizer, self.processor, self.data_config = tokenizer, processor, data
        self.dataset_cls = get_dataset_class(data)
        self.mm_processor_kwargs = data.get("mm_processor_kwargs", {})
        # ``positions`` removes it and computes it again from each answer's tokens; a model that counts
        # positions in one dimension (Gemma 4) needs it, with a type for every token.
        self.taken_out = {"mm_token_type_ids"} if hasattr(processor, "get_rope_index") else set[str]()

    def media(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Media of a prompt as the agent loop reads and resizes them.

        These are ``images``, ``videos`` (each with its metadata) and ``audios``.
        """
        made: dict[str, Any] = asyncio.run(AgentLoopBase.process_multi_modal_info(self, list(messages)))
        return made

    def inputs(self, ids: torch.Tensor, media: dict[str, Any]) -> Inputs:
        """``ids`` int64 [1, P+R], padded."""
        output = SimpleNamespace(multi_modal_data=media, mm_processor_kwargs=None)
        made: Inputs = self._compute_multi_modal_inputs(output, ids)
        return made

    def positions(self, ids: torch.Tensor, attention: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Compute position ids; inputs that only they need are removed, as in veRL."""
        kwargs = self._get_mm_processor_kwargs()
        made: torch.Tensor = self._compute_position_ids(ids, attention, inputs, kwargs)
        return made


class _Prompt:
    """A task's media, opened and resized once for all its answers."""

    def __init__(self, worker: _Worker, task: Mapping[str, Any], prompt: torch.Tensor) -> None:
        self._worker, self._media = worker, worker.media(opened(task["raw_prompt"]))
        # What follows from the media is the same whatever the tokens are, and a processor takes longer for
        # an answer's thousands of tokens than for an image.
        made = worker.inputs(prompt, self._media)
        self._shared = made if made.keys() <= _OF_MEDIA | worker.taken_out else None

    def inputs(self, ids: torch.Tensor) -> Inputs:
        """Inputs of one answer, in its own dictionary; tensors may be shared."""
        return self._worker.inputs(ids, self._media) if self._shared is None else dict(self._shared)
