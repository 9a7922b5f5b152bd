"""Which rows training draws: the order of tasksets that take turns, and of the rows of each."""

import json
from pathlib import Path

import numpy
import pytest

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.data.taskset_order import TasksetOrder
from trinity_compat.explorer.scheduling.difficulty_feedback import last_known_step
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.trinity.selectors import Estimator, columns_of, selector_of

ARGUMENTS = {
    "m": 16,
    "lamb": 0.2,
    "rho": 0.2,
    "target_reward": 1.0,
    "tau": 1.0,
    "do_sample": False,
    "adaptive_rho": False,
}
RECORDED = Path(__file__).parent / "selectors.json"  # of the real package: tests/upstream/test_selectors.py


def selector(size, kind="sequential", seed=42, columns=None, **arguments):
    asked = {
        "type": kind,
        "seed": seed,
        "feature_keys": list(columns or {}),
        "place": "tasksets.0.data_selector",
    }
    return selector_of({**asked, "kwargs": {**ARGUMENTS, **arguments}}, size, columns or {}, "tasksets.0")


def order(*selectors, batch=3, draw=None):
    return TasksetOrder(selectors, batch, draw or batch)


def drawn(rows, count):
    return [rows.row(number) for number in range(count)]


def test_one_taskset_in_its_own_order_begins_again_within_a_batch():
    assert drawn(order(selector(5), batch=2), 12) == [0, 1, 2, 3, 4] * 2 + [0, 1]


@pytest.mark.parametrize("draw", [1, 3, 4])
def test_each_epoch_has_each_row_once_whatever_the_order(draw):
    whole = drawn(order(selector(4), selector(7, "shuffle"), draw=draw), 24)
    first, second = whole[:11], whole[11:22]
    assert sorted(first) == sorted(second) == list(range(11))
    assert first != second
    assert [row for row in first if row < 4] == [0, 1, 2, 3]  # in its own order among the others'


def test_a_shuffled_taskset_has_numpy_s_permutation_of_seed_and_epoch():
    expected = [numpy.random.default_rng(42 + epoch).permutation(6).tolist() for epoch in (0, 1)]
    assert drawn(order(selector(6, "shuffle"), batch=2), 12) == expected[0] + expected[1]


def of_all_kinds():
    pairs = {"weak": [0.1, 0.4, 0.2, 0.8, 0.5], "strong": [0.2, 0.9, 0.5, 1.0, 0.5]}
    return order(
        selector(4, "shuffle", 1),
        selector(7, "random", 2),
        selector(5, "difficulty_based", 3, pairs),
        selector(5, "offline_easy2hard", 0, pairs),
    )


def test_a_row_does_not_depend_on_what_was_asked_before():
    assert drawn(of_all_kinds(), 60)[59] == of_all_kinds().row(59)


def test_what_was_drawn_long_ago_is_not_held_but_drawn_again():
    rows = of_all_kinds()
    whole = drawn(rows, 600)  # 200 draws, 28 epochs
    assert len(rows._draws) <= 64
    assert len(rows._epochs) <= 3
    assert [rows.row(number) for number in reversed(range(600))] == whole[::-1]


def test_at_random_no_row_comes_twice_in_a_draw_and_a_draw_is_its_seed_s():
    rows = selector(6, "random", 7)
    first, second = rows.rows(0, 5), rows.rows(5, 5)
    assert len({*first}) == len({*second}) == 5 and first != second
    assert first == numpy.random.default_rng(7).choice(6, 5, replace=False).tolist()
    with pytest.raises(RunError, match=r"tasksets\.0: a step draws 7 of its 6 rows"):
        rows.rows(0, 7)


def test_easy_rows_come_first_and_of_equal_ones_the_later():
    rows = selector(4, "offline_easy2hard", columns={"rate": [0.5, 0.9, 0.5, 0.1], "length": [1, 0, 1, 9]})
    assert rows.rows(0, 6) == [1, 2, 0, 3, 1, 2]


def test_the_best_rows_alone_are_drawn_without_a_temperature():
    columns = {"weak": [0.0, 0.2, 0.4, 0.6], "strong": [0.2, 0.4, 0.6, 0.8]}
    rows = selector(4, "difficulty_based", columns=columns, tau=0, target_reward=0.5)
    rows.learn([0, 1, 2, 3], [0.0, 0.45, 1.0, 1.0])
    assert rows.rows(0, 1) == [1]
    rows.learn([0, 1], [0.6, 1.0])  # which has become too easy
    assert rows.rows(1, 1) == [0]
    rows.forget()
    assert rows.estimator.rates().tolist() == [0.5] * 4


def test_what_came_back_changes_the_rows_that_are_drawn_next():
    pairs = {"weak": [0.1] * 6, "strong": [0.9] * 6}
    taught = order(selector(6, "difficulty_based", columns=pairs, tau=0))
    before = drawn(taught, 6)
    taught.learn(0, before[:3], [0.0, 0.0, 0.0])
    assert {*drawn(taught, 6)} == {*range(6)} - {*before[:3]}
    taught.forget()
    assert drawn(taught, 6) == before


def test_rows_that_no_taskset_has_cannot_have_come_back():
    rows = order(selector(4), selector(6, "random"))
    rows.learn(0, [0], [0.5])  # of a selector that does not ask
    for taskset, row in ((2, 0), (-1, 0), (1, 6)):
        with pytest.raises(RunError, match=f"rows that taskset {taskset} does not have"):
            rows.learn(taskset, [row], [0.5])


def test_a_column_that_a_selector_cannot_compare_is_named_with_its_row():
    from datasets import Dataset

    asked = {"feature_keys": ["rate"], "place": "tasksets.0.data_selector"}
    rows = Dataset.from_list([{"rate": 1.0, "level": 3}, {"rate": None, "level": 4}])
    with pytest.raises(UserError, match=r"tasksets\.0\.data_selector\.feature_keys=rate: row 1 has None"):
        selector(2, "offline_easy2hard", columns=columns_of(asked, rows, "/d"))
    with pytest.raises(UserError, match=r"feature_keys=hard: /d has no such column(?s:.)*level, rate"):
        columns_of({**asked, "feature_keys": ["hard"]}, rows, "/d")


@pytest.mark.parametrize(
    ("sync", "known"),
    [
        (SyncSpec(interval=1), [0, 1, 2, 3, 4, 5]),
        (SyncSpec(interval=2), [0, 0, 2, 2, 4, 4]),
        (SyncSpec(interval=2, offset=1), [0, 0, 0, 3, 3, 5]),
        (SyncSpec("trainer_driven", interval=4, explorer_interval=3), [0, 0, 0, 3, 3, 3]),
        (SyncSpec("fully_async", interval=4), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_what_came_back_counts_from_the_next_sync_on(sync, known):
    assert [last_known_step(sync, step) for step in range(1, 7)] == known


def cases():
    return json.loads(RECORDED.read_text())


@pytest.mark.parametrize("number", range(len(cases())))
def test_rows_and_estimates_are_trinity_rft_s(number):
    case = cases()[number]
    rows = selector(case["size"], case["kind"], case["seed"], case["columns"], **case["arguments"])
    first = 0
    for step in case["steps"]:
        assert [*rows.rows(first, step["count"])] == step["rows"]
        first += step["count"]
        if case["kind"] == "difficulty_based":
            rows.learn(step["rows"], step["rates"])
            numpy.testing.assert_allclose(rows.estimator.alphas, step["alphas"], rtol=1e-12)
            numpy.testing.assert_allclose(rows.estimator.betas, step["betas"], rtol=1e-12)


def test_estimates_are_of_one_row_each():
    found = Estimator(numpy.array([[0.1, 0.9], [0.1, 0.9]]), m=16, lamb=0.2, rho=0.0, adaptive_rho=False)
    found.update([0], [1.0])
    assert found.rates().tolist() == [17 / 18, 0.5]
