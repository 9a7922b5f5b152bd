"""Predictions of the simulation: by hand for small cases, and beside the explorer's own code."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from trinity_compat.advise.lengths import AnswerLengths, by_mean_and_p99, of_measured
from trinity_compat.advise.model import Schedule, Speeds, Workload
from trinity_compat.advise.simulate import simulate
from trinity_compat.common.errors import UserError

EVEN = Workload(4, 2, 0.0, of_measured([10], 10))  # a step: eight answers of ten tokens
# Ten decoding steps of a second, whatever runs; the 80 tokens of a batch train in 8 s on one GPU.
SPEEDS = Speeds(step_s=1.0, answer_s=0.0, slots=8, training=10.0)


def predicted(work=EVEN, speeds=SPEEDS, *, engines=1, width=1, trainer=1, steps=5, **schedule):
    return simulate(work, speeds, Schedule("", engines, width, trainer, **schedule), steps=steps)


def test_sides_that_wait_for_each_other_take_the_sum():
    found = predicted()
    assert found.step_s == pytest.approx(18)
    assert (found.generation_s, found.training_s, found.staleness) == (10, 8, 0)
    assert found.used == pytest.approx(0.5)
    assert found.engines_full == pytest.approx(10 / 18)


def test_an_offset_hides_the_shorter_side():
    found = predicted(offset=1)
    assert found.step_s == pytest.approx(10)
    assert found.used == pytest.approx(18 / 20)
    assert (found.staleness, found.staleness_max) == (1, 1)


def test_turns_use_all_gpus_and_pay_for_the_change():
    speeds = replace(SPEEDS, turn_s=0.5, handover_s=0.25)
    found = predicted(speeds=speeds, engines=2, trainer=2, in_turns=True)
    assert found.step_s == pytest.approx(10 + 4 + 0.5 * 2 + 0.25)
    assert found.used == pytest.approx(14 / found.step_s)


def test_both_sides_of_one_step_off_stop_for_a_handover():
    speeds = replace(SPEEDS, handover_s=3.0)
    assert predicted(speeds=speeds, offset=1, together=True).step_s == pytest.approx(13)


def test_a_pool_never_drains_where_nothing_limits_it():
    found = predicted(follows=True, staleness=3)
    assert found.step_s == pytest.approx(10)
    assert found.engines_full == pytest.approx(1)


def test_engines_in_turns_stop_in_the_middle_of_answers_and_lose_none_of_their_tokens():
    work = replace(EVEN, groups=1)
    found = predicted(work, follows=True, staleness=3, in_turns=True, steps=8)
    assert found.step_s == pytest.approx(10 / 4 + 2)  # four groups at a time; 20 tokens train in 2 s
    assert found.used == pytest.approx(1)
    assert found.engines_full == pytest.approx(2.5 / 4.5)
    slow = predicted(work, replace(SPEEDS, turn_s=0.5, handover_s=0.25), follows=True, in_turns=True)
    assert slow.step_s >= predicted(work, follows=True, in_turns=True).step_s + 1.25


def test_answers_kept_over_a_turn_hide_their_tail():
    work = Workload(16, 4, 0.0, AnswerLengths(400, math.log(30), 1.2))
    speeds = replace(SPEEDS, training=4000.0, slots=32)
    lockstep, kept = (
        predicted(work, speeds, in_turns=True, steps=20, **more)
        for more in ({}, {"follows": True, "staleness": 2})
    )
    assert kept.step_s < 0.8 * lockstep.step_s
    assert kept.used == pytest.approx(1)


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_group_is_trained_beyond_the_limit(limit, in_turns):
    work = Workload(8, 4, 0.0, AnswerLengths(400, math.log(30), 1.2))
    speeds, turns = replace(SPEEDS, training=100.0), {"in_turns": in_turns}
    found = predicted(work, speeds, steps=20, follows=True, staleness=limit, **turns)
    assert 0 < found.staleness <= found.staleness_max <= limit


def test_a_wider_limit_is_never_slower_where_answers_have_a_tail():
    work = Workload(16, 4, 0.0, AnswerLengths(400, math.log(30), 1.2))
    times = [
        predicted(
            work, replace(SPEEDS, training=4000.0, slots=16), follows=True, staleness=limit, steps=20
        ).step_s
        for limit in (1, 2, 3)
    ]
    assert times[0] > times[1] >= times[2]


def test_prompts_and_new_weights_cost_time():
    slow = replace(SPEEDS, prefill=8.0)  # a prompt of 8 tokens: a second, once a group
    prompts, quick = replace(EVEN, prompt=8.0), replace(SPEEDS, training=1000.0)
    assert predicted(prompts, slow).generation_s == pytest.approx(14)
    free = predicted(prompts, quick, follows=True, staleness=3)
    again = predicted(prompts, replace(quick, prefill=1000.0), follows=True, staleness=3)
    assert again.step_s > free.step_s


def test_lanes_say_when_each_side_works_with_which_weights_and_how_old_its_answers_are():
    lanes = predicted(offset=1).lanes
    assert [(lane.side, lane.step, lane.version, lane.begin, lane.end, lane.lag) for lane in lanes[:6]] == [
        ("explorer", 1, 0, 0, 10, 0),
        ("trainer", 1, 0, 10, 18, 0),
        ("explorer", 2, 0, 10, 20, 0),
        ("trainer", 2, 1, 20, 28, 1),
        ("explorer", 3, 1, 20, 30, 0),
        ("trainer", 3, 2, 30, 38, 1),
    ]
    uneven = Workload(2, 1, 0.0, AnswerLengths(400, math.log(30), 1.2))
    two = predicted(uneven, engines=2).lanes[0]
    lengths = sorted(AnswerLengths(400, math.log(30), 1.2).draw(source) for source in [random.Random(1)] * 2)
    assert (two.end, two.busy) == (lengths[1], pytest.approx(sum(lengths) / 2 / lengths[1]))


@pytest.mark.parametrize("limit", [1, 3])
def test_lanes_of_a_pool_follow_each_other_by_version_and_leave_out_the_time_without_work(limit):
    work = Workload(8, 4, 0.0, AnswerLengths(400, math.log(30), 1.2))
    found = predicted(work, replace(SPEEDS, training=2.0), steps=20, follows=True, staleness=limit)
    made = [lane for lane in found.lanes if lane.side == "explorer"]
    trained = [lane for lane in found.lanes if lane.side == "trainer"]
    assert [lane.version for lane in made] == list(range(8)) and made[0].begin == 0
    assert all(before.end == after.begin for before, after in itertools.pairwise(made))
    assert [lane.end for lane in trained] == [lane.end for lane in made]  # a handover takes no time here
    assert max(lane.lag for lane in trained) == limit >= found.staleness_max
    assert all(0 < lane.busy <= 1 for lane in made)
    # The trainer is slow: the pool runs dry before its weights come.
    assert min(lane.busy for lane in made) < 1


def test_the_same_seed_gives_the_same_and_another_does_not():
    work = Workload(4, 4, 0.0, AnswerLengths(400, math.log(30), 1.0))
    schedule = Schedule("", 1, 1, 1, follows=True, staleness=2)
    first, again, other = (simulate(work, SPEEDS, schedule, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_step_too_large_to_simulate_is_scaled_down():
    work = Workload(4096, 16, 0.0, AnswerLengths(4000, math.log(800), 0.8))
    speeds = Speeds(0.01, 0.00002, 256, training=10_000.0)
    large = predicted(work, speeds, engines=32, trainer=32, steps=4)
    small = predicted(replace(work, groups=512), speeds, engines=4, trainer=4, steps=4)
    assert large.step_s == pytest.approx(small.step_s, rel=0.03)
    assert large.used == pytest.approx(small.used, rel=0.03)


def test_one_engine_of_a_step_too_large_has_a_part_of_its_slots():
    work = Workload(1 << 40, 1 << 20, 0.0, of_measured([10], 10))
    found = predicted(work, replace(SPEEDS, slots=1 << 30, training=1e12), steps=2)
    assert found.engines_full > 0


@pytest.mark.parametrize(("mean", "p99", "limit"), [(900, 6000, 8000), (3000, 16000, 16000), (50, 60, 4096)])
def test_lengths_have_the_mean_and_the_percentile_that_they_are_given(mean, p99, limit):
    found = by_mean_and_p99(mean, p99, limit)
    assert (found.mean, found.p99) == pytest.approx((mean, p99))


@pytest.mark.parametrize(
    ("mean", "p99", "told"),
    [(0, 5, "above 0"), (9, 5, "at most the 99th"), (9, 500, "cuts answers at 100"), (1, 99, "that wide")],
)
def test_lengths_that_cannot_be_are_refused(mean, p99, told):
    with pytest.raises(UserError, match=told):
        by_mean_and_p99(mean, p99, 100)


@pytest.mark.parametrize(
    ("style", "offset", "staleness"),
    [("fixed", 0, None), ("fixed", 1, None), ("fully_async", 0, 1), ("fully_async", 0, 3)],
)
def test_the_explorer_s_own_code_fills_its_engines_as_predicted(style, offset, staleness):
    import advise_accuracy

    row = advise_accuracy.against_explorer(style, offset, staleness, engines=2)
    assert row.predicted == pytest.approx(row.measured, abs=0.03)
