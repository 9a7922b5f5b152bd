"""Reward managers of older veRL releases: prime, batch and remote (verl 0.7.0, 0.9.1).

The reward loop of 0.9.1 lacks the first two, and runs remote in Ray processes, where ours are processes
already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ScoresGroups(Protocol):
    """A manager whose function scores several answers in one call."""

    async def run_group(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Return one result per row (DataProto of one answer), as ``run_single`` does."""


def register_legacy() -> None:
    """Add ``prime`` and ``batch`` to veRL's registry, and replace ``remote``; no-op the second time."""
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    if "batch" not in REWARD_MANAGER:
        REWARD_MANAGER.update(_managers())


def _managers() -> dict[str, type[Any]]:
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    class PrimeRewardManager(NaiveRewardManager):
        """prime: each answer in a process (processes/child.py), the function called by position.

        Of a list or tuple that it returns, the first element is the score (veRL 0.7.0,
        workers/reward_manager/prime.py).
        """

        def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **kwargs: Any) -> None:
            super().__init__(config, tokenizer, by_position(compute_score), **kwargs)

    class RemoteRewardManager(NaiveRewardManager):
        """remote: naive's rule in separate processes, those of processes/child.py instead of Ray's."""

    class BatchRewardManager(NaiveRewardManager):
        """batch: compute_score takes arrays and lists.

        They are data_sources, solution_strs, ground_truths and extra_infos, here of a group's answers (veRL
        0.7.0, workers/reward_manager/batch.py: of a step's).
        """

        async def run_single(self, data: Any) -> Any:
            """Score a single answer."""
            return (await self.run_group([data]))[0]

        async def run_group(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
            """Score several answers in one call."""
            items = [row[-1] for row in rows]
            texts = [self._text(item) for item in items]
            arguments = batch_arguments([item.non_tensor_batch for item in items], texts)
            scores = await self.loop.run_in_executor(None, lambda: self.compute_score(**arguments))
            if len(scores) != len(rows):
                raise ValueError(f"{len(scores)} scores for {len(rows)} answers")
            return [as_result(score) for score in scores]

        def _text(self, item: Any) -> str:
            ids = item.batch["responses"]
            length = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())
            return str(self.tokenizer.decode(ids[:length], skip_special_tokens=True))

    return {"prime": PrimeRewardManager, "batch": BatchRewardManager, "remote": RemoteRewardManager}


def by_position(compute_score: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function as prime calls it: its parameters may have any names."""

    def call(*, data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any, **more: Any) -> Any:
        result = compute_score(data_source, solution_str, ground_truth, extra_info, **more)
        return result[0] if isinstance(result, list | tuple) else result

    return call


def batch_arguments(rows: Sequence[Any], texts: Sequence[str]) -> dict[str, Any]:
    """Return the arguments with which veRL's batch manager calls its function."""
    import numpy as np

    sources, extras = np.empty(len(rows), dtype=object), np.empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        sources[index] = row["data_source"]
        extra = {**(row.get("extra_info") or {}), **(row.get("tool_extra_fields") or {})}
        extras[index] = extra | {"rollout_reward_scores": row.get("reward_scores", {})}
    truths = [(row.get("reward_model") or {}).get("ground_truth") for row in rows]
    return {
        "data_sources": sources,
        "solution_strs": list(texts),
        "ground_truths": truths,
        "extra_infos": extras,
    }


def as_result(score: Any) -> dict[str, Any]:
    """Convert a function's result, a number or a dict with ``score``, to a manager's."""
    if isinstance(score, dict):
        return {"reward_score": score["score"], "reward_extra_info": dict(score)}
    return {"reward_score": score, "reward_extra_info": {"acc": score}}
