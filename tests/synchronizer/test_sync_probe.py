"""The numbers of the handover's self-test (with engines: tests/explorer/test_selftest.py)."""

import math

import pytest

from trinity_compat.errors import RunError
from trinity_compat.synchronizer.probe import Probe

PROBE = Probe(3, [5, 6], [7, 8], [-1.0, -2.0])


def test_engines_within_the_bound_are_told():
    assert "version 3: mean log-probability -1.7500 in the engine, -1.5000" in PROBE.check([-1.5, -2.0], 0.25)


@pytest.mark.parametrize("answered", [[-1.5, -2.1], [math.nan, -2.0]])
def test_engines_beyond_it_end_the_run(answered):
    with pytest.raises(RunError, match="does not hold the weights that the trainer sent: version 3"):
        PROBE.check(answered, 0.25)
