"""A busy machine doesn't change a reading: what counts is processor time."""

from trinity_compat.launch import read_text
from trinity_compat.launch.core import bounds
from trinity_compat.launch.core.bounds import Budget


def test_waiting_for_the_parser_is_not_paid_for(monkeypatch):
    hours = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(bounds.time, "monotonic", lambda: float(next(hours)))
    one = 'eval "python3 -m verl.trainer.main_ppo a=1"\n'
    reading = read_text(one + one)
    assert (len(reading.launches), reading.diagnostics) == (2, ())


def test_the_parser_s_own_time_is(monkeypatch):
    used = iter([0.0, 0.7, 0.7, 1.4])
    monkeypatch.setattr(bounds, "_children_seconds", lambda: next(used))
    budget = Budget()
    for _ in range(2):
        with budget.parser():
            pass
    assert budget.parser_seconds < 0
