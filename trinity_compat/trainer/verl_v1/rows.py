"""Conversion of stored experiences to rows as veRL's agent loop puts them into TransferQueue.

Follows ``AgentLoopWorkerTQ._agent_loop_postprocess`` and ``AgentLoopOutput.as_dict`` of verl 0.9.1: same
columns, same tags, no padding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from trinity_compat.buffer.model import DROPPED, Experience
from trinity_compat.trainer.batch import BatchShape, span, teacher_rows
from trinity_compat.trainer.multi_modal import Inputs, RowTokens
from trinity_compat.trainer.pad_groups import FILLER
from trinity_compat.trainer.verl_v1.queue import QueueRow


def row_of(
    experience: Experience,
    uid: str,
    session: int,
    step: int,
    shape: BatchShape,
    task: Mapping[str, object] | None = None,
    media: tuple[Inputs, torch.Tensor] | None = None,
    teacher_size: int = 0,
) -> QueueRow:
    """Row of one answer to the task that ``uid`` stands for.

    Tensors, of P prompt and R response tokens: prompts int64 [P], responses, response_mask and loss_mask
    int64 [R] (1 for tokens of the policy; 0 in an answer that a pipeline dropped), input_ids and position_ids
    int64 [P+R], rollout_log_probs float32 [R], rm_scores float32 [R] with the reward at the last response
    token. ``media``: the inputs of a model with a processor, and its position ids, int64 [1, 4, P+R] where it
    counts in four dimensions. ``teacher_size``: K, of the columns teacher_ids int32 and teacher_logprobs
    float32 [P+R, K], which are there where it is not 0. Raises RunError when the answer is longer than
    ``shape``.
    """
    prompt, response = _int64(experience.prompt_ids), _int64(experience.response_ids)
    span(experience, shape)
    mask = _int64(experience.response_mask)
    if experience.metrics.get(DROPPED):
        mask = torch.zeros_like(mask)
    scores = torch.zeros(len(response))
    scores[-1] = experience.reward
    total = len(prompt) + len(response)
    inputs, positions = media or ({}, torch.arange(total).unsqueeze(0))
    fields = {
        "prompts": prompt,
        "responses": response,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": torch.cat([prompt, response]),
        "position_ids": positions.squeeze(0),
        "rollout_log_probs": torch.from_numpy(np.array(experience.logprobs, dtype=np.float32)),
        "rm_scores": scores,
        "uid": uid,
        "num_turns": experience.num_turns,
        "multi_modal_inputs": inputs,
        "extra_fields": {"reward_extra_info": dict(experience.info)},
        "reward_model": (task or {}).get("reward_model") or {},
        "data_source": str((task or {}).get("data_source") or "unknown"),
    }
    if teacher_size:
        ids, log_probs = teacher_rows(experience, len(prompt), total, teacher_size)
        fields |= {"teacher_ids": ids, "teacher_logprobs": log_probs}
    tag = {
        "status": "success",
        "prompt_len": len(prompt),
        "response_len": len(response),
        "seq_len": total,
        "global_steps": step,
        "min_global_steps": experience.min_model_version,
        "max_global_steps": experience.max_model_version,
    }
    if experience.metrics.get(FILLER):
        tag["is_padding"] = True  # as veRL's own rows that fill a batch: no metric counts it
    return QueueRow(f"{uid}_{session}_0", fields, tag)


def tokens_of(experience: Experience) -> RowTokens:
    """Tokens and attention mask of an answer with its prompt."""
    prompt = _int64(experience.prompt_ids)
    ids = torch.cat([prompt, _int64(experience.response_ids)]).unsqueeze(0)
    return prompt.unsqueeze(0), ids, torch.ones_like(ids)


def _int64(values: npt.ArrayLike) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))
