"""What counts as the same: the default margin, the user's, and files of them."""

from __future__ import annotations

import random

import pytest
from builders import SCORE, seeds_at, with_metrics

from trinity_compat.common.errors import UserError
from trinity_compat.compare.margins import MarginAmount, Margins, amount, read
from trinity_compat.compare.verdict import CompareOptions, compare

WIDE = [0.480, 0.490, 0.500, 0.510, 0.520]


def judged(a, b, name=SCORE, **given):
    options = CompareOptions(margins=Margins({key: amount(key, value) for key, value in given.items()}))
    return compare(seeds_at("a", a, name), seeds_at("b", b, name), options).metric(name)


def test_the_default_margin_is_a_tenth_of_the_level_of_a_not_more():
    """B is 8 % higher: inside a tenth, but not surely so; of 15 % it would be."""
    b = [0.46, 0.52, 0.53, 0.57, 0.62]
    metric = judged(WIDE, b)
    assert metric.evidence.margin.size == pytest.approx(0.05)
    assert metric.evidence.margin.origin == "a tenth of A's level"
    assert (metric.verdict, metric.why) == ("unclear", "the noise is wider than the margin")
    steadier = judged(WIDE, [level + 0.015 for level in WIDE])
    assert steadier.verdict == "same"
    assert steadier.evidence.p_same < 0.05 < metric.evidence.p_same


def test_just_inside_a_tenth_is_not_called_the_same_by_luck():
    narrow = [0.5, 0.5005, 0.4995, 0.5002, 0.4998]
    beyond, inside = ([level * factor for level in narrow] for factor in (1.12, 1.05))
    assert judged(narrow, beyond, **{SCORE: "15%"}).verdict == "same"
    assert judged(narrow, inside, **{SCORE: "4%"}).verdict == "differs"


def test_the_two_one_sided_tests_are_made_at_5_percent():
    metric = judged(WIDE, [0.48, 0.50, 0.52, 0.54, 0.56])
    assert 0.05 < metric.evidence.p_same < 0.1
    assert metric.verdict == "unclear"


def test_far_below_is_as_little_the_same_as_far_above():
    narrow = [0.5, 0.5005, 0.4995, 0.5002, 0.4998]
    for shift in (-0.1, 0.1):
        assert judged(narrow, [level + shift for level in narrow], **{SCORE: "0.02"}).verdict == "differs"


def test_near_zero_the_margin_is_a_tenth_of_the_spread_between_seeds():
    metric = judged([-0.01, 0.02, -0.015, 0.01], [0.012, -0.02, 0.01, 0.003], "actor/pg_loss")
    assert metric.evidence.margin.origin == "a tenth of the standard deviation between seeds"
    assert 0.001 < metric.evidence.margin.size < 0.002
    assert "its level is near 0" in metric.why and "--margin" in metric.why
    assert judged(
        [-0.01, 0.02, -0.015, 0.01], [0.012, -0.02, 0.01, 0.003], "actor/pg_loss", policy="0.1"
    ).verdict == ("same")


def test_a_given_margin_is_the_users_word_and_goes_before_a_sure_difference():
    narrow = [0.5, 0.5005, 0.4995, 0.5002, 0.4998]
    higher = [level + 0.01 for level in narrow]
    assert judged(narrow, higher).verdict == "differs"
    metric = judged(narrow, higher, **{SCORE: "0.02"})
    assert (metric.verdict, metric.why) == ("same", "B − A is significant, but within the given margin")
    assert judged(narrow, higher, **{SCORE: "0.005"}).verdict == "differs"


def test_a_name_with_brackets_is_a_name_and_not_only_a_pattern():
    assert Margins({"actor/x[0]": MarginAmount(1)}, frozenset({"actor/x[0]"})).unused(["actor/x[0]"]) == []


def test_a_name_goes_before_a_pattern_before_a_group():
    margins = Margins(
        {
            "reward": MarginAmount(1),
            "critic/score/*": MarginAmount(2),
            "critic/*": MarginAmount(3),
            SCORE: MarginAmount(4),
        }
    )
    assert margins.of(SCORE) == MarginAmount(4)
    assert margins.of("critic/score/max") == MarginAmount(2)
    assert margins.of("critic/rewards/mean") == MarginAmount(3)
    assert Margins({"reward": MarginAmount(1)}).of("critic/rewards/mean") == MarginAmount(1)
    assert margins.of("actor/entropy") is None


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x", "", "%", "5%%"])
def test_what_is_not_a_positive_number_is_refused(text):
    with pytest.raises(UserError, match="is not a positive number"):
        amount("--margin x", text)


def test_a_share_is_of_the_level():
    assert amount("x", "5%") == amount("x", "5 %") == MarginAmount(0.05, is_share=True)
    metric = judged(WIDE, WIDE[::-1], **{SCORE: "20%"})
    assert metric.evidence.margin.size == pytest.approx(0.1)
    assert metric.evidence.margin.origin == "given: 20 %"


def test_a_file_gives_margins_to_groups_patterns_and_metrics(tmp_path):
    path = tmp_path / "margins.yaml"
    path.write_text('reward: 5%\nlength: 2\n"val-core/*": 0.01\ncritic/score/mean: 1e-2\n')
    assert read(path) == {
        "reward": MarginAmount(0.05, is_share=True),
        "length": MarginAmount(2),
        "val-core/*": MarginAmount(0.01),
        SCORE: MarginAmount(0.01),
    }


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("reward: 5%\nlenght: 2\n", 2, "lenght: neither a metric nor a group of the report"),
        ("reward: 5%\n\nlength: yes please\n", 3, "length: 'yes please' is not a positive number"),
        ("reward: true\n", 1, "reward: 'True' is not a positive number"),
        ("null: 1\n", 0, "None: neither a metric nor a group"),
        ("reward:\n  critic/score/mean: 0.1\n", 1, "is not a positive number"),
        ("- reward\n", 0, "is not a mapping"),
        ("reward: [\n", 2, "is not a YAML file: expected the node content"),
        ("reward: 1\nreward: 2\n", 2, "is not a YAML file: found duplicate key reward"),
        ("", 0, "is not a mapping"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_line(tmp_path, text, line, says):
    path = tmp_path / "margins.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert says in str(error.value)


def test_a_margin_of_the_command_line_that_fits_nothing_is_a_typing_error():
    sides = seeds_at("a", WIDE), seeds_at("b", WIDE)
    margins = Margins({"critic/score/men": MarginAmount(1)}, frozenset({"critic/score/men"}))
    with pytest.raises(
        UserError, match="no metric that both sides have\n  hint: did you mean critic/score/mean"
    ):
        compare(*sides, CompareOptions(margins=margins))
    from_file = compare(*sides, CompareOptions(margins=Margins({"val-core/x": MarginAmount(1)})))
    assert "the margin of val-core/x fits no metric that both sides have" in from_file.notes


def test_the_margin_of_a_single_run_is_a_tenth_of_its_level_too():
    g = random.Random(0)
    a, b = ([1 + g.gauss(0, 0.05) for _ in range(100)] for _ in range(2))
    metric = compare(with_metrics("a", {SCORE: a}), with_metrics("b", {SCORE: b}), CompareOptions()).metric(
        SCORE
    )
    assert metric.verdict == "same" and metric.evidence.margin.size == pytest.approx(0.1, rel=0.02)
    loss = compare(
        with_metrics("a", {SCORE: [x - 1 for x in a]}),
        with_metrics("b", {SCORE: [x - 1 for x in b]}),
        CompareOptions(),
    ).metric(SCORE)
    assert loss.evidence.margin.origin == "a tenth of the standard deviation of the points"
