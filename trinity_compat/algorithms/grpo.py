"""GRPO: an answer's advantage is its reward beside those of its group.

    A = (r − mean(group)) / (std(group) + ε)

arXiv 2402.03300. veRL's ``grpo`` has Trinity's numbers; ``std_cal_level: batch`` (2508.08221) is Trinity's
alone. Columns: none beyond rewards and the task's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from trinity_compat.algorithms.grouped import standardised
from trinity_compat.algorithms.model import Answers, Arguments, Tensor, advantage, algorithm

_SOURCE = "advantage_fn/grpo_advantage.py"
FILTERED = (
    "it leaves groups out, which veRL's trainer does by algorithm.filter_groups.enable=True:"
    " write std_threshold: null"
)

algorithm("grpo", "GRPO", paper="2402.03300", advantage_fn="grpo")
algorithm("grpo_verl", "GRPO, its advantage in the trainer", paper="2402.03300", advantage_fn="grpo")


def verl_grpo(arguments: Arguments) -> Mapping[str, object] | None:
    """veRL's ε is fixed."""
    if arguments["epsilon"] != 1e-6 or arguments.get("std_cal_level", "group") != "group":
        return None
    return {"algorithm.adv_estimator": "grpo"}


def _lacks(arguments: Arguments) -> str:
    if arguments["rank_penalty"] is not None:
        return "rank_penalty needs the answers' log-probabilities, which veRL gives no estimator"
    return FILTERED if arguments["std_threshold"] is not None else ""


@advantage("grpo", _SOURCE, verl=verl_grpo, lacks=_lacks)
def grpo(
    answers: Answers,
    *,
    epsilon: float = 1e-6,
    std_threshold: float | None = None,
    duplicate_experiences: bool = False,
    rank_penalty: float | None = None,
    std_cal_level: Literal["group", "batch"] = "group",
) -> Tensor:
    return standardised(answers, epsilon, by_batch=std_cal_level == "batch")


@advantage("grpo_verl", _SOURCE, verl=verl_grpo)
def grpo_in_trainer(answers: Answers, *, epsilon: float = 1e-6) -> Tensor:
    return standardised(answers, epsilon)
