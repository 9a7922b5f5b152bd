"""Trinity-RFT's experience operators on the experiences of one batch.

An experience is trinity-rft's, or the stub's (trinity/workflows/trinity_stubs/experience.py): ``reward``,
``metrics``, ``info``, ``eid``, ``action_mask`` bool [R], ``truncate_status``. Each ``process`` returns the
experiences that are kept, changed in place or not, and metrics by name. Source: trinity/buffer/operators,
0.6.0.

numpy is imported where it is used: a dry run, which checks names and arguments, does not need it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.plain_numbers import is_number
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.trinity.pipelines import DATA_JUICER

SELECTOR_METRIC = "selector_metric"  # trinity/common/constants.py
FAILED = (
    "reward/failed"  # in the metrics of an answer whose reward function failed: explorer/rewards/scoring.py
)

Experiences = list[Any]
Processed = tuple[Experiences, dict[str, Any]]


def by_task(experiences: Iterable[Any]) -> list[Experiences]:
    """The groups, in the order of their first experience."""
    found: dict[str, Experiences] = {}
    for each in experiences:
        found.setdefault(each.eid.tid, []).append(each)
    return list(found.values())


class RewardFilter:
    """``reward_filter``: keep experiences with a reward of at least ``threshold``."""

    def __init__(self, threshold: float = 0.0) -> None:
        self._threshold = threshold

    def process(self, exps: Experiences) -> Processed:
        """Keep experiences with enough reward."""
        kept = [each for each in exps if each.reward >= self._threshold]
        return kept, {"filtered_count": len(exps) - len(kept)}


class RewardStdFilter:
    """``reward_std_filter``: keep groups of two or more whose rewards deviate by more than ``threshold``."""

    def __init__(self, threshold: float = 0.0) -> None:
        self._threshold = threshold

    def process(self, exps: Experiences) -> Processed:
        """Keep groups whose rewards deviate enough."""
        import numpy as np

        groups = [group for group in by_task(exps) if len(group) > 1]
        rewards = [[each.reward for each in group] for group in groups]
        spread = [float(np.std(each)) for each in rewards]
        kept = [
            each
            for group, deviation in zip(groups, spread, strict=True)
            if not deviation <= self._threshold
            for each in group
        ]
        told = {"reward_mean": [float(np.mean(each)) for each in rewards], "reward_std": spread}
        return kept, {"operator_filtered_count": len(exps) - len(kept)} | _spreads(told)


def _spreads(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Metrics of values as trinity/utils/metrics.py: aggregate_metrics."""
    import numpy as np

    how: Mapping[str, Callable[[Sequence[float]], Any]] = {"mean": np.mean, "max": np.max, "min": np.min}
    return {
        f"origin_group_advantages/{name}/{stat}": float(reduce(found))
        for name, found in values.items()
        for stat, reduce in how.items()
        if found
    }


class DapoDynamicSampling:
    """``dapo_dynamic_sampling``: groups of which some, not all, are right (arXiv 2503.14476, 3.2).

    Right is a metric ``metric_key``, else the reward, above ``correct_threshold``.
    """

    def __init__(self, metric_key: str = "accuracy", correct_threshold: float = 0.0) -> None:
        self._key, self._threshold = metric_key, correct_threshold

    def process(self, exps: Experiences) -> Processed:
        """Keep groups with right and wrong answers."""
        kept: Experiences = []
        wrong = right = 0
        for group in by_task(exps):
            count = sum(self._is_right(each) for each in group) if len(group) > 1 else -1
            if 0 < count < len(group):
                kept += group
            wrong += len(group) if count == 0 else 0
            right += len(group) if count == len(group) else 0
        dropped = {"filtered_count": len(exps) - len(kept)}
        return kept, dropped | {"dropped_all_correct": right, "dropped_all_wrong": wrong}

    def _is_right(self, each: Any) -> bool:
        found = each.metrics[self._key] if each.metrics and self._key in each.metrics else each.reward
        if found is None:
            raise ValueError(f"an experience has neither a metric {self._key!r} nor a reward")
        return float(found) > self._threshold


class MaskResponseTruncated:
    """``mask_response_truncated``: exclude all tokens of a truncated answer (arXiv 2503.14476, 3.4)."""

    def process(self, exps: Experiences) -> Processed:
        """Clear the action mask of truncated answers."""
        cut = [
            each
            for each in exps
            if each.truncate_status == "response_truncated" and each.action_mask is not None
        ]
        for each in cut:
            each.action_mask = each.action_mask.new_zeros(each.action_mask.shape)
        return exps, {"masked_truncated_count": len(cut)}


class InvalidRewardFilter:
    """``invalid_reward_filter``: drop experiences without a reward, or with NaN.

    A 0 that replaces the result of a failed reward function counts too (docs/rewards.md): no other invalid
    reward is stored.
    """

    def process(self, exps: Experiences) -> Processed:
        """Keep experiences with a number as reward."""
        # NaN equals nothing.
        numbers = [each for each in exps if each.reward is not None and each.reward == each.reward]
        kept = [each for each in numbers if not each.metrics.get(FAILED)]
        return kept, {"filtered_count": len(exps) - len(kept)}


class RewardShapingMapper:
    """``reward_shaping_mapper``: change the reward by values of ``info``.

    Each of ``reward_shaping_configs`` in turn applies ``op_type`` (ADD, SUB, MUL, DIV) with ``weight`` times
    the experience's ``info[stats_key]``, where that exists.
    """

    def __init__(self, reward_shaping_configs: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._rules = list(reward_shaping_configs or ())

    def process(self, exps: Experiences) -> Processed:
        """Change the rewards."""
        changes: list[float] = []
        for each in exps:
            before = each.reward
            for rule in self._rules if before is not None else ():
                change = SHAPES[rule.get("op_type", "ADD")]
                key, info = rule.get("stats_key"), each.info or {}
                if key is not None and key in info:
                    each.reward = change(each.reward, rule.get("weight", 1.0) * info[key])
            changes.append(0.0 if before is None else each.reward - before)
        return exps, {
            "reward_diff/mean": sum(changes) / max(1, len(changes)),
            "reward_diff/min": min(changes, default=0),
            "reward_diff/max": max(changes, default=0),
        }


SHAPES: Mapping[str, Callable[[float, float], float]] = {
    "ADD": lambda reward, by: reward + by,
    "SUB": lambda reward, by: reward - by,
    "MUL": lambda reward, by: reward * by,
    "DIV": lambda reward, by: reward / by if by != 0 else reward,
}


class PassRateCalculator:
    """``pass_rate_calculator``: the mean reward of each task, as ``selector_metric``.

    The metrics count the tasks between the extremes.
    """

    def __init__(self, **unused: object) -> None:
        """Accept any arguments and use none, as upstream."""

    def process(self, exps: Experiences) -> Processed:
        """Compute the mean reward of each task."""
        import numpy as np

        rewards: dict[Any, dict[Any, list[float]]] = {}
        for each in exps:
            place = each.info["task_index"]
            rewards.setdefault(place["taskset_id"], {}).setdefault(place["index"], []).append(each.reward)
        rates = {
            taskset: {index: float(np.mean(found)) for index, found in of_tasks.items()}
            for taskset, of_tasks in rewards.items()
        }
        selected = {
            taskset: {"indices": list(found), "values": list(found.values())}
            for taskset, found in rates.items()
        }
        every = np.array([rate for found in rates.values() for rate in found.values()])
        return exps, {SELECTOR_METRIC: selected} | _selection(every)


def _selection(rates: Any) -> dict[str, float]:
    """Fractions of the tasks by pass rate; ``rates`` float [tasks]. Empty for no tasks."""
    low, high = 1 / 16 + 1e-3, 15 / 16 - 1e-3
    parts = {
        "valid_ratio": (rates > 0) & (rates < 1),
        "strict_valid_ratio": (rates > low) & (rates < high),
        "<1_ratio": rates < 1,
        ">0_ratio": rates > 0,
        "<15_16_ratio": rates < high,
        ">1_16_ratio": rates > low,
    }
    return {f"selection/{name}": float(found.mean()) for name, found in parts.items()} if len(rates) else {}


OPERATORS: Mapping[str, type] = {
    "reward_filter": RewardFilter,
    "reward_std_filter": RewardStdFilter,
    "dapo_dynamic_sampling": DapoDynamicSampling,
    "mask_response_truncated": MaskResponseTruncated,
    "reward_shaping_mapper": RewardShapingMapper,
    "pass_rate_calculator": PassRateCalculator,
    "invalid_reward_filter": InvalidRewardFilter,
}


def check(name: object, arguments: object, where: str, registered: Set[str]) -> None:
    """Raise UserError for an unknown operator, with the nearest name, or for unknown arguments.

    ``registered``: operators of plugins, whose arguments are not checked.
    """
    if not isinstance(arguments, Mapping):
        raise UserError(f"{where}.args is {arguments!r}, it should be a section")
    if name in registered or name == DATA_JUICER:  # whose arguments run/plan/pipelines.py checks
        return
    if not isinstance(name, str) or name not in OPERATORS:
        known = (*OPERATORS, DATA_JUICER)
        one_of = f"write one of {', '.join(known)}, or name the folder of your own with --plugin-dir"
        hint = question(nearest(str(name), (*sorted(registered), *known))) or one_of
        raise UserError(f"{where}.name={name}: no operator of that name runs here", hint=hint)
    try:
        inspect.signature(OPERATORS[name]).bind(**arguments)
    except TypeError as error:
        raise UserError(f"{where}.args of {name}: {error}") from error
    for key in ("threshold", "correct_threshold"):
        _check_number(arguments.get(key, 0.0), f"{where}.args.{key}")
    rules = arguments.get("reward_shaping_configs") or []
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise UserError(f"{where}.args.reward_shaping_configs is {rules!r}: write a list of sections")
    for number, rule in enumerate(rules):
        place = f"{where}.args.reward_shaping_configs.{number}"
        _check_number(rule.get("weight", 1.0), f"{place}.weight")
        if rule.get("op_type", "ADD") not in SHAPES:
            raise UserError(f"{place}.op_type={rule['op_type']}: write one of {', '.join(SHAPES)}")


def _check_number(value: object, where: str) -> None:
    if not is_number(value):
        raise UserError(f"{where} is {value!r}: write a number")
