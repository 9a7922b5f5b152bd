"""Patch: ``verl.utils.metric.Metric.aggregate_dp`` takes ranks with unlike numbers of values.

Why (verl 0.9.1, any device): it refuses them. A micro-batch of fillers alone has no value to report
(trainer/rank_fillers.py), and only some ranks have one. With equal numbers the results are stock's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_PATCHED = "_of_unlike_ranks"


def apply() -> None:
    """Replace verl's method in this process; no-op the second time."""
    from verl.utils.metric import AggregationType, Metric

    stock = Metric.aggregate_dp
    if hasattr(Metric, _PATCHED):
        return

    def aggregate_dp(cls: type[Metric], metric_lists: list[Metric]) -> Any:
        values = [each.values for each in metric_lists]
        if len({len(each) for each in values}) == 1:
            return stock(metric_lists)
        found = np.concatenate(values)
        match metric_lists[0].aggregation:
            case AggregationType.SUM:
                return found.sum() / len(values)
            case AggregationType.MEAN:
                return found.mean()
            case AggregationType.MIN:
                return found.min()
            case AggregationType.MAX:
                return found.max()

    setattr(Metric, _PATCHED, True)
    Metric.aggregate_dp = classmethod(aggregate_dp)
