"""Rewards, by veRL's own reward loop: its managers, its default scores, the user's functions.

Invariant: a reward is what the function returned, or 0 with its ``failure`` named, counted in the metrics.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trinity_compat.buffer import typed_json
from trinity_compat.buffer.images import opened
from trinity_compat.buffer.row_fields import all_carried, simple
from trinity_compat.common.errors import RunError
from trinity_compat.common.user_frames import place_of
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.trinity.workflows.tasksets import AGENT as WORKFLOW
from trinity_compat.trinity.workflows.tasksets import TOKENS


@dataclass(frozen=True, slots=True)
class Score:
    """``reward`` of one response; ``info`` is veRL's reward_extra_info.

    ``failure``: why there is none (error, timeout, died), and the reward is 0; ``retries``: how often it was
    tried again.
    """

    reward: float
    info: Mapping[str, Any]
    failure: str = ""
    retries: int = 0


# In an experience's metrics, and summed over a step's.
FAILED, TIMED_OUT, RETRIES = "reward/failed", "reward/timeouts", "reward/retries"


def of_failures(score: Score) -> dict[str, float]:
    """What an experience's metrics say of a score that was not had at once; none of one that was."""
    told = {FAILED: score.failure != "", TIMED_OUT: score.failure == "timeout", RETRIES: score.retries}
    return {name: float(count) for name, count in told.items() if count}


class Scorer(Protocol):
    """Scores whole groups."""

    async def group(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        """One score per trajectory, in order. Raises RunError when the reward function fails."""

    def close(self) -> None:
        """Give back what it holds."""


class LocalScorer:
    """veRL's RewardLoopWorker inside this process.

    ``router``: where the launch's reward model answers (host:port), None where it has none. ``whole``: the
    function wants a group at once; ``waits``: scoring is mostly waiting for others, many calls at once are no
    burden; ``has_limit``: the manager has its own.
    """

    def __init__(self, config: Any, router: str | None = None) -> None:
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

    def close(self) -> None:
        """Nothing is held."""

    async def _one(self, task: Mapping[str, Any], part: Trajectory) -> Score:
        if part.reward is not None:
            return given(part, task)
        try:
            result = await self._worker.compute_score(to_dataproto(task, part))
        except Exception as error:
            raise reward_failed(error, self._where, task) from error
        return checked(result, self._where, task)


def given(part: Trajectory, task: Mapping[str, Any]) -> Score:
    """The score of an answer whose agent loop, or workflow, has scored it, with what it says beside that.

    Raises RunError for what is not a number.
    """
    told = {"reward_score": part.reward, "reward_extra_info": part.extra.get("reward_extra_info")}
    return checked(told, "the agent loop", task)


def to_dataproto(task: Mapping[str, Any], part: Trajectory) -> Any:
    """One trajectory as veRL's agent loop hands it to a reward manager (``_compute_score``, 0.9.1)."""
    import torch
    from verl.protocol import DataProto

    prompt, response = torch.tensor([part.prompt_ids]), torch.tensor([part.response_ids], dtype=torch.long)
    ids = torch.cat([prompt, response], dim=1)
    length = {TOKENS: len(part.response_ids)} if task.get("agent_name") == WORKFLOW else {}
    fields = {
        **opened(task),  # a copy: a reward function may change what it is given
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
    """As the agent loop makes it, ``np.array([value])``: a number at the top of a row is numpy's for a reward
    manager, a list an array. What numpy refuses (lists of unlike lengths) or would shorten (zeros at the end
    of bytes) stays an object."""
    try:
        array: np.ndarray[Any, Any] = np.array([value])
    except ValueError:
        array = np.fromiter([value], object, 1)
    shortened = isinstance(value, str | bytes) and array[0] != value
    return np.fromiter([value], object, 1) if shortened else array


def checked(result: Mapping[str, Any], where: str, task: Mapping[str, Any]) -> Score:
    """Raises RunError for what is not a finite number: an advantage of an infinite one is NaN, and so is all
    that is trained on it. The same for a value beside it that cannot be stored."""
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
    """Name the function, the line of it that raised, the task and the error."""
    told = f"{type(error).__name__}: {error}{place_of(error)}"
    return RunError(f"{where} failed on {name_task(task)}: {told}")


def describe(config: Any) -> str:
    """Which reward function or model a configuration names."""
    custom = config.reward.get("custom_reward_function") or {}
    if custom.get("path"):
        return f"reward function {custom.get('name')} of {custom.get('path')}"
    if config.reward.reward_model.enable:
        return f"reward model {config.reward.reward_model.model_path}"
    return f"reward manager {config.reward.reward_manager.name!r} with veRL's default scores"


def name_task(task: Mapping[str, Any]) -> str:
    """A task as its author knows it."""
    return f"the task with index {task.get('index')} of data_source {task.get('data_source')!r}"
