"""Signs in a run's metrics and state that it has gone wrong, and none where it goes well."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_compat.buffer.model import Participant
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.job_dir import alerts
from trinity_compat.run.job_dir.snapshot import Snapshot, training_rows

REWARD, NORM, KL = "critic/score/mean", "actor/grad_norm", "actor/ppo_kl"
ENTROPY, LAG = "actor/entropy", "training/model_version_lag/max"
NAN = math.nan
FINITE = st.floats(-1e6, 1e6)


def of(max_staleness=None, **series):
    """Kind → text for a run with these series, each from step 1."""
    names = {"reward": REWARD, "norm": NORM, "kl": KL, "entropy": ENTROPY, "lag": LAG}
    length = max(map(len, series.values()))
    rows = [
        (step + 1, {names[name]: values[step] for name, values in series.items() if step < len(values)})
        for step in range(length)
    ]
    return {alert.kind: alert.text for alert in alerts.of_metrics(training_rows(rows), max_staleness)}


@given(
    st.lists(
        st.dictionaries(st.sampled_from([REWARD, NORM, KL, ENTROPY, LAG, "x"]), st.floats()), max_size=60
    )
)
def test_whatever_was_logged_gives_alerts_of_known_kinds(rows):
    found = alerts.of_metrics(training_rows(enumerate(rows, 1)), 3)
    assert {alert.kind for alert in found} <= set(alerts.KINDS)


@given(
    st.lists(FINITE, min_size=1, max_size=40), st.integers(1, 20), st.sampled_from([NAN, math.inf, -math.inf])
)
def test_a_metric_that_is_no_number_is_told_with_its_first_step(values, count, value):
    assert "not a number" not in of(norm=values)
    text = of(norm=values + [value] * count)["not a number"]
    assert text == f"{NORM} is {'NaN' if math.isnan(value) else 'infinite'} since step {len(values) + 1}"
    assert "not a number" not in of(norm=[*values, value, 1.0])


def test_of_several_metrics_the_first_to_break_is_named():
    text = of(norm=[1.0, 1.0, NAN, NAN], kl=[1.0, 1.0, 1.0, NAN])["not a number"]
    assert text == f"{NORM} is NaN since step 3, 1 more metrics too"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_a_reward_that_only_rises_is_no_alert(steps):
    assert "reward" not in of(reward=sorted(steps))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=200), st.floats(0.001, 1000))
def test_the_reward_s_scale_does_not_matter(values, scale):
    # A power of two: exact in floats.
    scale = 2.0 ** round(math.log2(scale))
    assert ("reward" in of(reward=values)) == ("reward" in of(reward=[value * scale for value in values]))


@given(st.floats(0.1, 10), st.integers(30, 100), st.integers(10, 40))
def test_a_reward_that_falls_back_to_where_it_began_is_told(top, rising, after):
    values = [top * step / rising for step in range(rising + 1)] + [0.0] * after
    assert of(reward=values)["reward"].startswith(f"the reward fell from {of_top(top, rising):.4g} at step")


def of_top(top, rising):
    return sum(top * step / rising for step in range(rising - 9, rising + 1)) / 10


@given(st.integers(0, 10**6), st.integers(30, 400))
def test_a_reward_that_is_only_noise_is_no_alert(seed, length):
    draw = random.Random(seed)
    assert "reward" not in of(reward=[draw.gauss(0.5, 0.1) for _ in range(length)])


@pytest.mark.parametrize(
    ("name", "usual", "blown"), [("norm", 0.5, 20.0), ("kl", 0.001, 0.5), ("kl", -0.001, -0.5)]
)
def test_a_gradient_or_kl_that_blows_up_is_told_and_one_spike_is_not(name, usual, blown):
    assert "since step 31" in of(**{name: [usual] * 30 + [blown] * 3})["blow-up"]
    assert "blow-up" not in of(**{name: [usual] * 30 + [blown] + [usual] * 2})
    assert "blow-up" not in of(**{name: [usual] * 5 + [blown] * 3})  # too early to know what is usual


@given(st.lists(st.floats(0, 1), min_size=13, max_size=80))
def test_a_gradient_below_one_never_blows_up(values):
    assert "blow-up" not in of(norm=values)


def test_an_entropy_that_is_all_but_gone_is_told():
    assert of(entropy=[1.0] * 20 + [0.01] * 3)["entropy"] == f"{ENTROPY} fell from 1 to 0.01"
    assert "entropy" not in of(entropy=[1.0] * 20 + [0.3] * 30)
    assert "entropy" not in of(entropy=[1.0] * 10 + [0.01] * 3)


def test_answers_that_are_as_old_as_they_may_be_for_several_steps_are_told():
    lags = [1.0] * 5 + [4.0] * 5
    assert "4 versions" in of(lag=lags, max_staleness=4)["staleness"]
    assert "staleness" not in of(lag=[*lags[:-1], 3.0], max_staleness=4)
    assert "staleness" not in of(lag=lags) and "staleness" not in of(lag=[0.0] * 9, max_staleness=0)


def snapshot(**given):
    explorer = Participant("explorer", "explorer", 1, "here", given.pop("state", "running"), 1.0, {})
    rows = training_rows([(1, {"timing_s/step": given.pop("step_s", 4.0), REWARD: 1.0})])
    base = Snapshot(10, 1, rows, {}, [explorer], None, 1)
    return dataclasses.replace(base, **given)


def kinds(found, free=10**12):
    return [alert.kind for alert in alerts.of_state(found, free)]


def test_an_explorer_that_works_and_stores_nothing_is_told():
    assert kinds(snapshot(quiet_s=301.0)) == ["stall"]
    assert kinds(snapshot(quiet_s=299.0)) == [] and kinds(snapshot(quiet_s=None)) == []
    assert kinds(snapshot(quiet_s=301.0, state="waiting")) == []  # for the trainer
    assert kinds(snapshot(quiet_s=900.0, step_s=200.0)) == []
    assert kinds(snapshot(quiet_s=1100.0, step_s=200.0)) == ["stall"]


def test_the_state_of_a_job_that_has_ended_gives_no_alert(tmp_path):
    spec = RunSpec(str(tmp_path), "sqlite:///x", {}, 1, 10, SyncSpec())
    found = snapshot(quiet_s=3000.0)
    assert [alert.kind for alert in alerts.of_run(found, found.rows, spec, running=True)][:1] == ["stall"]
    assert alerts.of_run(found, found.rows, spec, running=False) == []
    gone = dataclasses.replace(spec, job_dir=str(tmp_path / "gone"))  # its disk is not known
    assert kinds(found, None) == [
        alert.kind for alert in alerts.of_run(found, found.rows, gone, running=True)
    ]


def test_a_disk_that_is_almost_full_is_told():
    (alert,) = alerts.of_state(snapshot(), 2**30)
    assert alert.text == "1.0 GiB are free on the job's disk"
    assert kinds(snapshot(), 6 * 2**30) == [] and kinds(snapshot(), None) == []
