"""The numbers of the handover's self-test (with engines: tests/explorer/test_weight_sync_check.py)."""

import math
from contextlib import closing

import pytest

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.synchronizer import weight_sync_check
from trinity_compat.synchronizer.weight_sync_check import ScoredAnswer

PROBE = ScoredAnswer(3, [5, 6], [7, 8], [-1.0, -2.0])


def test_engines_within_the_bound_are_told():
    assert "version 3: mean log-probability -1.7500 in the engine, -1.5000" in PROBE.check([-1.5, -2.0], 0.25)


@pytest.mark.parametrize("answered", [[-1.5, -2.1], [math.nan, -2.0]])
def test_engines_beyond_it_end_the_run(answered):
    with pytest.raises(RunError, match="does not hold the weights that the trainer sent: version 3"):
        PROBE.check(answered, 0.25)


@pytest.mark.parametrize(("given", "bound"), [(None, 0.5), ("", 0.5), ("0", 0.0), ("1e-3", 0.001)])
def test_the_bound_is_the_environment_s_where_it_names_one(monkeypatch, given, bound):
    monkeypatch.delenv(weight_sync_check.BOUND, raising=False)
    if given is not None:
        monkeypatch.setenv(weight_sync_check.BOUND, given)
    assert weight_sync_check.bound() == bound


def test_a_bound_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv(weight_sync_check.BOUND, "small")
    with pytest.raises(UserError, match=f"{weight_sync_check.BOUND}=small is not a number"):
        weight_sync_check.bound()


SENT = WeightVersion(3, "/weights", "d" * 32, 10)
LAYOUT = "a" * 16


@pytest.fixture
def loaded(tmp_path):
    with closing(open_buffer(f"sqlite:///{tmp_path}/b.db")) as buffer:
        yield weight_sync_check.LoadedWeights(buffer, 0)


def answer(held="1", digest=SENT.digest, proof="same in all engines"):
    return {"digest": digest, "held": LAYOUT + held * 32, "proof": proof}


def test_engines_that_received_and_hold_the_same_are_recorded(loaded):
    loaded.arrived(SENT, 0, [answer()])
    loaded.arrived(SENT, 1, [answer()])
    loaded.arrived(SENT, 1, [{"tensors": 1}])  # an engine without digests


def test_an_engine_that_received_another_version_ends_the_run(loaded):
    with pytest.raises(RunError, match=r"version 3 .* at explorer 0 engine 1 rank 0 is not the trainer's"):
        loaded.arrived(SENT, 1, [answer(digest="e" * 32)])


def test_an_engine_that_holds_something_else_ends_the_run(loaded):
    loaded.arrived(SENT, 0, [answer()])
    loaded.arrived(SENT, 1, [{**answer(), "held": "b" * 16 + "2" * 32}])  # another part of the model
    loaded.arrived(SENT, 2, [answer("2", proof="recorded")])  # quantized
    with pytest.raises(
        RunError, match="engine 3 rank 0 is held otherwise than at explorer 0 engine 0 rank 0"
    ):
        loaded.arrived(SENT, 3, [answer("3")])
