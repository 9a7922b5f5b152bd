"""Reward managers that older veRL releases have and 0.9.1's reward loop hasn't: prime and batch."""

from __future__ import annotations

from typing import Any


def register_legacy() -> None:
    """Add ``prime`` and ``batch`` to veRL's registry; a second call changes nothing."""
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    if "batch" in REWARD_MANAGER:
        return

    class PrimeRewardManager(NaiveRewardManager):
        """prime: naive's rule, computed in parallel. The old one gave 0 to what raised; this one raises."""

    class BatchRewardManager(NaiveRewardManager):
        """batch: compute_score takes lists (data_sources, solution_strs, ground_truths, extra_infos)."""

        def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **kwargs: Any) -> None:
            def one(
                data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any = None, **more: Any
            ) -> Any:
                scores = compute_score(
                    data_sources=[data_source],
                    solution_strs=[solution_str],
                    ground_truths=[ground_truth],
                    extra_infos=[extra_info],
                    **more,
                )
                return scores[0]

            super().__init__(config, tokenizer, one, **kwargs)

    REWARD_MANAGER["prime"] = PrimeRewardManager
    REWARD_MANAGER["batch"] = BatchRewardManager
