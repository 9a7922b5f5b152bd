"""Rewards, by veRL's own reward loop: its managers, its default scores, the user's functions.

Invariant: a reward is what the function returned. A function that raises ends the run (after the retries
that were asked for); no response is ever given 0 in its place.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trinity_compat.buffer.images import opened
from trinity_compat.errors import RunError
from trinity_compat.explorer.tasks import to_json
from trinity_compat.explorer.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Score:
    """``reward`` of one response; ``info`` is veRL's reward_extra_info, as JSON."""

    reward: float
    info: Mapping[str, Any]


class Scorer(Protocol):
    """Scores whole groups."""

    async def group(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        """One score per trajectory, in order. Raises RunError when the reward function fails."""


class LocalScorer:
    """veRL's RewardLoopWorker inside this process. ``router``: where the launch's reward model answers
    (host:port), None where it has none."""

    def __init__(self, config: Any, router: str | None = None) -> None:
        from trinity_compat.explorer.reward_managers import register_legacy

        register_legacy()
        from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

        self._worker = RewardLoopWorker(config, router)
        self._where = describe(config)

    async def group(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        seen = opened(task)
        return list(await asyncio.gather(*(self._one(seen, part) for part in parts)))

    async def _one(self, task: Mapping[str, Any], part: Trajectory) -> Score:
        if part.reward is not None:
            return checked({"reward_score": part.reward}, "the agent loop", task)
        try:
            result = await self._worker.compute_score(to_dataproto(task, part))
        except Exception as error:
            raise reward_failed(error, self._where, task) from error
        return checked(result, self._where, task)


class RayScorer:
    """``reward.num_workers`` RewardLoopWorkers in processes of their own: for functions that compute."""

    def __init__(self, config: Any, workers: int, router: str | None = None) -> None:
        import ray

        actor = ray.remote(RewardWorker)
        self._workers = [actor.options(num_cpus=0).remote(config, router) for _ in range(workers)]
        self._where = describe(config)
        self._next = 0

    async def group(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        self._next = (self._next + 1) % len(self._workers)
        return list(await self._workers[self._next].group.remote(task, parts))


class RewardWorker:
    """Body of a reward actor."""

    def __init__(self, config: Any, router: str | None = None) -> None:
        self._config, self._router = config, router
        self._scorer: LocalScorer | None = None

    async def group(self, task: Mapping[str, Any], parts: Sequence[Trajectory]) -> list[Score]:
        """See Scorer. Built on first use: veRL's worker wants a running loop."""
        self._scorer = self._scorer or LocalScorer(self._config, self._router)
        return await self._scorer.group(task, parts)


def make_scorer(config: Any, router: str | None = None) -> Scorer:
    """As many reward processes as reward.num_workers says; with at most one, none. ``router``: as in
    LocalScorer."""
    workers = int(config.reward.num_workers or 1)
    return RayScorer(config, workers, router) if workers > 1 else LocalScorer(config, router)


def to_dataproto(task: Mapping[str, Any], part: Trajectory) -> Any:
    """One trajectory as veRL's agent loop hands it to a reward manager (``_compute_score``, 0.9.1)."""
    import torch
    from verl.protocol import DataProto

    prompt, response = torch.tensor([part.prompt_ids]), torch.tensor([part.response_ids], dtype=torch.long)
    ids = torch.cat([prompt, response], dim=1)
    fields = {
        **opened(task),  # a copy: a reward function may change what it is given
        "__num_turns__": part.num_turns,
        "tool_extra_fields": dict(part.extra),
    }
    return DataProto.from_dict(
        tensors={
            "prompts": prompt,
            "responses": response,
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(ids.shape[1])[None],
        },
        non_tensors={key: _object_array(value) for key, value in fields.items()},
    )


def _object_array(value: Any) -> np.ndarray[Any, Any]:
    array = np.empty(1, dtype=object)
    array[0] = value
    return array


def checked(result: Mapping[str, Any], where: str, task: Mapping[str, Any]) -> Score:
    """Raises RunError for what is not a number."""
    value = result["reward_score"]
    try:
        reward = float(value)
    except (TypeError, ValueError):
        reward = math.nan
    if math.isnan(reward):
        raise RunError(f"{where} returned {value!r} for {name_task(task)}: a number is needed")
    return Score(reward, to_json(dict(result.get("reward_extra_info") or {}), "reward_extra_info"))


def reward_failed(error: Exception, where: str, task: Mapping[str, Any]) -> RunError:
    """Name the function, the line of it that raised, the task and the error."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    last = frames[-1] if frames else None
    place = f" ({last.filename}:{last.lineno})" if last and "trinity_compat" not in last.filename else ""
    return RunError(f"{where} failed on {name_task(task)}: {type(error).__name__}: {error}{place}")


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
