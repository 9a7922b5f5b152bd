"""A busy machine doesn't change a reading: what counts is processor time."""

import gc

import pytest

from trinity_compat.common import limits
from trinity_compat.common.limits import Budget
from trinity_compat.launch import read_text


def test_waiting_for_the_parser_is_not_paid_for(monkeypatch):
    hours = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(limits.time, "monotonic", lambda: float(next(hours)))
    one = 'eval "python3 -m verl.trainer.main_ppo a=1"\n'
    reading = read_text(one + one)
    assert (len(reading.launches), reading.diagnostics) == (2, ())


def test_the_parser_s_own_time_is_paid_for(monkeypatch):
    used = iter([0.0, 0.7, 0.7, 1.4])
    monkeypatch.setattr(limits, "_children_seconds", lambda: next(used))
    budget = Budget()
    for _ in range(2):
        with budget.parser():
            pass
    assert budget.parser_seconds < 0


@pytest.mark.parametrize("collecting", [True, False])
def test_a_walk_through_the_caller_s_objects_is_not_paid_for(monkeypatch, collecting):
    """In a program with millions of objects the collector's walk takes longer than a script may."""
    was, seen = gc.isenabled(), []
    monkeypatch.setattr(Budget, "check_clock", lambda _: seen.append(gc.isenabled()))
    (gc.enable if collecting else gc.disable)()
    try:
        reading = read_text("python3 -m verl.trainer.main_ppo a=1")
        after = gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()
    assert (len(reading.launches), set(seen), after) == (1, {False}, collecting)
