"""GRPO: an answer's advantage is its reward beside those of its group.

    A = (r − mean(group)) / (std(group) + ε)

arXiv 2402.03300. veRL's ``grpo`` has Trinity's numbers; ``std_cal_level: batch`` (2508.08221) is Trinity's
alone. Columns: none beyond rewards and the task's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from trinity_compat.trinity.algorithms.grouped import standardised
from trinity_compat.trinity.algorithms.model import AdvantageInput, Arguments, Tensor, advantage, algorithm

_SOURCE = "advantage_fn/grpo_advantage.py"

algorithm("grpo", "GRPO", paper="2402.03300", advantage_fn="grpo")
algorithm("grpo_verl", "GRPO, its advantage in the trainer", paper="2402.03300", advantage_fn="grpo")


def verl_grpo(arguments: Arguments) -> Mapping[str, object] | None:
    """Return veRL's keys if its grpo gives the same numbers: veRL's ε is fixed."""
    if arguments["epsilon"] != 1e-6 or arguments.get("std_cal_level", "group") != "group":
        return None
    return None if arguments.get("rank_penalty") is not None else {"algorithm.adv_estimator": "grpo"}


def _lacks(arguments: Arguments) -> str:
    if arguments["duplicate_experiences"] and arguments["std_threshold"] is not None:
        return "groups that are left out are drawn anew here, not replaced by copies of others"
    return ""


@advantage("grpo", _SOURCE, verl=verl_grpo, lacks=_lacks, columns=("mask", "old_log_prob"))
def grpo(
    answers: AdvantageInput,
    *,
    epsilon: float = 1e-6,
    std_threshold: float | None = None,
    duplicate_experiences: bool = False,
    rank_penalty: float | None = None,
    std_cal_level: Literal["group", "batch"] = "group",
) -> Tensor:
    """Groups whose rewards' deviation is at most ``std_threshold`` the explorer leaves out: chosen.py."""
    return standardised(answers, epsilon, by_batch=std_cal_level == "batch", rank_penalty=rank_penalty)


@advantage("grpo_verl", _SOURCE, verl=verl_grpo)
def grpo_in_trainer(answers: AdvantageInput, *, epsilon: float = 1e-6) -> Tensor:
    """GRPO's advantage [N], computed in the trainer."""
    return standardised(answers, epsilon)
