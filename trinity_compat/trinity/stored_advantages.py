"""The advantage of each answer of a group by the run's own algorithm, from what the database holds.

The functions are those of ``trinity/algorithms``; they take an array with the methods of a tensor, since
torch is not imported here. Where an algorithm needs what is not stored, the reason is given instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity_compat.buffer.model import DROPPED, Experience
from trinity_compat.common.nested import value_at
from trinity_compat.job.answer_info import OF_RUN
from trinity_compat.trinity.algorithms import FUNCTIONS
from trinity_compat.trinity.algorithms.grouped import above_baseline, standardised
from trinity_compat.trinity.algorithms.model import PREFIX, AdvantageInput


class RewardArray(npt.NDArray[np.float64]):
    """Rewards with those methods of a tensor that differ from an array's."""

    def clone(self) -> RewardArray:
        """Return a copy."""
        return self.copy()

    def std(self, *, correction: int = 1) -> Any:  # type: ignore[override] # a tensor's
        """Return the standard deviation, with Bessel's correction."""
        return np.std(np.asarray(self), ddof=correction)

    def new_zeros(self, size: int) -> RewardArray:
        """Return zeros."""
        return np.zeros(size).view(RewardArray)

    def logsumexp(self, axis: int) -> Any:
        """Return log Σ exp."""
        return np.logaddexp.reduce(np.asarray(self), axis=axis)


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """``values``: of each answer, None for one that is not trained; ``formula`` with its source.

    ``why``: the reason where there are none.
    """

    values: Sequence[float | None] = ()
    formula: str = ""
    why: str = ""


Formula = Callable[[AdvantageInput], Any]
_CORE = "veRL, trainer/ppo/core_algos.py"
_GRPO = "arXiv 2402.03300"


def _grpo(algorithm: Mapping[str, Any]) -> tuple[Formula, str]:
    if algorithm.get("norm_adv_by_std_in_grpo", True):
        return lambda answers: standardised(
            answers, 1e-6
        ), f"(r − mean) / (std + 1e-6): GRPO ({_GRPO}; {_CORE})"
    told = f"r − mean: GRPO without the deviation (Dr. GRPO, arXiv 2503.20783; {_CORE})"
    return lambda answers: above_baseline(answers, lambda rewards: rewards.mean()), told


def _rloo(algorithm: Mapping[str, Any]) -> tuple[Formula, str]:
    def others(rewards: Any) -> Any:
        return (rewards.sum() - rewards) / (len(rewards) - 1)

    told = f"r − mean of the others: RLOO (arXiv 2402.14740; {_CORE})"
    return lambda answers: above_baseline(answers, others), told


_OF_VERL = {"grpo": _grpo, "grpo_vectorized": _grpo, "rloo": _rloo}
# Ours that read nothing but the rewards of a group and what its answers said of themselves.
_OF_TRINITY = (
    "grpo",
    "grpo_verl",
    "step_wise_grpo",
    "reinforce",
    "opmd",
    "opmd_verl",
    "asymre",
    "asymre_verl",
    "rec",
)
_BATCH = "it is normalized over all tokens of a train batch"
_REASONS = {
    "gae": "GAE needs the critic's values, which are not stored",
    "reinforce_plus_plus": _BATCH,
    "reinforce_plus_plus_baseline": _BATCH,
    "gdpo": _BATCH,
    "gpg": "it is scaled by the share of rewards of a train batch that are not zero",
    "remax": "its baseline is the reward of a greedy answer",
}


def of_group(verl: Mapping[str, object], kind: str, answers: Sequence[Experience]) -> GroupAdvantages:
    """Return the advantages of a whole group's answers under the run's configuration."""
    algorithm = value_at(verl, "algorithm")
    name = str(algorithm.get("adv_estimator") or "") if isinstance(algorithm, Mapping) else ""
    if not name:
        return GroupAdvantages(why="the run's record names no algorithm.adv_estimator")
    if kind != "train":
        source = "a validation" if kind.startswith("eval:") else f"kind {kind}"
        return GroupAdvantages(why=f"answers of {source} are not trained")
    if algorithm.get("use_kl_in_reward"):
        why = "algorithm.use_kl_in_reward takes a KL penalty off the rewards, which is not stored"
        return GroupAdvantages(why=why)
    if any(OF_RUN in answer.info for answer in answers):
        return GroupAdvantages(why="runs of the workflow have several rows here")
    kept = [place for place, answer in enumerate(answers) if not answer.metrics.get(DROPPED)]
    if not kept or not all(math.isfinite(answers[place].reward) for place in kept):
        return GroupAdvantages(why="a reward of the group is not finite")
    formula, told = _formula(name, algorithm)
    if formula is None:
        return GroupAdvantages(why=f"{name}: {told}")
    rewards = np.array([answers[place].reward for place in kept]).view(RewardArray)
    infos = [answers[place].info for place in kept]
    found = formula(AdvantageInput(rewards, [range(len(kept))], info=infos))
    values: list[float | None] = [None] * len(answers)
    for place, value in zip(kept, found.tolist(), strict=True):
        values[place] = value
    return GroupAdvantages(values, told)


def _formula(name: str, algorithm: Mapping[str, Any]) -> tuple[Formula | None, str]:
    """Return the function and its formula; None and the reason where it cannot be computed."""
    if name in _OF_VERL:
        return _OF_VERL[name](algorithm)
    own = name.removeprefix(PREFIX)
    arguments = algorithm.get("trinity_args") or {}
    if name == own or own not in _OF_TRINITY:
        return None, _REASONS.get(
            name, "it needs more than rewards, or a function that only the trainer loads"
        )
    if arguments.get("std_cal_level") == "batch":
        return None, "std_cal_level batch takes the deviation of a whole train batch"
    if arguments.get("rank_penalty") is not None:
        return None, "rank_penalty needs the trainer's log-probabilities, which are not stored"
    if arguments.get("drop"):
        return None, "drop leaves out answers at random"
    function = FUNCTIONS["advantage_fn"][own]
    call = function.call
    assert call is not None
    summary = (call.__doc__ or "").partition("\n")[0]
    given = ", ".join(f"{key}={value}" for key, value in {**function.defaults, **arguments}.items())
    told = f"{summary} (Trinity-RFT, algorithm/{function.source}{'; ' if given else ''}{given})"
    return lambda answers: call(answers, **arguments), told
