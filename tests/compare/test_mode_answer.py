"""The answer of a trial about a mode: what compare's verdicts say, in one line."""

import math

import pytest
from builders import SCORE, run_of, with_metrics

from trinity_compat.compare import mode_answer
from trinity_compat.compare.margins import CompareOptions, MarginAmount, Margins
from trinity_compat.compare.model import Side
from trinity_compat.compare.verdict import compare

STEP = "timing_s/step"


def side(label, rewards, seconds=(), points=4):
    """A side whose seeds stay at a level of reward and of seconds a step."""
    runs = zip(rewards, seconds or [None] * len(rewards), strict=True)
    metrics = [{SCORE: [r] * points} | ({STEP: [s] * points} if s else {}) for r, s in runs]
    return Side(label, [run_of(one, f"{label}{number}") for number, one in enumerate(metrics)])


def compared(a, b, **margins):
    given = {SCORE: MarginAmount(margins["reward"], is_share=True)} if margins else {}
    return compare(a, b, CompareOptions(margins=Margins(given)))


BASE = [0.600, 0.602, 0.598]
SLOW, FAST = [3.2, 3.22, 3.18], [2.0, 2.03, 1.98]


def test_a_mode_with_the_same_reward_that_is_faster():
    found = compared(side("a", BASE, SLOW), side("b", [0.601, 0.599, 0.603], FAST), reward=0.02)
    assert mode_answer.in_words(found) == "reward within 2 %, 1.6 × as fast (95 %: 1.6 to 1.6)"
    assert mode_answer.why_worse(found) == ""
    assert mode_answer.of_baseline(found) == "reward 0.6, 3.2 s a step: the others are compared with this"


def test_without_a_margin_it_is_that_of_compare():
    found = compared(side("a", BASE, SLOW), side("b", [0.601, 0.599, 0.603], FAST))
    assert mode_answer.in_words(found).startswith("reward within 10 %, ")


def test_a_mode_with_a_lower_reward_is_worse():
    found = compared(side("a", BASE, SLOW), side("b", [0.501, 0.499, 0.503], FAST))
    assert mode_answer.in_words(found).startswith("reward lower by 16 %, 1.6 × as fast")
    assert mode_answer.why_worse(found) == "reward lower by 16 %"


def test_a_mode_with_a_higher_reward_is_not_worse():
    found = compared(side("a", BASE), side("b", [0.701, 0.699, 0.703]))
    assert mode_answer.in_words(found) == "reward higher by 17 %, no step times that both log"
    assert mode_answer.why_worse(found) == ""


def test_one_run_of_each_mode_never_is_worse_as_the_seed_may_explain_it():
    a, b = ([level + 0.02 * math.sin(2.4 * k) for k in range(40)] for level in (0.6, 0.3))
    b[::3] = [value + 0.01 for value in b[::3]]
    found = compared(with_metrics("a", {SCORE: a}), with_metrics("b", {SCORE: b}))
    assert found.metric(SCORE).verdict == "differs"
    assert mode_answer.why_worse(found) == ""


def test_a_reward_that_is_not_a_number_is_worse_after_one_seed():
    found = compared(
        with_metrics("a", {SCORE: [0.5] * 5}), with_metrics("b", {SCORE: [0.5, 0.5, *[math.nan] * 3]})
    )
    assert mode_answer.why_worse(found) == f"{SCORE} is NaN from step 3 on"
    assert "NaN here" in mode_answer.in_words(found)


def test_noise_is_unclear_and_says_how_many_seeds_would_decide():
    found = compared(side("a", [0.5, 0.7, 0.6]), side("b", [0.65, 0.45, 0.6]))
    words = mode_answer.in_words(found)
    assert words.startswith("reward unclear (−5.6 %; ")
    assert f"{found.metric(SCORE).evidence.seeds} seeds a mode would decide" in words


def test_equal_runs_are_equal():
    found = compared(side("a", BASE, SLOW), side("b", BASE, SLOW))
    assert mode_answer.in_words(found).startswith("reward equal at every step, 1.0 × as fast")


def test_a_worse_reward_beside_a_better_validation_is_left_to_the_user():
    score, check = SCORE, "val-core/toy/acc/mean@1"
    rows = [(0.6, 0.5), (0.601, 0.501), (0.599, 0.499)], [(0.5, 0.6), (0.501, 0.601), (0.499, 0.599)]
    sides = [
        Side(label, [run_of({score: [r] * 4, check: [v] * 4}, f"{label}{r}") for r, v in found])
        for label, found in zip("ab", rows, strict=True)
    ]
    found = compared(*sides)
    assert mode_answer.why_worse(found) == ""
    assert mode_answer.in_words(found).startswith(f"reward lower by 17 %, {check} higher by 20 %")


@pytest.mark.parametrize("seconds", [[2.9, 3.1, 3.0], [2.6, 2.7, 2.65], [3.3, 3.35, 3.5], [3.0, 3.6, 3.1]])
def test_the_interval_of_speed_excludes_1_exactly_where_compare_s_excludes_0(seconds):
    found = compared(side("a", BASE, [3.0, 3.3, 2.9]), side("b", BASE, seconds))
    faster, difference = mode_answer.speed_up(found), found.metric(STEP).difference
    assert (faster.low > 1 or faster.high < 1) == (difference.p <= 0.05)
    assert faster.low < faster.ratio < faster.high


def test_seconds_that_tell_nothing_set_no_limit():
    found = compared(side("a", BASE[:2], [1.0, 9.0]), side("b", BASE[:2], [1.0, 9.0001]))
    faster = mode_answer.speed_up(found)
    assert (faster.low, faster.high) == (0.0, math.inf)
    assert str(faster) == "1 × as fast (95 %: 0 to any)"
    assert mode_answer.record(found)["speed_up"]["high"] is None


def test_one_run_has_a_ratio_without_an_interval():
    found = compared(side("a", [0.6], [3.0], points=40), side("b", [0.6], [2.0], points=40))
    assert mode_answer.in_words(found).endswith("1.5 × as fast (one seed: no interval)")
    assert mode_answer.record(found)["speed_up"] == {"ratio": 1.5, "low": None, "high": None}
