"""What the report says beside the verdict: q, where curves part, what it would take, and without numpy."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys

import pytest
from builders import SCORE, run_of, seeds_at, seeds_with, with_metrics
from click.testing import CliRunner

from trinity_compat.cli.compare import command
from trinity_compat.common.optional_packages import install_command
from trinity_compat.compare import inference
from trinity_compat.compare.conclusion import headline
from trinity_compat.compare.html import as_html, drawn
from trinity_compat.compare.margins import MarginAmount, Margins
from trinity_compat.compare.model import Side
from trinity_compat.compare.report import as_dict, as_markdown
from trinity_compat.compare.verdict import CompareOptions, compare


def noisy(g, level, points=60, spread=0.02):
    return [level + g.gauss(0, spread) for _ in range(points)]


def curves(seed, shift=lambda step: 0.0, count=5):
    """Seeds of one side: a level each, noise at each step, and ``shift`` by step."""
    g = random.Random(seed)
    return [[y + shift(i) for i, y in enumerate(noisy(g, 0.5 + g.gauss(0, 0.005)), 1)] for _ in range(count)]


def sides(shift=lambda step: 0.0, name=SCORE):
    return seeds_with("a", name, curves(1)), seeds_with("b", name, curves(2, shift))


def many(g, seeds, shifted=()):
    """A side whose runs have 30 metrics of learning, those at ``shifted`` higher."""
    runs = []
    for seed in range(seeds):
        levels = {f"actor/m{k}": 1 + g.gauss(0, 0.05) + (0.2 if k in shifted else 0) for k in range(30)}
        levels["timing_s/step"] = 3 + g.gauss(0, 0.01) + (1 if shifted else 0)
        runs.append(run_of({name: [level] * 4 for name, level in levels.items()}, str(seed)))
    return Side("x", runs)


def test_among_many_metrics_chance_is_not_a_difference():
    g = random.Random(3)
    found = compare(many(g, 5), many(g, 5, shifted=(3, 7)), CompareOptions())
    low = [m for m in found.metrics if m.difference.p <= 0.05 and m.group == "policy"]
    called = [m.name for m in found.metrics if m.verdict == "differs" and m.group == "policy"]
    assert len(low) > len(called) and called == ["actor/m3", "actor/m7"]
    assert any("2 of 30 tested metrics of learning have q ≤ 0.05" in line for line in headline(found))
    spared = next(m for m in low if m.name not in called)
    assert spared.difference.q > 0.05
    assert spared.verdict == "same" or re.search(
        r"among 30 metrics one may be this low by chance", spared.why
    )


def test_what_is_equal_at_every_point_was_not_tested_and_does_not_count():
    a, b = {SCORE: [0.5, 0.51, 0.52, 0.53]}, {SCORE: [0.55, 0.57, 0.58, 0.6]}
    equal = {f"actor/equal{k}": [1.0] * 4 for k in range(50)}
    few, many_more = (
        compare(
            *(
                Side(label, [run_of({**more, SCORE: [level] * 4}, str(level)) for level in side[SCORE]])
                for label, side in (("a", a), ("b", b))
            ),
            CompareOptions(),
        ).metric(SCORE)
        for more in ({}, equal)
    )
    assert few.difference.q == many_more.difference.q == few.difference.p


def test_a_band_that_excludes_0_by_chance_among_many_metrics_is_not_reported():
    g = random.Random(8)
    names = [f"actor/m{k}" for k in range(40)]
    runs = [[run_of({name: noisy(g, 0.5) for name in names}, str(k)) for k in range(4)] for _ in range(2)]
    found = compare(Side("a", runs[0]), Side("b", runs[1]), CompareOptions())
    left = [m for m in found.metrics if m.evidence.band.first is not None]
    assert left and all(m.evidence.band.p <= 0.05 for m in left)
    assert not any(m.separating_band for m in left)


def test_seconds_count_among_themselves():
    g = random.Random(3)
    timing = compare(many(g, 5), many(g, 5, shifted=(3,)), CompareOptions()).metric("timing_s/step")
    assert timing.difference.q == timing.difference.p < 0.05


def test_curves_that_differ_are_reported_with_their_first_step_and_drawn():
    found = compare(*sides(lambda step: -0.2 if step > 30 else 0.0), CompareOptions())
    metric = found.metric(SCORE)
    assert metric.verdict == "differs"
    band = metric.separating_band
    assert 28 <= band.starts[band.first] <= 31 <= band.ends[band.first] + 3
    assert any(line.startswith(f"{SCORE}: the curves first differ at steps") for line in headline(found))
    parts = as_dict(found)["metrics"][0]["parts"]
    assert parts["at"][0] == band.starts[band.first] and len(parts["low"]) == 16
    assert f"{SCORE}: the curves first differ at steps" in as_markdown(found)
    assert '"parts": {"at": [' in as_html(found)


def test_curves_that_cross_at_the_same_level_are_reported():
    found = compare(*sides(lambda step: 0.1 if step <= 30 else -0.1), CompareOptions())
    assert found.metric(SCORE).difference.q > 0.05
    assert headline(found)[0].startswith(f"Different: the curves of {SCORE}, although their levels are not.")
    assert "; the levels do not differ)." in " ".join(headline(found))


def test_differing_curves_are_not_the_same_at_equal_levels():
    crossing = sides(lambda step: 0.05 if step <= 30 else -0.05)
    metric = compare(*crossing, CompareOptions()).metric(SCORE)
    assert metric.evidence.p_same < 0.05
    assert (metric.verdict, metric.why) == ("unclear", "the levels are the same, but the curves differ")
    given = CompareOptions(margins=Margins({SCORE: MarginAmount(0.1)}))
    assert compare(*crossing, given).metric(SCORE).verdict == "same"


def test_curves_that_agree_have_no_separating_band():
    found = compare(*sides(), CompareOptions())
    assert found.metric(SCORE).separating_band is None
    assert found.metric(SCORE).verdict == "same"
    assert as_dict(found)["metrics"][0]["parts"]["at"] is None


def test_paired_runs_are_judged_by_the_differences_of_the_pairs():
    tasks = [0.1, 0.3, 0.5, 0.7, 0.9]
    g = random.Random(5)
    a = seeds_with("a", SCORE, [noisy(g, task) for task in tasks])
    b = seeds_with("b", SCORE, [noisy(g, task + 0.05) for task in tasks])
    assert compare(a, b, CompareOptions()).metric(SCORE).verdict == "unclear"
    paired = compare(a, b, CompareOptions(paired=True)).metric(SCORE)
    assert (paired.verdict, paired.separating_band.first) == ("differs", 0)


def test_an_unclear_metric_names_the_detectable_difference_and_the_seeds_needed():
    found = compare(seeds_at("a", [0.3, 0.5, 0.7]), seeds_at("b", [0.35, 0.5, 0.75]), CompareOptions())
    metric = found.metric(SCORE)
    assert metric.verdict == "unclear" and metric.evidence.seeds > 100
    said = next(line for line in headline(found) if "is unclear" in line)
    assert f"{metric.evidence.seeds} seeds per side would detect ±0.05, a tenth of A's level." in said
    assert "would be detected with 80 % power" in said
    assert "### Data needed for a verdict" in as_markdown(found)
    data = as_dict(found)["metrics"][0]
    assert data["takes"] == {"least_seen": metric.evidence.least, "seeds": metric.evidence.seeds}
    assert data["same"]["margin"] == pytest.approx(0.05)


def test_correlated_steps_of_a_single_run_are_named_as_the_reason():
    g = random.Random(6)
    walk = [0.0]
    for _ in range(99):
        walk.append(walk[-1] + g.gauss(0, 0.01))
    flat = noisy(g, 0.5, 100, 0.001)
    found = compare(
        with_metrics("a", {SCORE: flat}),
        with_metrics("b", {SCORE: [x + y for x, y in zip(flat, walk, strict=True)]}),
        CompareOptions(),
    )
    metric = found.metric(SCORE)
    assert metric.verdict == "unclear"
    assert re.match(
        r"neighbouring steps are so correlated that 100 points count as [\d.]+ independent", metric.why
    )
    assert any("two seeds per side would tell how many seeds a verdict takes" in s for s in headline(found))


def test_identical_training_is_the_first_line():
    a = {SCORE: [0.1, 0.2, 0.3], "actor/entropy": [1.0, 1.0, 1.0]}
    found = compare(with_metrics("a", a), with_metrics("b", a), CompareOptions())
    assert headline(found)[0] == "The same: all 2 metrics of learning are equal at every point."


def call(*args):
    return CliRunner().invoke(command, [str(a) for a in args], standalone_mode=False)


def test_margins_from_the_command_line_and_from_a_file(tmp_path, seeds):
    a, b = seeds("a"), seeds("b", first_seed=50, shift=0.05)
    file = tmp_path / "margins.yaml"
    file.write_text("reward: 0.2\n")

    def verdict(*args):
        metrics = json.loads(call(a, b, "--format", "json", *args).output)["metrics"]
        return next(m["verdict"] for m in metrics if m["name"] == SCORE)

    assert verdict() == "differs"
    assert verdict("--margin", f"{SCORE}=0.2") == verdict("--margins", file) == "same"
    assert verdict("--margins", file, "--margin", f"{SCORE}=0.01") == "differs"
    assert verdict("--margins", file, "--margin", "reward=0.01") == "differs"


def test_a_plan_names_the_seeds_for_the_score(seeds):
    result = call(seeds("stock"), "--plan", "0.005")
    assert result.return_value == 0
    lines = result.output.splitlines()
    assert lines[0] == (
        "Seeds per side that detect a difference of 0.005 with 80 % power at p ≤ 0.05, given the noise of "
        "stock (5 runs):"
    )
    assert lines[3].startswith(SCORE)
    data = json.loads(call(seeds("stock"), "--plan", "0.005", "--format", "json").output)
    [row] = data["plan"]
    assert row["metric"] == SCORE and 2 <= row["seeds"] <= row["seeds_to_be_safe"]
    assert lines[3].split()[-3:-1] == [str(row["seeds"]), str(row["seeds_to_be_safe"])]


def test_a_plan_as_markdown_is_a_table_of_equal_rows(seeds):
    lines = call(seeds("stock"), "--plan", "0.005", "--format", "md").output.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 3 and len({line.count("|") for line in table}) == 1


def test_a_plan_in_percent_takes_every_key_metric_and_a_named_one(seeds):
    names = [row["metric"] for row in plan_of(seeds("stock"), "5%")]
    assert names == [SCORE, "timing_s/step"]
    assert [row["metric"] for row in plan_of(seeds("stock"), "1", "--metric", "timing_s/")] == [
        "timing_s/step"
    ]


def plan_of(side, asked, *args):
    return json.loads(call(side, "--plan", asked, "--format", "json", *args).output)["plan"]


def test_a_plan_from_two_sides_takes_the_noise_of_both(seeds):
    a, b = seeds("a", count=3), seeds("b", count=3, first_seed=70, shift=0.3)
    [apart] = (plan_of(side, "0.005")[0]["spread"] for side in (a,))
    both = json.loads(call(a, b, "--plan", "0.005", "--format", "json").output)["plan"][0]["spread"]
    other = plan_of(b, "0.005")[0]["spread"]
    assert both == pytest.approx(((apart**2 + other**2) / 2) ** 0.5)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--plan", "x"], "--plan: 'x' is not a positive number"),
        (["--plan", "0.02", "--assert", "1 < 2"], "--assert is about runs, --plan plans alone"),
        (["--plan", "0.02", "--format", "html"], "--plan has no HTML"),
        (["--plan", "0.02", "--metric", "nope/"], "no metric that begins with nope/"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(seeds, args, says):
    assert says in str(call(seeds("a"), *args).exception)


def test_a_plan_needs_two_runs(seeds):
    assert "--plan needs two runs of a side" in str(call(seeds("a", count=1), "--plan", "0.02").exception)


def without(monkeypatch, *packages):
    """As if these were not installed."""
    found = inference.find_spec
    monkeypatch.setattr(inference, "find_spec", lambda name: None if name in packages else found(name))


def test_without_numpy_curves_and_levels_are_there_and_what_is_missing_is_said(monkeypatch, seeds):
    without(monkeypatch, "numpy", "scipy")
    a, b = seeds("a"), seeds("b", first_seed=50, shift=-0.1)
    result = call(a, b, "--assert", f'mean(delta("{SCORE}")) < 0')
    assert result.return_value == 0
    lines = result.output.splitlines()
    assert lines[3].startswith("Not enough data to say: numpy and scipy are not installed")
    assert install_command("compare") in lines[3]
    assert any(line.startswith(f"{SCORE}: unclear (A 0.7") for line in lines)
    assert call(a, b, "--assert", f'mean(delta("{SCORE}")) > 0').return_value == 1
    data = json.loads(call(a, b, "--format", "json").output)
    metric = next(m for m in data["metrics"] if m["name"] == SCORE)
    assert metric["difference"]["low"] is None and metric["difference"]["value"] < -0.05
    assert call(a, b, "--format", "html").return_value == 0
    assert "numpy and scipy are not installed" in str(call(a, "--plan", "0.02").exception)


def test_only_what_is_missing_is_named(monkeypatch, seeds):
    without(monkeypatch, "scipy")
    said = call(seeds("a"), seeds("b", first_seed=50)).output.splitlines()[3]
    assert said.endswith(f": scipy is not installed: {install_command('compare')}.")


def test_a_run_that_diverges_differs_without_numpy_too(monkeypatch):
    without(monkeypatch, "numpy", "scipy")
    a, b = [0.1] * 20, [0.1] * 10 + [float("nan")] * 10
    found = compare(with_metrics("a", {SCORE: a}), with_metrics("b", {SCORE: b}), CompareOptions())
    assert found.metric(SCORE).verdict == "differs"
    assert headline(found)[0].startswith("Different: ")


def test_a_chart_gets_each_seed_s_gaps():
    a, b = [0.1] * 20, [0.1] * 20
    a[4], b[6], b[7] = float("nan"), float("inf"), -float("inf")
    found = compare(with_metrics("a", {SCORE: a}), with_metrics("b", {SCORE: b}), CompareOptions())
    points = drawn(found.metric(SCORE))
    assert points["a_lost"] == [[(5, "NaN")]]
    assert points["b_lost"] == [[(7, "Infinity"), (8, "-Infinity")]]
    long = [float("nan") if step % 2 else 0.1 for step in range(5000)]
    found = compare(with_metrics("a", {SCORE: long}), with_metrics("b", {SCORE: long}), CompareOptions())
    (gaps,) = drawn(found.metric(SCORE))["a_lost"]
    assert 300 < len(gaps) <= 400


def test_numpy_is_imported_by_nothing_but_a_comparison():
    code = (
        "import sys; import trinity_compat.cli as c; import trinity_compat.cli.compare, "
        "trinity_compat.compare.conclusion, trinity_compat.compare.report, trinity_compat.compare.html, "
        "trinity_compat.compare.seed_planning; sys.exit('numpy' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
