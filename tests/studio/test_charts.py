"""Charts in a real browser draw what was logged: gaps where there is no number, zeros on a logarithmic axis,
one point; at the widths of a desk and of a telephone."""

import pytest
from browser import WAIT_MS, chromium
from playwright.sync_api import sync_playwright

from trinity_compat import web

pytestmark = pytest.mark.browser
NAN, INF = float("nan"), float("inf")
# How many pixels of the line's colour are in the plot's column at a step.
DRAWN = """([chart, step]) => {
    const { ctx, bbox } = chart.plot, [r, g, b] = chart.colour;
    const at = Math.round(chart.plot.valToPos(Charts.settings.place(step), "x", true));
    const { data } = ctx.getImageData(at - 1, bbox.top, 2, bbox.height);
    let found = 0;
    for (let k = 0; k < data.length; k += 4)
        found += Math.abs(data[k] - r) + Math.abs(data[k + 1] - g) + Math.abs(data[k + 2] - b) < 60;
    return found;
}"""
MAKE = """series => {
    const made = ([label, points], k) => ({ label, colour: `--c${k + 1}`, points: new Map(points) });
    const chart = new Charts.Curve(document.querySelector("main"), "metric", series.map(made));
    const probe = document.createElement("i");
    probe.style.color = "var(--c1)";
    document.body.append(probe);
    chart.colour = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
    return chart;
}"""


@pytest.fixture(scope="module", params=[1280, 390])
def page(request):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": request.param, "height": 800})
        page.set_default_timeout(WAIT_MS)
        text = f"<style>{web.style()}{web.chart_style()}</style><main></main><script>{web.charts()}</script>"
        page.set_content(f'<!doctype html><html data-theme="light">{text}')
        yield page
        browser.close()


@pytest.fixture
def chart(page):
    """Draw {step: value} as one chart with the settings given."""

    def draw(points, *others, **settings):
        page.evaluate("given => Charts.set(given)", {"smooth": 0, "log": False, "zoom": None, **settings})
        named = [("metric", points), *((f"other {k}", each) for k, each in enumerate(others))]
        return page.evaluate_handle(MAKE, [[name, list(each.items())] for name, each in named])

    yield draw
    page.evaluate("document.querySelector('main').replaceChildren()")


def drawn(page, chart, step):
    return page.evaluate(DRAWN, [chart, step])


def head(chart):
    return " ".join(chart.evaluate("chart => chart.box.querySelector('h3').innerText").split())


@pytest.mark.parametrize(("value", "name"), [(NAN, "NaN"), (INF, "∞"), (-INF, "−∞")])
def test_a_value_that_is_no_number_is_a_gap_with_a_mark_and_its_first_step(page, chart, value, name):
    found = chart({1: 1.0, 2: 2.0, 3: value, 4: 2.0, 5: 1.0})
    assert drawn(page, found, 1.5) and drawn(page, found, 4.5)
    assert not drawn(page, found, 2.5) and not drawn(page, found, 3) and not drawn(page, found, 3.5)
    assert head(found).endswith(f"{name} at step 3")
    later = chart({1: 1.0, 2: value, 3: 1.0, 4: value})
    assert head(later) == f"metric {name} {name} at 2 points, first at step 2"
    red = """chart => { const at = chart.plot.valToPos(4, "x", true), box = chart.plot.bbox;
        const [r, g] = chart.plot.ctx.getImageData(at - 2, box.top + 5, 1, 1).data;
        return r > 100 && r - g > 40; }"""
    assert later.evaluate(red) and not chart({1: 1.0, 4: 1.0}).evaluate(red)


def test_a_step_that_the_metric_was_not_logged_at_is_no_gap(page, chart):
    found = chart({5: 1.0, 10: 1.0}, dict.fromkeys(range(1, 11), 2.0))
    assert drawn(page, found, 7)
    assert "NaN" not in head(found)


PAIR = """metric => {
    const chart = Charts.pair(document.querySelector("main"), metric, {});
    const probe = document.createElement("i");
    probe.style.color = "var(--a)";
    document.body.append(probe);
    chart.colour = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
    return chart;
}"""


def test_a_side_s_gap_is_one_in_a_chart_of_two_sides(page, chart):
    metric = {"name": "m", "x": [1, 2, 3, 4, 5], "a_seeds": [[1.0] * 5], "b_seeds": [[9.0] * 5]}
    whole = page.evaluate_handle(PAIR, {**metric, "a_lost": [[]], "b_lost": [[]]})
    assert drawn(page, whole, 3)
    found = page.evaluate_handle(PAIR, {**metric, "a_lost": [[[3, "NaN"]]], "b_lost": [[]]})
    assert not drawn(page, found, 3) and drawn(page, found, 4.5)
    assert head(found).endswith("A: NaN at step 3")


def test_a_value_between_two_gaps_is_a_dot(page, chart):
    found = chart({1: NAN, 2: 1.0, 3: NAN, 4: NAN, 5: 1.0})
    assert drawn(page, found, 2) and drawn(page, found, 5) and not drawn(page, found, 4)


def test_a_logarithmic_axis_has_zero_and_negative_values(page, chart):
    found = chart({1: 100.0, 2: 1.0, 3: 0.0, 4: -1.0, 5: -100.0}, log=True)
    assert all(drawn(page, found, step + 0.5) for step in range(1, 5))
    heights = found.evaluate("chart => [100, 1, 0, -1, -100].map(y => chart.plot.valToPos(y, 'y', true))")
    box = found.evaluate("chart => chart.plot.bbox")
    assert heights == sorted(heights) and len(set(heights)) == 5
    assert box["top"] <= heights[0] and heights[-1] <= box["top"] + box["height"]
    ticks = found.evaluate("chart => chart.plot.axes[1]._values")
    assert "0" in ticks and any(tick.startswith("-") for tick in ticks)


def test_a_logarithmic_axis_of_positive_values_is_logarithmic(chart):
    top, middle, bottom = chart({1: 1.0, 2: 100.0, 3: 10000.0}, log=True).evaluate(
        "chart => [10000, 100, 1].map(y => chart.plot.valToPos(y, 'y', true))"
    )
    assert middle - top == pytest.approx(bottom - middle, abs=1)


def test_a_curve_that_falls_to_zero_keeps_its_axis_true(chart):
    found = chart({step: float(step) for step in range(1, 6)}, log=True)
    found.evaluate("chart => { chart.series[0].points.set(6, 0); chart.update(); }")
    assert "0" in found.evaluate("chart => chart.plot.axes[1]._values")


def test_smoothing_changes_the_line_and_not_the_figure(page, chart):
    points = {step: float(step % 2) for step in range(1, 12)}
    found = chart(points, smooth=0.9)
    assert head(found) == "metric 1"
    assert 0.2 < found.evaluate("chart => chart.plot.data[1].at(-1)") < 0.8
    found.evaluate("chart => chart.say(3)")
    assert head(found) == "metric 0 at step 4"


def test_one_point_has_axes(page, chart):
    found = chart({7: 0.5})
    assert drawn(page, found, 7)
    assert len(found.evaluate("chart => chart.plot.axes[0]._values")) > 1
    assert len(found.evaluate("chart => chart.plot.axes[1]._values")) > 1


def test_several_series_have_each_its_newest_value_beside_its_colour(chart):
    found = chart({1: 1.0, 2: 2.0}, {1: 5.0})
    assert "metric 2 · other 0 5" in head(found)
    colours = found.evaluate("chart => [...chart.value.querySelectorAll('i')].map(i => i.style.background)")
    assert colours == ["var(--c1)", "var(--c2)"]


def test_a_part_of_a_step_has_one_colour_whatever_else_took_time(page):
    colours = page.evaluate("['gen', 'ref', 'rollout', 'waiting', 'other'].map(Charts.palette(['waiting']))")
    assert len(set(colours)) == 5 and colours[3] == "wait"
    assert page.evaluate("['ref'].map(Charts.palette([]))") == [colours[1]]


def test_all_charts_show_the_part_that_is_zoomed(page, chart):
    first, second = chart(dict.fromkeys(range(1, 11), 1.0)), chart(dict.fromkeys(range(3, 20), 2.0))
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50, steps=4)
    page.mouse.up()
    for each in (first, second):
        low, high = each.evaluate("({plot}) => [plot.scales.x.min, plot.scales.x.max]")
        assert low == pytest.approx(4.6, abs=0.3) and high == pytest.approx(6.4, abs=0.3)
    second.evaluate("chart => { chart.series[0].points.set(20, 2); chart.update(); }")
    assert second.evaluate("({plot}) => plot.scales.x.max") < 7  # still, as the run goes on
    page.mouse.dblclick(box["x"] + 50, box["y"] + 50)
    assert second.evaluate("({plot}) => plot.scales.x.max") == 20


def test_a_chart_has_its_values_as_a_table_the_newest_first_and_bounded(page, chart):
    found = chart({step: float(step) for step in range(1, 251)}, {250: NAN}, smooth=0.9)
    assert page.locator(".data").count() == 0  # made when it is asked for
    page.get_by_role("button", name="Full screen: metric").click()
    page.wait_for_selector(".data tbody tr")
    assert page.locator(".data tbody tr").count() == 100
    assert page.locator(".data caption").inner_text() == "The newest 100 of 250"
    assert page.locator(".data thead tr").inner_text().split() == ["step", "metric", "other", "0"]
    first = page.locator(".data tbody tr").first
    assert first.inner_text().split() == ["250", "250", "NaN"]
    assert first.locator("th").get_attribute("scope") == "row"
    found.evaluate("chart => { chart.series[0].points.set(251, 0.5); chart.update(); }")
    assert first.inner_text().split() == ["251", "0.5", "–"]
    for name in ("CSV", "PNG"):
        with page.expect_download() as got:
            page.get_by_role("button", name=name).click()
        assert got.value.suggested_filename == f"metric.{name.lower()}"
        content = got.value.path().read_bytes()
        if name == "CSV":
            assert content.decode().splitlines()[::250] == ["step,metric,other 0", "250,250,NaN"]
        else:
            assert content.startswith(b"\x89PNG")
    page.keyboard.press("Escape")
    assert page.locator("dialog").count() == page.locator(".data").count() == 0
    assert page.locator("main > .chart").count() == 1


def test_the_cursor_s_box_names_the_values_and_moves_nothing(page, chart):
    series = [{step: step * k for step in range(1, 12)} for k in (1.0, 3.0, 2.0)]
    found = chart(*series, {1: 0.5})
    height = found.evaluate("chart => chart.box.getBoundingClientRect().height")
    assert head(found) == "metric 0.5 … 33"
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    lines = page.locator(".tip:not([hidden]) .line").all_inner_texts()
    assert [" ".join(line.split()) for line in lines] == [
        "other 0 18",
        "other 1 12",
        "metric 6",
        "other 2 0.5 at 1",
    ]
    assert "at step 6" in head(found)
    assert found.evaluate("chart => chart.box.getBoundingClientRect().height") == height
    page.mouse.move(0, 0)
    assert page.locator(".tip:visible").count() == 0


SEEDS = """([choice, runs]) => {
    Charts.settings.seeds = choice;
    const given = runs.map((points, k) => ({ label: `run${k}`, points: new Map(points) }));
    return Charts.Curve.seeds("all", "--c1", given).map(one =>
        [one.label, [...one.points], one.low && [...one.low], one.high && [...one.high]]);
}"""


def test_seeds_are_lines_or_their_mean_with_a_band(page):
    runs = [[[1, 0.0], [3, 2.0]], [[1, 1.0], [2, 3.0], [3, 4.0]], [[1, 5.0]]]
    (band,) = page.evaluate(SEEDS, ["band", runs])
    assert band == ["all", [[1, 2], [2, 2], [3, 3]], [[1, 0], [2, 1], [3, 2]], [[1, 5], [2, 3], [3, 4]]]
    (quartiles,) = page.evaluate(SEEDS, ["quartiles", runs])
    assert quartiles[1:] == [band[1], [[1, 0.5], [2, 1.5], [3, 2.5]], [[1, 3], [2, 2.5], [3, 3.5]]]
    lines = page.evaluate(SEEDS, ["lines", runs])
    assert [line[:2] for line in lines] == [[f"run{k}", points] for k, points in enumerate(runs)]
    assert page.evaluate(SEEDS, ["band", runs[:1]]) == lines[:1]


def test_a_seed_without_a_number_leaves_a_gap_in_the_mean(page):
    (band,) = page.evaluate(SEEDS, ["band", [[[1, 0.0], [2, NAN]], [[1, 1.0], [2, 1.0]]]])
    assert band[1][0] == [1, 0.5] and band[1][1][1] != band[1][1][1]
    assert band[2] == [[1, 0]]
