"""Multi-step GRPO: the advantage of a run's last step, for all its steps.

    A = (r_last − mean) / (std + ε), ÷ the number of steps with ``enable_step_norm``

After rLLM. Mean and deviation are over the runs of a task. A run is one row here, or several, each of one
step or of several that are one conversation: ``info`` says which. Columns: that.
"""

from __future__ import annotations

from typing import Literal

from trinity_compat.trinity.algorithms.grouped import consecutive, runs_of, standardised
from trinity_compat.trinity.algorithms.model import STEPS, AdvantageInput, Tensor, advantage, algorithm

algorithm(
    "multi_step_grpo", "GRPO over runs of several steps", paper="2402.03300", advantage_fn="step_wise_grpo"
)


@advantage("step_wise_grpo", "advantage_fn/multi_step_grpo_advantage.py", columns=("info",))
def step_wise_grpo(
    answers: AdvantageInput,
    *,
    epsilon: float = 1e-6,
    enable_step_norm: bool = False,
    std_threshold: float | None = None,
    std_cal_level: Literal["group", "batch"] = "group",
) -> Tensor:
    """The last step's advantage for all steps of its run, [N]."""
    groups = runs_of(answers)
    runs = [run for group in groups for run in group]
    last = AdvantageInput(answers.rewards[[run[-1] for run in runs]], consecutive(groups))
    out = answers.rewards.clone()
    for run, value in zip(runs, standardised(last, epsilon, by_batch=std_cal_level == "batch"), strict=True):
        out[run] = value / (_steps(answers, run) if enable_step_norm else 1)
    return out


def _steps(answers: AdvantageInput, run: list[int]) -> int:
    """Return the number of steps of a run; a row that does not report its steps counts as one."""
    return sum(max(1, len(answers.info[row].get(STEPS) or ())) for row in run) if answers.info else len(run)
