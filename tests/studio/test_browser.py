"""Every page in a real browser: nothing of a run's text acts, nothing is refused by the policy, no serious
finding of axe-core, nothing wider than the window, and what happens in a run arrives."""

from pathlib import Path

import pytest
from browser import SIZES, WAIT_MS, accessible, is_whole, new_pages
from click.testing import CliRunner
from playwright.sync_api import expect
from studio_browser import serving
from studio_jobs import STEPS, large_group, make_job, make_tokenizer, train_step, write_events

from trinity_compat.buffer import open_buffer
from trinity_compat.cli import cli
from trinity_compat.compare.html import as_html
from trinity_compat.compare.margins import CompareOptions
from trinity_compat.compare.sources import read_side
from trinity_compat.compare.verdict import compare

pytestmark = pytest.mark.browser
PAGES = {
    "runs": "/",
    "runs in groups": "/?group=folder&column=actor.optim.lr&column=trainer.total_training_steps&words=e",
    "run": "/run/toy/grpo",
    "overlay": "/overlay?run=done&run=other&run=toy/grpo",
    "overlay of seeds": "/overlay?run=done&run=other&run=baseline:verl.log&seeds=band",
    "finished": "/run/done",
    "begins": "/run/begins",
    "configuration": "/configuration/toy/grpo",
    "experiences": "/experiences/toy/grpo?text=sort",
    "groups": "/groups/toy/grpo",
    "groups of all steps": "/groups/toy/grpo?step=all&mean_max=0.5&sort=mean&up=on",
    "group": "/group/toy/grpo?id=2",
    "choose": "/compare",
    "compare": "/compare?a=done&b=other&b=more",
    "against a baseline": "/compare?a=done&b=baseline:verl.log",
    "answers": "/answers?a=done&b=other&task=toy/sort 1",
    "configure": "/configure",
    "stop": "/stop/toy/grpo",
    "resume": "/resume/stopped",
    "not resumed": "/resume/done",
    "refused": "/run/theirs",
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs")
    model = make_tokenizer(tmp_path_factory.mktemp("toy") / "model")
    make_job(root / "toy" / "grpo", state="running", model=model)
    make_job(root / "done")
    make_job(root / "other", evil=False, wobble=0.1)
    make_job(root / "more", evil=False, wobble=0.15)
    make_job(root / "begins", state="running", steps=0)
    make_job(root / "stopped", state="stopped")
    make_job(root / "theirs", state="stopped")
    (root / "theirs").chmod(0o777)
    (root / "verl.log").write_text("".join(f"step:{k} - critic/score/mean:{k / 9}\n" for k in range(1, 7)))
    return root


@pytest.fixture(scope="module")
def reports(jobs, tmp_path_factory):
    """Name → address of what ``compare`` and ``audit`` write as HTML."""
    folder = tmp_path_factory.mktemp("reports")
    a, b = (
        read_side([jobs / name for name in side], side[0])
        for side in (("done", "toy/grpo"), ("other", "more"))
    )
    (folder / "report.html").write_text(as_html(compare(a, b, CompareOptions())))
    scripts = Path(__file__).parents[2] / "examples" / "verl_scripts"
    CliRunner().invoke(cli, ["audit", str(scripts), "--format", "html", "-o", str(folder / "audit.html")])
    return {path.stem: path.as_uri() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def listener(jobs):
    with serving(jobs) as listener:
        yield listener


@pytest.fixture
def opened(browser, listener):
    """Opens a page; at the end, nothing was refused or failed in any."""
    with new_pages(browser, listener) as new_page:

        def go(path, size="wide"):
            page = new_page(size)
            page.goto(path if path.startswith("file:") else listener.url.rstrip("/") + path)
            if page.locator("#charts[data-runs]").count():
                page.wait_for_selector("#charts[data-ready]")
            if page.locator("#live").count():
                page.wait_for_selector("#live[data-ready]")
                expect(page.locator(".log pre")).to_have_count(2)
                expect(page.locator("#lanes > *").first).to_be_visible()
            return page

        yield go


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_safe_and_accessible(opened, name):
    is_whole(opened(PAGES[name]), name)


@pytest.mark.parametrize("name", ["report", "audit"])
def test_a_report_is_whole_safe_and_accessible(opened, reports, name):
    page = opened(reports[name])
    for details in page.locator("details").all():
        details.evaluate("each => each.open = true")
    is_whole(page, name)


def test_a_step_that_ends_arrives_in_an_open_page(opened, jobs):
    page = opened("/run/toy/grpo")
    assert page.locator("#t-step").inner_text() == str(STEPS)
    buffer = open_buffer(f"sqlite:///{jobs}/toy/grpo/buffer/experiences.db")
    train_step(buffer, STEPS + 1)
    expect(page.locator("#t-step")).to_have_text(str(STEPS + 1))
    expect(page.locator(".chart .value").first).to_have_text("0.7")
    with (jobs / "toy" / "grpo" / "log" / "trainer.log").open("a") as log:
        log.write("a new line <b>of text</b>\n")
    expect(page.locator(".log pre").first).to_contain_text("a new line <b>of text</b>")


def test_a_page_opened_before_the_first_step_gets_its_curves_and_evaluations(opened, jobs):
    buffer = open_buffer(f"sqlite:///{jobs}/begins/buffer/experiences.db")
    buffer.log_metrics("trainer", 0, {"val-core/toy/acc/mean@1": 0.125})
    page = opened("/run/begins")
    expect(page.locator("#charts .chart")).to_have_count(1)
    expect(page.locator("#evaluations tbody tr")).to_have_count(1)
    for step in range(1, 4):
        train_step(buffer, step)
    expect(page.locator("#charts .chart h3").first).to_contain_text("Mean reward critic/score/mean 0.3")
    expect(page.locator("#charts .chart h3").last).to_contain_text("val-core/toy/acc/mean@1 0.15")
    expect(page.locator("#evaluations tbody tr")).to_have_count(2)
    expect(page.locator("#evaluations tbody td").first).to_have_text("0.15")
    expect(page.locator("#buffer .chart")).to_have_count(1)
    expect(page.locator("#names option[value='timing_s/step']")).to_have_count(1)


def test_a_metric_is_added_smoothed_kept_and_taken_away(opened):
    page = opened("/run/done")
    first = page.locator("#charts .chart").count()
    page.fill("#add", "perf/tokens_per_second")
    page.fill("#add", "timing_s/step")
    page.keyboard.press("Enter")
    expect(page.locator("#charts .chart")).to_have_count(first + 1)
    page.check("#log")
    page.locator("#smooth").press("End")
    page.reload()
    page.wait_for_selector("#live[data-ready]")
    assert page.locator("#charts .chart").count() == first + 1
    page.get_by_role("button", name="Remove timing_s/step").click()
    assert page.locator("#charts .chart").count() == first


def test_the_address_gives_another_reader_the_same_view(opened, listener):
    page = opened("/run/done")
    page.fill("#add", "timing_s/step")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove timing_s/step")).to_be_visible()
    page.get_by_role("button", name="Remove actor/entropy").click()
    page.check("#log")
    page.locator("#smooth").press("End")
    page.select_option("[name=x]", "time")
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 50, steps=4)
    page.mouse.up()
    page.mouse.move(0, 0)
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    seen = """() => [[...document.querySelectorAll("#charts h3")].map(head => head.innerText),
        Charts.settings.zoom, Charts.settings.smooth, Charts.settings.log, Charts.settings.axis,
        Charts.settings.place(3)]"""
    said = page.evaluate(seen)
    assert said[2:] == [0.98, True, "time", 12]
    assert any(" ".join(head.split()) == "Seconds per step timing_s/step 4" for head in said[0])
    other = opened(page.url.removeprefix(listener.url.rstrip("/")))
    assert other.evaluate(seen) == [said[0], pytest.approx(said[1], rel=1e-4), *said[2:]]
    other.get_by_role("button", name="Show all").click()
    expect(other.get_by_role("button", name="Show all")).to_be_hidden()
    assert "zoom" not in other.url and "x=time" in other.url


def test_axes_that_the_run_does_not_log_are_not_offered(opened):
    page = opened("/run/done")
    disabled = page.evaluate("[...document.querySelectorAll('[name=x] option:disabled')].map(o => o.value)")
    assert disabled == ["tokens"]
    page.select_option("[name=x]", "update")
    assert page.evaluate("Charts.settings.place(3)") == 6


def test_a_comparison_keeps_its_view_on_another_axis(opened):
    page = opened(PAGES["compare"])
    page.fill("#add", "timing_s/step")
    page.keyboard.press("Enter")
    expect(page.locator("#charts h3", has_text="timing_s/step")).to_have_count(1)
    page.check("#log")
    page.select_option("[name=x]", "update")
    expect(page.locator("#verdict")).to_contain_text("At the last update that both sides have")
    assert "x=update" in page.url
    page.reload()
    page.wait_for_selector("#charts[data-ready]")
    assert "x=update" in page.url and page.is_checked("#log")
    expect(page.locator("#charts h3", has_text="timing_s/step")).to_have_count(1)


def test_a_verdict_is_made_again_as_a_run_goes_on(browser, tmp_path):
    for name in ("ours", "theirs"):
        make_job(tmp_path / name, evil=False, state="running")
    monitor = tmp_path / "{}" / "monitor" / "tensorboard" / "trainer"
    with serving(tmp_path) as listener:
        context = browser.new_context(viewport={"width": 390, "height": 844})
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.goto(listener.address)
        page.goto(f"{listener.url}compare?a=ours&b=theirs")
        page.wait_for_selector("#charts[data-ready]")
        expect(page.locator(".first")).to_contain_text("The same")
        page.locator("details[data-group=reward] summary").click()
        charts = page.locator("#charts .chart").count()
        for name, score in (("ours", 0.5), ("theirs", float("nan"))):
            write_events(Path(str(monitor).format(name)), {7: {"critic/score/mean": score}})
            buffer = open_buffer(f"sqlite:///{tmp_path}/{name}/buffer/experiences.db")
            buffer.log_metrics("trainer", 7, {"critic/score/mean": score})
            buffer.close()
        expect(page.locator(".first")).to_contain_text(
            "Different: critic/score/mean is NaN from step 7 on in B"
        )
        expect(page.locator("#heard")).to_contain_text("Different")
        expect(page.locator("#charts h3", has_text="critic/score/mean")).to_contain_text("NaN")
        assert page.locator("#charts .chart").count() == charts
        assert page.locator("details[data-group=reward]").get_attribute("open") is not None
        is_whole(page, "verdict-live")
        context.close()


def test_a_baseline_is_chosen_as_a_side(opened):
    page = opened("/compare?a=done")
    page.get_by_label("baseline:verl.log on side B").check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("#charts[data-ready]")
    expect(page.locator(".legend")).to_contain_text("B = baseline:verl.log")
    expect(page.locator(".first")).to_contain_text("Not enough data to say")


def test_the_keyboard_reaches_everything_and_the_theme_stays(opened):
    page = opened("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.id"))
    assert {"/", "/compare", "theme", "/run/done", "/run/toy/grpo"} <= set(seen), seen
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_an_answer_is_found_and_leads_to_its_group(opened):
    page = opened("/experiences/done")
    page.fill("[name=text]", "answer5x2x1")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_count(1)
    page.locator(".facts a:has(.reward-tag)").click()
    expect(page.locator(".answer:target")).to_contain_text("answer5x2x1")


@pytest.mark.parametrize("path", ["/run/done", "/compare?run=done&run=other"])
def test_a_click_on_a_step_of_a_chart_opens_its_groups(opened, path):
    page = opened(path)
    over = page.locator("#charts .chart .u-over").first
    wide = over.bounding_box()["width"]
    over.dblclick(position={"x": wide / 2, "y": 40})  # shows all again
    over.click(position={"x": wide * 0.99, "y": 40})
    page.wait_for_url(f"**/groups/*?step={STEPS}")


def test_tokens_are_coloured_by_choice(opened):
    page = opened("/group/toy/grpo?id=2")
    token = page.locator(".tokens .t.s3").first
    colours = []
    for choice in ("", "by-mask", "plain"):
        page.select_option("#overlay", choice)
        colours.append(token.evaluate("each => getComputedStyle(each).backgroundColor"))
    assert len(set(colours)) == 3 and page.locator(".shades .t").first.is_hidden()


def test_keys_lead_from_group_to_group_and_not_while_one_types(opened):
    page = opened("/groups/done?step=3")
    page.locator("a.name").first.click()
    page.wait_for_url("**/group/done?**")
    for _ in range(3):
        here = page.url
        page.keyboard.press("n")
        page.wait_for_url(lambda url, here=here: url != here)
    assert "step=3" in page.url and page.locator("[data-key=n]").count() == 0
    last = page.url
    page.locator("#overlay").press("p")
    assert page.url == last
    page.locator("h1").click()
    page.keyboard.press("p")
    page.wait_for_url(lambda url: url != last)


@pytest.fixture(scope="module")
def long_answers(jobs):
    """A job whose only group has long answers."""
    root = make_job(jobs / "long", evil=False, steps=0, model=make_tokenizer(jobs / "words"))
    open_buffer(f"sqlite:///{root}/buffer/experiences.db").put_groups([large_group(8, 16_384)])
    return "/group/long?id=1"


@pytest.mark.parametrize("size", ["wide", pytest.param("narrow", marks=pytest.mark.nightly)])
def test_tokens_are_loaded_as_they_are_scrolled_to_and_dropped_behind(opened, long_answers, size):
    page = opened(long_answers, size)
    box, spans, most = page.locator(".whole").first, "document.querySelectorAll('.t').length", 0
    box.scroll_into_view_if_needed()
    expect(box.locator(".part .t").first).to_be_attached()
    for share in range(1, 21):
        box.evaluate("(box, share) => { box.scrollTop = box.scrollHeight * share / 20; }", share)
        page.wait_for_timeout(50)
        most = max(most, page.evaluate(spans))
    box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(box.locator(".t").last).to_have_text(f"word{16_383 % 200}")
    assert most < 16_384 and page.evaluate(spans) < 16_384  # of 131,072
    box.evaluate("box => { box.scrollTop = 0; }")
    expect(box.locator(".part").last).to_be_empty()
    is_whole(page, "long")


def test_token_probabilities_are_read_by_key(opened, long_answers):
    page = opened(long_answers)
    box, told = page.locator(".tokens").first, page.locator(".reading output").first
    box.press("ArrowRight")
    box.press("ArrowRight")
    expect(told).to_contain_text('"word1 " p ')
    box.press("ArrowLeft")
    expect(told).to_contain_text('"word0 " p ')
    box.press("u")
    unlikely = told.inner_text()
    assert float(unlikely.partition(" p ")[2].split()[0]) < 0.2
    box.press("u")
    expect(told).not_to_have_text(unlikely)
    box.press("U")
    expect(told).to_have_text(unlikely)
    shown = int(box.get_attribute("data-shown"))
    for _ in range(shown + 2):  # beyond what the page itself has
        box.press("ArrowRight")
    expect(box.locator(".part .t.at")).to_have_count(1)
    assert accessible(page)


def test_chosen_runs_are_overlaid_live_by_any_axis(opened, jobs):
    page = opened("/?words=o")
    for name in ("done", "toy/grpo"):
        page.get_by_label(f"Choose {name}", exact=True).check()
    assert "run=done" in page.url and "run=toy%2Fgrpo" in page.url
    page.get_by_role("button", name="Compare the chosen runs").click()
    page.wait_for_selector("#charts[data-ready]")
    first = page.locator("#charts .chart").count()
    for number, name in enumerate(("timing_s/gen", "timing_s/step"), start=1):
        page.fill("#add", name)
        page.keyboard.press("Enter")
        expect(page.locator("#charts .chart")).to_have_count(first + number)
    score = page.locator("#charts h3", has_text="critic/score/mean").first
    expect(score).to_contain_text("done 0.6")
    expect(score).to_contain_text("toy/grpo")
    page.select_option("[name=x]", "update")
    newest = "Charts.settings.axis + [...document.querySelectorAll('#charts canvas')].length"
    assert page.evaluate(newest) == f"update{first + 2}"
    buffer = open_buffer(f"sqlite:///{jobs}/toy/grpo/buffer/experiences.db")
    (known,) = buffer.read_metrics("trainer")[-1:]
    buffer.log_metrics("trainer", known[0] + 1, known[1] | {"critic/score/mean": 0.875})
    expect(score).to_contain_text("toy/grpo 0.875")
    page.reload()
    page.wait_for_selector("#charts[data-ready]")
    expect(page.locator("#charts .chart")).to_have_count(first + 2)
    page.get_by_label("Show toy/grpo", exact=True).uncheck()
    expect(score).not_to_contain_text("toy/grpo")
    assert "run=done" in page.url and "run=toy" not in page.url


def test_seeds_are_drawn_as_lines_or_as_a_band_and_the_address_says_which(opened):
    page = opened("/overlay?run=other&run=more&run=baseline:verl.log")
    page.wait_for_selector("#charts[data-ready]")
    score = page.locator("#charts h3", has_text="critic/score/mean").first
    expect(score).to_contain_text("other 0.7 · more 0.75 · baseline:verl.log 0.6667")
    page.select_option("[name=seeds]", "band")
    expect(score).to_contain_text("other and 1 more 0.725 (0.7 … 0.75) · baseline:verl.log 0.6667")
    assert "seeds=band" in page.url
    page.reload()
    page.wait_for_selector("#charts[data-ready]")
    expect(score).to_contain_text("other and 1 more")
    page.goto(page.url.partition("/overlay")[0] + "/compare?a=done&b=other&b=more&seeds=lines")
    page.wait_for_selector("#charts[data-ready]")
    expect(score).to_contain_text("done 0.6 · other 0.7 · more 0.75")
    page.select_option("[name=seeds]", "quartiles")
    expect(score).to_contain_text("B 0.725 (0.7125 … 0.7375)")


def test_a_refusal_stays_in_sight(opened):
    page = opened("/compare?a=done&b=other&x=tokens")
    with page.expect_response("**/verdict?**"):
        page.reload()
    page.wait_for_timeout(200)
    expect(page.locator("#problem")).to_contain_text("axis 'tokens' needs the metric")


def test_a_section_that_is_opened_draws_its_metrics(opened):
    page = opened("/compare?run=done&metric=critic/score/mean")
    section = page.locator(".section", has_text="throughput")
    expect(section.locator("figure")).to_have_count(0)
    section.locator("summary").first.click()
    expect(section.locator("figure")).not_to_have_count(0)
    expect(section).to_contain_text("Seconds per step")
    assert "metric=timing_s" in page.url and accessible(page)
    page.get_by_role("button", name="Full screen: timing_s/step").click()
    expect(page.get_by_role("dialog")).to_contain_text("The whole step on the trainer's clock.")
    is_whole(page, "alone")


def test_a_baseline_is_added_to_an_overlay(opened):
    page = opened("/overlay?run=done")
    page.wait_for_selector("#charts[data-ready]")
    page.get_by_label("Show baseline:verl.log").check()
    page.wait_for_url("**verl.log**")
    page.wait_for_selector("#charts[data-ready]")
    expect(page.locator("#charts h3").first).to_contain_text("baseline:verl.log 0.6667")


def test_a_baseline_in_an_overlay_follows_its_file(opened, jobs):
    log = jobs / "live.log"
    log.write_text("step:1 - critic/score/mean:0.25\n")
    page = opened("/overlay?run=done&run=baseline:live.log")
    page.wait_for_selector("#charts[data-ready]")
    score = page.locator("#charts h3", has_text="critic/score/mean").first
    expect(score).to_contain_text("baseline:live.log 0.25")
    with log.open("a") as more:
        more.write("step:2 - critic/score/mean:0.75\n")
    expect(score).to_contain_text("baseline:live.log 0.75")
    (jobs / "next").write_text("step:1 - critic/score/mean:0.125\n")
    (jobs / "next").rename(log)  # begun again
    expect(score).to_contain_text("baseline:live.log 0.125")


def test_a_panel_is_saved_for_the_folder_used_and_removed(opened, jobs):
    page = opened("/overlay?run=done&run=other")
    page.wait_for_selector("#charts[data-ready]")
    for name in ("critic/score/mean", "actor/entropy"):
        page.get_by_role("button", name=f"Remove {name}", exact=True).click()
    page.check("#log")
    names = "all => all.map(one => one.ariaLabel)"
    kept = page.locator("#charts figure").evaluate_all(names)
    page.get_by_label("Save these charts as").fill("lag <b>only</b>")
    page.get_by_role("button", name="Save layout").click()
    page = opened("/overlay?run=toy/grpo", "narrow")
    page.get_by_role("link", name="lag <b>only</b>").click()
    page.wait_for_selector("#charts[data-ready]")
    assert page.locator("#charts figure").evaluate_all(names) == kept and "run=toy" in page.url
    assert page.is_checked("#log")
    is_whole(page, "panels")
    page.get_by_role("button", name="Remove layout").click()
    expect(page.locator(".panels li")).to_have_count(0)


def test_a_metric_is_added_by_its_name_and_an_unknown_one_is_said(opened):
    page = opened("/run/done")
    page.fill("#add", "timing_s/g.n")
    page.keyboard.press("Enter")
    expect(page.locator("#add:invalid")).to_have_count(1)
    said = page.evaluate("document.getElementById('add').validationMessage")
    assert said == "No metric is named timing_s/g.n"
    page.fill("#add", "timing_s/gen")
    page.keyboard.press("Enter")
    expect(page.locator("#charts h3", has_text="timing_s/gen")).to_have_count(1)


def test_a_row_that_changes_is_replaced_alone_and_stays_chosen(opened, jobs):
    page = opened("/")
    for name in ("done", "toy/grpo"):
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.evaluate("document.querySelectorAll('#table tr').forEach(row => { row.dataset.old = '1'; })")
    box = page.get_by_label("Choose done", exact=True)
    box.focus()
    buffer = open_buffer(f"sqlite:///{jobs}/toy/grpo/buffer/experiences.db")
    (known,) = buffer.read_metrics("trainer")[-1:]
    buffer.log_metrics("trainer", known[0] + 1, known[1] | {"critic/score/mean": 0.8125})
    buffer.close()
    row = page.locator("tr", has=page.get_by_label("Choose toy/grpo", exact=True))
    expect(row).to_contain_text("0.8125")
    expect(page.locator("tr[data-old]", has=box)).to_have_count(1)
    expect(row).not_to_have_attribute("data-old", "1")
    assert page.get_by_label("Choose toy/grpo", exact=True).is_checked() and box.is_checked()
    assert box.evaluate("box => box === document.activeElement")
    assert "run=done" in page.url and accessible(page)


def test_groups_of_runs_follow_a_change(browser, tmp_path):
    make_job(tmp_path / "first" / "a", steps=1)
    with serving(tmp_path) as listener:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(listener.address)
        page.goto(f"{listener.url}?group=folder&sort=name")
        expect(page.locator(".group")).to_have_text(["first"])
        make_job(tmp_path / "second" / "b", steps=1)
        expect(page.locator(".group")).to_have_text(["first", "second"])
        expect(page.locator("tbody a")).to_have_text(["first/a", "second/b"])
        (tmp_path / "first").rename(tmp_path / ".first")
        expect(page.locator(".group")).to_have_text(["second"])
        assert page.locator("#foot").inner_text().startswith("1–1 of 1 runs") and accessible(page)
        page.close()


def test_more_tabs_than_a_browser_has_connections_all_follow_their_runs(browser, tmp_path):
    for number in range(8):
        make_job(tmp_path / f"job{number}", state="running", steps=1)
    with serving(tmp_path) as listener:
        context = browser.new_context()
        context.set_default_timeout(WAIT_MS)
        tabs = [context.new_page() for _ in range(8)]
        tabs[0].goto(listener.address)
        for number, tab in enumerate(tabs):
            tab.goto(f"{listener.url}run/job{number}")
        for number, tab in enumerate(tabs):
            train_step(open_buffer(f"sqlite:///{tmp_path}/job{number}/buffer/experiences.db"), 2)
            expect(tab.locator("#t-step")).to_have_text("2")
        context.close()


def test_a_page_says_that_the_studio_is_gone_and_when_it_is_there_again(browser, tmp_path):
    make_job(tmp_path / "job")
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(WAIT_MS)
    page, gone = context.new_page(), "#gone"
    with serving(tmp_path, token="a" * 22) as listener:
        page.goto(listener.address)
        page.goto(f"{listener.url}run/job")
        page.wait_for_selector("#live[data-ready]")
        expect(page.locator(gone)).to_be_hidden()
    expect(page.locator(gone)).to_contain_text("does not answer")
    is_whole(page, "gone")
    with serving(tmp_path, listener.port, token="a" * 22):
        expect(page.locator(gone)).to_be_hidden()
    with serving(tmp_path, listener.port, token="b" * 22):
        expect(page.locator(gone)).to_contain_text("has been started again")
    context.close()


def test_every_part_of_a_page_works_below_a_path(browser, tmp_path):
    make_job(tmp_path / "job", state="running")
    make_job(tmp_path / "other", evil=False, wobble=0.1)
    with serving(tmp_path, base="/user/me/studio") as listener:
        context, said, asked = browser.new_context(), [], []
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("console", lambda each: said.append(each.text) if each.type in ("error", "warning") else None)
        page.on("request", lambda each: asked.append(each.url.removeprefix(listener.url.rstrip("/"))))
        page.goto(listener.address)
        page.get_by_role("link", name="job", exact=True).click()
        page.wait_for_selector("#live[data-ready]")
        expect(page.locator(".log pre")).to_have_count(2)
        page.get_by_role("link", name="Experiences").click()
        page.locator(".facts a:has(.reward-tag)").first.click()
        expect(page.locator("h1")).to_have_text("job")
        page.goto(f"{listener.url}compare?a=job&b=other")
        page.wait_for_selector("#charts[data-ready]")
        assert said == [] and not [path for path in asked if not path.startswith("/")]
        assert any(path.startswith("/look/job") for path in asked)
        context.close()


def test_the_configuration_is_filtered_as_one_types(opened):
    page = opened("/configuration/done")
    page.fill("#filter", "nothing like it")
    assert page.locator("#filtered tbody tr:visible").count() == 0
    page.fill("#filter", "LR run.sh:7")
    assert page.locator("#filtered tbody tr:visible").count() == 1
    expect(page.locator("#matching")).to_have_text("1")


@pytest.mark.parametrize("size", SIZES)
def test_the_configuration_is_filtered_by_status_and_needs_no_scrolling_sideways(opened, size):
    page = opened("/configuration/done", size)
    page.get_by_role("navigation", name="Status").get_by_role("link", name="approximated 2").click()
    assert page.url.endswith("?status=approximated")
    expect(page.locator("#filtered tbody tr")).to_have_count(2)
    assert page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.wide'))")


def test_the_seconds_of_a_step_are_there_as_a_table_too(opened):
    page = opened("/run/done")
    page.locator("#lanes > .data summary").click()
    expect(page.locator("#lanes > .data tbody tr").first).to_contain_text(str(STEPS))
    assert accessible(page)


def test_a_browser_without_the_token_is_told_what_to_do_and_may_give_it(browser, listener):
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    assert page.goto(f"{listener.url}run/done").status == 401
    is_whole(page, "without-token")
    page.get_by_label("enter the token").fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_contain_text("not the studio's current token")
    page.get_by_label("enter the token").fill(listener.token)
    page.get_by_role("button", name="Open").click()
    expect(page.locator("h1")).to_contain_text("done")
    assert listener.token not in page.url and listener.token not in page.evaluate("document.referrer")
    assert page.evaluate("document.cookie") == ""  # not a script's to read
    context.close()


def test_a_resume_that_fails_says_why_on_the_open_page(opened, jobs):
    page = opened("/resume/stopped")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#resumed")).to_contain_text("ended with exit code 2")
    expect(page.locator("#resumed")).to_contain_text("run.sh")
    assert accessible(page)
