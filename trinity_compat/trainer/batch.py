"""Conversion of stored experiences to the DataProto of veRL's agent loop.

Follows ``AgentLoopWorker._postprocess`` and ``AgentLoopManager.generate_sequences`` of verl 0.9.1: same keys,
same padding, same metrics under ``meta_info["timing"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopMetrics
from verl.utils.model import compute_position_id_with_mask

from trinity_compat.buffer.images import opened
from trinity_compat.buffer.model import DROPPED, Experience, Group
from trinity_compat.common.errors import RunError
from trinity_compat.trainer.adapter import FoundScores
from trinity_compat.trainer.pad_groups import marks

# What a train batch of veRL carries of a task besides its uid.
_TASK_KEYS = ("data_source", "reward_model", "extra_info", "raw_prompt")


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Widths of the padded batch: P prompt tokens (padded left), R response tokens (padded right)."""

    prompt: int
    response: int
    pad_id: int


def to_dataproto(experiences: Sequence[Experience], shape: BatchShape) -> DataProto:
    """Batch of the experiences, in their order.

    Tensors, N rows: prompts int64 [N, P], responses int64 [N, R], input_ids, attention_mask and position_ids
    int64 [N, P+R], response_mask int64 [N, R] (1 for tokens of the policy; 0 in an answer that a pipeline
    dropped), rollout_log_probs float32 [N, R], rm_scores float32 [N, R] with the reward at the last response
    token. Where a teacher was asked about any of them, those of ``_teacher_tensors``. Raises RunError when a
    row is longer than ``shape``.
    """
    tensors = _tensors(experiences, shape) | _teacher_tensors(experiences, shape)
    extra_keys = list(dict.fromkeys(key for e in experiences for key in e.info))
    out = DataProto.from_dict(tensors=tensors, non_tensors=_non_tensors(experiences, extra_keys))
    timing = AgentLoopManager._performance_metrics(None, [[_metrics(e) for e in experiences]], out)
    out.meta_info = {"timing": timing, "reward_extra_keys": extra_keys}
    return out


def _tensors(experiences: Sequence[Experience], shape: BatchShape) -> dict[str, torch.Tensor]:
    count, width = len(experiences), shape.prompt + shape.response
    ids = torch.full((count, width), shape.pad_id, dtype=torch.int64)
    attention = torch.zeros(count, width, dtype=torch.int64)
    mask = torch.zeros(count, shape.response, dtype=torch.int64)
    log_probs = torch.zeros(count, shape.response)
    scores = torch.zeros(count, shape.response)
    for row, experience in enumerate(experiences):
        before, after = span(experience, shape)
        ids[row, before : shape.prompt] = _int64(experience.prompt_ids)
        ids[row, shape.prompt : after] = _int64(experience.response_ids)
        attention[row, before:after] = 1
        length = after - shape.prompt
        if not experience.metrics.get(DROPPED):
            mask[row, :length] = _int64(experience.response_mask)
        log_probs[row, :length] = torch.from_numpy(np.array(experience.logprobs, dtype=np.float32))
        scores[row, length - 1] = experience.reward
    return {
        "prompts": ids[:, : shape.prompt].clone(),
        "responses": ids[:, shape.prompt :].clone(),
        "response_mask": mask,
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": compute_position_id_with_mask(attention),
        "rollout_log_probs": log_probs,
        "rm_scores": scores,
    }


def _teacher_tensors(experiences: Sequence[Experience], shape: BatchShape) -> dict[str, torch.Tensor]:
    """Teachers' ids int32 and log-probabilities float32, [N, P+R, K] each; empty without a teacher."""
    size = teacher_size(experiences)
    if not size:
        return {}
    width = shape.prompt + shape.response
    rows = [teacher_rows(each, shape.prompt, width, size) for each in experiences]
    ids, log_probs = zip(*rows, strict=True)
    return {"teacher_ids": torch.stack(ids), "teacher_logprobs": torch.stack(log_probs)}


def teacher_size(experiences: Sequence[Experience]) -> int:
    """Return K, a teacher's numbers for each token; 0 where none was asked. Raises RunError for unlike K."""
    forms = {
        (each.teacher_ids is None, each.teacher_logprobs.shape[1])
        for each in experiences
        if each.teacher_logprobs is not None
    }
    if len(forms) > 1:
        sizes = ", ".join("own tokens" if own else f"top {size}" for own, size in sorted(forms))
        raise RunError(
            f"a step has answers with unlike teacher log-probabilities: {sizes}",
            hint="distillation.distillation_loss must be the one that the explorer generated with",
        )
    return max((size for _, size in forms), default=0)


def teacher_rows(
    experience: Experience, prompt: int, width: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a teacher's ids int32 and log-probabilities float32, [width, K] each.

    ``prompt``: the columns before the response.
    As in veRL a row describes the token after it: response token j has row prompt - 1 + j (verl 0.9.1,
    experimental/teacher_loop/teacher_manager.py: _pad_teacher_outputs). Zeros elsewhere: the losses read no
    other rows (trainer/distillation/losses.py).
    """
    ids, log_probs = torch.zeros(width, size, dtype=torch.int32), torch.zeros(width, size)
    if experience.teacher_logprobs is not None:
        own = experience.response_ids[:, None]
        chosen = own if experience.teacher_ids is None else experience.teacher_ids
        place = slice(prompt - 1, prompt - 1 + len(own))
        ids[place] = torch.from_numpy(np.array(chosen, dtype=np.int32))
        log_probs[place] = torch.from_numpy(np.array(experience.teacher_logprobs, dtype=np.float32))
    return ids, log_probs


def scores_of(answers: Sequence[Experience], batch: DataProto, scored: DataProto) -> list[FoundScores | None]:
    """Find the log-probabilities and entropies of ``scored``, which has the rows of ``batch``, by tokens.

    veRL has put the rows into another order since ``to_dataproto``; equal tokens have equal scores.
    """
    wanted = [np.concatenate([it.prompt_ids, it.response_ids]).astype(np.int64).tobytes() for it in answers]
    ids, mask = batch.batch["input_ids"].numpy(), batch.batch["attention_mask"].numpy().astype(bool)
    rows = {ids[row][mask[row]].tobytes(): row for row in range(len(ids))}
    columns = [scored.batch[name].float().numpy() for name in ("old_log_probs", "entropys")]
    found: list[FoundScores | None] = []
    for tokens, it in zip(wanted, answers, strict=True):
        row, length = rows.get(tokens), len(it.response_ids)
        found.append(None if row is None else (columns[0][row, :length], columns[1][row, :length]))
    return found


def _int64(values: npt.ArrayLike) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))


def span(experience: Experience, shape: BatchShape) -> tuple[int, int]:
    """Columns [first prompt token, one after the last response token). Raises RunError for a longer row."""
    prompt, response = len(experience.prompt_ids), len(experience.response_ids)
    if not response or prompt > shape.prompt or response > shape.response:
        raise RunError(
            f"an experience of {prompt} prompt and {response} response tokens does not fit the trainer's "
            f"{shape.prompt} + {shape.response}",
            hint="data.max_prompt_length and max_response_length must be those the explorer generated with",
        )
    return shape.prompt - prompt, shape.prompt + response


def _non_tensors(experiences: Sequence[Experience], extra_keys: Sequence[str]) -> dict[str, np.ndarray]:
    out = {"__num_turns__": np.array([e.num_turns for e in experiences], dtype=np.int32)}
    for key in extra_keys:
        values = [e.info.get(key) for e in experiences]
        # Lists may be of unlike lengths: one value for each turn, for example.
        out[key] = (
            _objects(values) if any(isinstance(each, list | tuple) for each in values) else np.array(values)
        )
    objects: dict[str, Sequence[object]] = {
        "multi_modal_inputs": [{} for _ in experiences],
        "reward_extra_info": [dict(e.info) for e in experiences],
        "turn_scores": [[] for _ in experiences],
        "tool_rewards": [[] for _ in experiences],
        "extras": [None for _ in experiences],
        "min_global_steps": [e.min_model_version for e in experiences],
        "max_global_steps": [e.max_model_version for e in experiences],
    }
    return out | marks(experiences) | {key: _objects(values) for key, values in objects.items()}


def _objects(values: Sequence[object]) -> np.ndarray:
    return np.fromiter(values, object, len(values))


def _metrics(experience: Experience) -> dict[str, object]:
    """Timings of a sample (seconds), with veRL's defaults for those that the explorer did not take."""
    known: Mapping[str, float] = experience.metrics
    taken = {key: known[key] for key in AgentLoopMetrics.model_fields if key in known}
    return dict(AgentLoopMetrics(**taken).model_dump())


def task_columns(groups: Sequence[Group]) -> dict[str, np.ndarray]:
    """The tasks' own columns, a row for each of ``groups``, with the types that veRL's dataset gave them.

    The media of a chat stay as the buffer has them: ``multi_modal`` opens them.
    """
    made = {
        id(task): {
            name: task[name] if name == "raw_prompt" else opened(task[name])
            for name in _TASK_KEYS
            if name in task
        }
        for task in (group.task for group in groups)
    }
    tasks = [made[id(group.task)] for group in groups]
    present = [key for key in _TASK_KEYS if any(key in task for task in tasks)]
    return {key: _objects([task.get(key) for task in tasks]) for key in present}


def lag_metrics(groups: Sequence[Group], step: int) -> dict[str, float]:
    """Staleness of the batch: steps between the policy of ``step`` and each experience's oldest one.

    The same values have the names of veRL's v1 trainer too (v1/trainer_base.py: _compute_metrics, 0.9.1).
    """
    experiences = [experience for group in groups for experience in group.experiences]
    oldest = np.array([e.min_model_version for e in experiences])
    newest = np.array([e.max_model_version for e in experiences])
    lags = step - 1 - oldest
    return {
        "training/model_version_lag/mean": float(lags.mean()),
        "training/model_version_lag/max": float(lags.max()),
        **_spread("training/off_policy/trajectory_spans", newest - oldest + 1),
        **_spread("training/off_policy/trajectory_staleness", step - 1 - newest),
        **_spread("training/off_policy/trajectory_staleness_worst", lags),
        **_spread("training/num_turns", np.array([e.num_turns for e in experiences])),
    }


def drift_by_lag(
    measure: Callable[[DataProto], dict[str, float]], step: Callable[[], int]
) -> Callable[[DataProto], dict[str, float]]:
    """Wrap veRL's ``calculate_debug_metrics``: also log π_rollout − log π_trainer of the answers of each lag.

    ``step`` returns the step that is trained. The metrics are means over tokens, with the tokens' number.
    """

    def measured(data: DataProto) -> dict[str, float]:
        found, oldest = measure(data), data.non_tensor_batch.get("min_global_steps")
        if oldest is None:
            return found
        lags, mask = step() - 1 - oldest.astype(np.int64), data.batch["response_mask"].bool()
        drift = data.batch["rollout_log_probs"] - data.batch["old_log_probs"]
        for lag in np.unique(lags):
            rows = torch.from_numpy(lags == lag)
            values = drift[rows][mask[rows]]
            if len(values):
                found[f"rollout_drift/lag_{lag}/kl"] = values.mean().item()
                found[f"rollout_drift/lag_{lag}/tokens"] = len(values)
        return found

    return measured


def reuse_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Numbers of uses of a step's groups, the current one included."""
    return _spread("training/group_uses", np.array([group.uses + 1 for group in groups]))


def _spread(name: str, values: np.ndarray) -> dict[str, float]:
    return {f"{name}/{how}": float(getattr(values, how)()) for how in ("mean", "max", "min")}
