"""Multi-step GRPO: the advantage of a run's last step, for all its steps.

    A = (r_last − mean) / (std + ε), ÷ the number of steps with ``enable_step_norm``

After rLLM. An answer here is one sequence, its reward that of its last step; what a workflow's steps said
(``info``) tells how many there were, one where it is not told. Columns: that, with ``enable_step_norm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from trinity_compat.algorithms.grouped import standardised
from trinity_compat.algorithms.grpo import verl_grpo
from trinity_compat.algorithms.model import STEPS, Answers, Arguments, Tensor, advantage, algorithm

algorithm(
    "multi_step_grpo", "GRPO over runs of several steps", paper="2402.03300", advantage_fn="step_wise_grpo"
)


def _verl(arguments: Arguments) -> Mapping[str, object] | None:
    return None if arguments["enable_step_norm"] else verl_grpo(arguments)


@advantage("step_wise_grpo", "advantage_fn/multi_step_grpo_advantage.py", verl=_verl, columns=("info",))
def step_wise_grpo(
    answers: Answers,
    *,
    epsilon: float = 1e-6,
    enable_step_norm: bool = False,
    std_threshold: float | None = None,
    std_cal_level: Literal["group", "batch"] = "group",
) -> Tensor:
    out = standardised(answers, epsilon, by_batch=std_cal_level == "batch")
    if not enable_step_norm or not answers.info:
        return out
    return out / out.new_tensor([max(1, len(info.get(STEPS) or ())) for info in answers.info])
