"""Figures of a plan at the edge of what is allowed."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.run.plan.pipelines import _count
from trinity_compat.run.plan.read_settings import retries


def test_a_rollout_may_be_tried_once_and_never_less():
    assert retries({"explorer": {"max_retry_times": 0}}) == 0
    with pytest.raises(UserError, match="max_retry_times is -1"):
        retries({"explorer": {"max_retry_times": -1}})


def test_one_process_is_a_number_of_processes():
    assert _count(1, "np") == 1
    with pytest.raises(UserError, match="np is 0: write a number of processes"):
        _count(0, "np")
