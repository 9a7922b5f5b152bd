"""Metrics of ranks that have unlike numbers of micro-batches."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from verl.utils.metric import Metric
from trinity_compat.plugins import rank_metrics

kind, patched = sys.argv[1:]
if patched == "yes":
    rank_metrics.apply()
    rank_metrics.apply()
unlike, alike = [
    [Metric(kind), Metric(kind)] for _ in range(2)
]
for metrics, values in ((unlike, ([1.0, 2.0, 6.0], [3.0])), (alike, ([1.0, 2.0], [3.0, 5.0]))):
    for metric, own in zip(metrics, values):
        metric.extend(own)
print(float(Metric.aggregate_dp(alike)))
print(float(Metric.aggregate_dp(unlike)))
"""


def aggregated(kind, patched):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, patched], capture_output=True, text=True, check=False
    )


@pytest.mark.verl
@pytest.mark.parametrize(
    ("kind", "alike", "unlike"),
    [("sum", 5.5, 6.0), ("mean", 2.75, 3.0), ("min", 1.0, 1.0), ("max", 5.0, 6.0)],
)
def test_each_value_counts_once_and_a_sum_is_the_mean_of_the_ranks(kind, alike, unlike):
    told = aggregated(kind, "yes")
    assert [float(line) for line in told.stdout.splitlines()[-2:]] == [alike, unlike], told.stderr


@pytest.mark.verl
def test_stock_verl_refuses_unlike_ranks_and_agrees_on_others():
    told = aggregated("sum", "no")
    assert float(told.stdout.splitlines()[-1]) == 5.5
    assert "must have the same number of values" in told.stderr
