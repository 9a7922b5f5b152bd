"""Multi-step GRPO: the advantage of a run's last step, for all its steps.

    A = (r_last − mean) / (std + ε), ÷ the number of steps with ``enable_step_norm``

After rLLM. An answer here is one sequence, whatever turns it has: a run has one step, and
``enable_step_norm`` changes nothing. Columns: none beyond rewards and the task's id.
"""

from __future__ import annotations

from typing import Literal

from trinity_compat.algorithms.grouped import standardised
from trinity_compat.algorithms.grpo import verl_grpo
from trinity_compat.algorithms.model import Answers, Tensor, advantage, algorithm

algorithm(
    "multi_step_grpo", "GRPO over runs of several steps", paper="2402.03300", advantage_fn="step_wise_grpo"
)


@advantage(
    "step_wise_grpo",
    "advantage_fn/multi_step_grpo_advantage.py",
    verl=verl_grpo,
)
def step_wise_grpo(
    answers: Answers,
    *,
    epsilon: float = 1e-6,
    enable_step_norm: bool = False,
    std_threshold: float | None = None,
    std_cal_level: Literal["group", "batch"] = "group",
) -> Tensor:
    return standardised(answers, epsilon, by_batch=std_cal_level == "batch")
