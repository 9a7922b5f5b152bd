"""Rewards, by veRL's own reward loop: its managers, its default scores, the user's functions.

Invariant: a reward is what the function returned, or 0 with its ``failure`` named, counted in the metrics.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from omegaconf import DictConfig

from trinity_compat.buffer import typed_json
from trinity_compat.buffer.images import opened
from trinity_compat.buffer.row_fields import all_carried, simple
from trinity_compat.common.error_text import place_of
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.trinity.workflows.tasksets import AGENT as WORKFLOW
from trinity_compat.trinity.workflows.tasksets import TOKENS


@dataclass(frozen=True, slots=True)
class Score:
    """``reward`` and ``info`` (veRL's reward_extra_info) of one response.

    ``failure``: error, timeout or died, with reward 0; ``retries``: how often scoring was retried.
    """

    reward: float
    info: Mapping[str, Any]
    failure: str = ""
    retries: int = 0


# Metrics of an experience, summed over a step.
FAILED, TIMED_OUT, RETRIES = "reward/failed", "reward/timeouts", "reward/retries"


def failure_metrics(score: Score) -> dict[str, float]:
    """Return an experience's metrics of failures and retries; empty without any."""
    counts = {FAILED: score.failure != "", TIMED_OUT: score.failure == "timeout", RETRIES: score.retries}
    return {name: float(count) for name, count in counts.items() if count}


class LocalScorer:
    """veRL's RewardLoopWorker inside this process.

    ``router``: the reward model's address (host:port), None without one. ``whole``: the function takes a
    group at once; ``waits``: scoring mostly waits for a service, so many calls may run at once;
    ``has_limit``: the manager has a time limit.
    """

    def __init__(self, config: DictConfig, router: str | None = None) -> None:
        from trinity_compat.explorer.rewards.reward_managers import ScoresGroups, register_legacy

        register_legacy()
        from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

        self._worker = RewardLoopWorker(config, router)
        self._where = describe(config)
        by_model = config.reward.reward_model.enable and not config.reward.custom_reward_function.path
        manager = self._worker.reward_manager
        self.whole = isinstance(manager, ScoresGroups) and not by_model
        self.has_limit = not by_model and getattr(manager, "timeout", None) is not None
        self.waits = bool(by_model or getattr(manager, "is_async_reward_score", not self.whole))

    async def group(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        """Return one score per trajectory, in order. Raises RunError when the reward function fails."""
        seen = opened(task)
        if self.whole and all(part.reward is None for part in parts):
            return await self._whole(seen, parts)
        return list(await asyncio.gather(*(self._one(seen, part) for part in parts)))

    async def _whole(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        try:
            rows = [to_dataproto(task, part) for part in parts]
            results = await self._worker.reward_manager.run_group(rows)
        except Exception as error:
            raise reward_failed(error, self._where, task) from error
        return [checked(result, self._where, task) for result in results]

    async def _one(self, task: Mapping[str, Any], part: Trajectory) -> Score:
        if part.reward is not None:
            return score_by_agent(part, task)
        try:
            result = await self._worker.compute_score(to_dataproto(task, part))
        except Exception as error:
            raise reward_failed(error, self._where, task) from error
        return checked(result, self._where, task)


def score_by_agent(part: Trajectory, task: Mapping[str, Any]) -> Score:
    """Return the score that an agent loop or workflow has given its answer, with its extra information.

    Raises RunError for a reward that is not a number.
    """
    result = {"reward_score": part.reward, "reward_extra_info": part.extra.get("reward_extra_info")}
    return checked(result, "the agent loop", task)


def to_dataproto(task: Mapping[str, Any], part: Trajectory) -> Any:
    """Convert a trajectory as veRL's agent loop does for a reward manager (``_compute_score``, 0.9.1)."""
    import torch
    from verl.protocol import DataProto

    prompt, response = (
        torch.from_numpy(np.array([ids], np.int64)) for ids in (part.prompt_ids, part.response_ids)
    )
    ids = torch.cat([prompt, response], dim=1)
    length = {TOKENS: len(part.response_ids)} if task.get("agent_name") == WORKFLOW else {}
    fields = {
        **opened(task),  # a copy: a reward function may change it
        "__num_turns__": part.num_turns,
        "tool_extra_fields": {**part.extra, **length},
    }
    return DataProto.from_dict(
        tensors={
            "prompts": prompt,
            "responses": response,
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(ids.shape[1])[None],
        },
        non_tensors={key: _column(value) for key, value in fields.items()},
    )


def _column(value: Any) -> np.ndarray[Any, Any]:
    """Make a column as the agent loop does, by ``np.array([value])``.

    For a reward manager a number at the top of a row is numpy's, a list an array. A value that numpy refuses
    (lists of different lengths) or would shorten (zeros at the end of bytes) stays an object.
    """
    try:
        array: np.ndarray[Any, Any] = np.array([value])
    except ValueError:
        array = np.fromiter([value], object, 1)
    shortened = isinstance(value, str | bytes) and array[0] != value
    return np.fromiter([value], object, 1) if shortened else array


def checked(result: Mapping[str, Any], where: str, task: Mapping[str, Any]) -> Score:
    """Validate a result. Raises RunError for a reward that is not finite or values that cannot be stored.

    The advantage of an infinite reward is NaN, and so are the weights that are trained on it.
    """
    value = result["reward_score"]
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not math.isfinite(reward):
        shown = "an integer beyond a float's range" if isinstance(value, int) else f"{value!r:.200}"
        raise RunError(f"{where} returned {shown} for {name_task(task)}: a finite number is needed")
    try:
        info = simple(all_carried(dict(result.get("reward_extra_info") or {}), "reward_extra_info"))
        typed_json.tagged(info)
    except TypeError as error:
        raise RunError(f"{where} returned for {name_task(task)} what cannot be stored: {error}") from error
    return Score(reward, info)


def reward_failed(error: Exception, where: str, task: Mapping[str, Any]) -> RunError:
    """Return an error that names the function, its line that raised, the task and the error."""
    cause = f"{type(error).__name__}: {error}{place_of(error)}"
    return RunError(f"{where} failed on {name_task(task)}: {cause}")


def describe(config: DictConfig) -> str:
    """Name the reward function or model of a configuration."""
    custom = config.reward.get("custom_reward_function") or {}
    if custom.get("path"):
        return f"reward function {custom.get('name')} of {custom.get('path')}"
    if config.reward.reward_model.enable:
        return f"reward model {config.reward.reward_model.model_path}"
    return f"reward manager {config.reward.reward_manager.name!r} with veRL's default scores"


def name_task(task: Mapping[str, Any]) -> str:
    """Name a task by its index and data source."""
    return f"the task with index {task.get('index')} of data_source {task.get('data_source')!r}"
