"""Reward managers that older veRL releases have and 0.9.1's reward loop hasn't, or has in processes of Ray's
where ours are processes already: prime, batch and remote. verl 0.7.0, 0.9.1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ScoresGroups(Protocol):
    """A manager whose function scores several answers in one call."""

    async def run_group(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """One result per row (DataProto of one answer), as ``run_single`` gives."""


def register_legacy() -> None:
    """Add ``prime`` and ``batch`` to veRL's registry, and put ours for ``remote``; a second call changes
    nothing."""
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    if "batch" not in REWARD_MANAGER:
        REWARD_MANAGER.update(_managers())


def _managers() -> dict[str, type[Any]]:
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    class PrimeRewardManager(NaiveRewardManager):
        """prime: each answer in a process (scorers.child), the function called by position.

        It takes a list or tuple by its first element (veRL 0.7.0, workers/reward_manager/prime.py).
        """

        def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **kwargs: Any) -> None:
            super().__init__(config, tokenizer, by_position(compute_score), **kwargs)

    class RemoteRewardManager(NaiveRewardManager):
        """remote: naive's rule in processes of its own, by scorers.child instead of Ray."""

    class BatchRewardManager(NaiveRewardManager):
        """batch: compute_score takes arrays and lists (data_sources, solution_strs, ground_truths,
        extra_infos): here the answers of a group (veRL 0.7.0, workers/reward_manager/batch.py: of a step)."""

        async def run_single(self, data: Any) -> Any:
            return (await self.run_group([data]))[0]

        async def run_group(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
            items = [row[-1] for row in rows]
            texts = [self._text(item) for item in items]
            given = batch_arguments([item.non_tensor_batch for item in items], texts)
            scores = await self.loop.run_in_executor(None, lambda: self.compute_score(**given))
            if len(scores) != len(rows):
                raise ValueError(f"{len(scores)} scores for {len(rows)} answers")
            return [as_result(score) for score in scores]

        def _text(self, item: Any) -> str:
            ids = item.batch["responses"]
            length = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())
            return str(self.tokenizer.decode(ids[:length], skip_special_tokens=True))

    return {"prime": PrimeRewardManager, "batch": BatchRewardManager, "remote": RemoteRewardManager}


def by_position(compute_score: Callable[..., Any]) -> Callable[..., Any]:
    """prime's way to call a reward function: its parameters may have any names."""

    def called(
        *, data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any, **more: Any
    ) -> Any:
        result = compute_score(data_source, solution_str, ground_truth, extra_info, **more)
        return result[0] if isinstance(result, list | tuple) else result

    return called


def batch_arguments(rows: Sequence[Any], texts: Sequence[str]) -> dict[str, Any]:
    """What veRL's batch manager calls its function with."""
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
    """A function's answer as a manager's: a number, or a dict with ``score``."""
    if isinstance(score, dict):
        return {"reward_score": score["score"], "reward_extra_info": dict(score)}
    return {"reward_score": score, "reward_extra_info": {"acc": score}}
