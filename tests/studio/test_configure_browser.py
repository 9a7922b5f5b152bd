"""The guide's examples made in the form as a new user would, in a real browser."""

import pytest
from browser import is_whole, new_pages
from playwright.sync_api import expect
from published_forms import FORMS
from start_commands import NO_DATA, Commands

from trinity_compat.translate.form import FIELDS, made_from
from trinity_compat.translate.form.expert import by_path

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("data")]


@pytest.fixture
def commands(monkeypatch):
    return Commands(monkeypatch)


@pytest.fixture
def opened(browser, listener, commands):
    """Opens the page; at the end, nothing was refused or failed in it."""
    with new_pages(browser, listener) as new_page:

        def go(size="wide", path="/configure", **given):
            page = new_page(size, **given)
            page.goto(listener.url.rstrip("/") + path)
            return page

        yield go


def enter(page, form):
    if not page.locator("details.more").evaluate("each => each.open"):
        page.get_by_text("More settings", exact=True).click()
    for name, text in form.items():
        field = page.locator(f"#f-{name}")
        if FIELDS[name].kind == "flag":
            field.set_checked(bool(text))
        elif FIELDS[name].kind == "choice":
            field.select_option(text)
        else:
            field.fill(text)


@pytest.mark.parametrize(("name", "size"), [("grpo", "wide"), ("ppo", "narrow")])
def test_the_guide_s_example_is_made_while_one_types(opened, name, size):
    page = opened(size)
    is_whole(page)
    enter(page, FORMS[name])
    made = made_from(FORMS[name])
    expect(page.locator("#t-script")).to_have_text(made.script, use_inner_text=True)
    assert page.locator("#t-yaml").text_content() == made.yaml
    with page.expect_download() as loaded:
        page.locator("a[href*='/file/yaml']").click()
    assert loaded.value.suggested_filename == "trinity.yaml"
    assert loaded.value.path().read_text() == made.yaml
    is_whole(page)
    page.reload()
    assert page.locator("#t-yaml").text_content() == made.yaml


def test_a_problem_is_told_at_its_field_and_goes_with_it(opened):
    page = opened("narrow")
    page.locator("#f-gpus").fill("12")
    expect(page.locator("#f-gpus[aria-invalid]")).to_be_visible()
    expect(page.get_by_text("12 are not whole nodes of 8")).to_be_visible()
    is_whole(page)
    page.locator("#f-gpus").fill("16")
    expect(page.get_by_text("trainer.nnodes=2").first).to_be_visible()
    expect(page.locator("[aria-invalid]")).to_have_count(0)


def test_a_file_is_copied(opened):
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    page.locator("[data-copy=t-script]").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == made_from({}).script


def test_without_a_script_the_button_makes_the_files(opened):
    page = opened("narrow", java_script_enabled=False)
    page.locator("#f-epochs").fill("7")
    page.get_by_role("button", name="Check and show the files").click()
    expect(page.get_by_text("trainer.total_epochs=7").first).to_be_visible()


def test_every_field_of_a_pasted_script(opened):
    """Loaded, found by a word, changed: the change and the script follow while one types."""
    page = opened(path="/configure/expert")
    is_whole(page)
    page.get_by_text("Load a YAML or a script").click()
    page.locator("#text").fill(made_from({}).script)
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_text("Nothing.")).to_be_visible()
    page.locator("#find").fill("optimizer.lr actor.optim.lr")
    found = [each for each in by_path().values() if "optimizer.lr" in each.path]
    expect(page.locator(".field:visible")).to_have_count(sum("actor.optim.lr" in each.help for each in found))
    rate = page.get_by_label("algorithm.optimizer.lr", exact=True)
    rate.fill("3e-6")
    expect(page.locator("#t-script")).to_contain_text("actor_rollout_ref.actor.optim.lr=3e-06")
    expect(page.locator("#result td").last).to_have_text("3e-06")
    rate.fill("fast")
    expect(page.locator("[aria-invalid]")).to_have_count(1)
    is_whole(page)
    rate.fill("1e-5")
    expect(page.locator("[aria-invalid]")).to_have_count(0)
    with page.expect_download() as loaded:
        page.get_by_role("button", name="Download").last.click()
    assert "lr: 1.0e-05" in loaded.value.path().read_text()
    page.locator("#find").fill("")
    is_whole(page)


def test_without_a_script_every_field_is_checked_by_a_button(opened):
    page = opened("narrow", path="/configure/expert?epochs=7", java_script_enabled=False)
    page.get_by_label("buffer.total_epochs", exact=True).fill("8")
    page.get_by_role("button", name="Check and show the files").click()
    expect(page.get_by_text("trainer.total_epochs=8").first).to_be_visible()
    expect(page.get_by_label("buffer.total_epochs", exact=True)).to_have_value("8")


def test_a_loaded_script_goes_on_as_a_form_whose_address_holds_it(opened):
    page = opened()
    page.get_by_text("Load a YAML or a script").click()
    given = {"epochs": "7", "settings": "actor_rollout_ref.actor.entropy_coeff=0.5"}
    page.get_by_label("A launch script of veRL").fill(f"export RUN=1\n{made_from(given).script}")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.locator("#f-epochs")).to_have_value("7")
    expect(page.locator("#f-settings")).to_have_value(given["settings"])
    expect(page.locator("section.load tbody")).to_contain_text("explorer.env_vars")
    is_whole(page)
    page.locator("#f-epochs").fill("8")
    expect(page.locator("#t-script")).to_contain_text("trainer.total_epochs=8")
    page.reload()
    expect(page.locator("#f-epochs")).to_have_value("8")
    page.locator("#f-epochs").fill("9")
    page.keyboard.press("Enter")
    expect(page.locator("#t-script")).to_contain_text("trainer.total_epochs=9")


def test_the_dry_run_and_the_figures_follow_the_form(opened, commands):
    page = opened()
    expect(page.locator("#check .good")).to_contain_text("takes it: nothing is missing.")
    expect(page.locator("#figures")).to_contain_text("8 in turns")
    commands.dry_run = NO_DATA
    page.locator("#f-sharing").select_option("split")
    page.locator("#f-rollout_gpus").fill("4")
    page.locator("#f-sync_offset").fill("1")
    expect(page.locator("#figures")).to_contain_text("explorer 4 (4 engines), trainer 4")
    expect(page.locator("#check .warn")).to_contain_text("lacks 1 thing")
    is_whole(page)
    asked = len(commands.asked)
    page.locator("#f-algorithm").select_option("sft")
    expect(page.locator("#f-columns")).to_be_visible()
    expect(page.locator("#f-sharing")).to_be_hidden()
    expect(page.locator("#t-yaml")).to_contain_text("algorithm_type: sft")
    expect(page.locator("#figures")).to_contain_text("No prediction")
    expect(page.locator("#check .warn")).to_contain_text("lacks 1 thing")  # asked beside the figures
    assert len(commands.asked) > asked and "sharing" not in page.url
    is_whole(page)


def test_an_entry_that_is_filled_leaves_another_behind_it(opened):
    page = opened("narrow", path="/configure/expert")
    page.get_by_text("Buffer 1").click()
    sets = page.locator("[data-entries='buffer.explorer_input.eval_tasksets']")
    for number, path in enumerate(("/a", "/b")):
        sets.locator("[data-new] > summary").click()
        sets.locator(f"[name$='.eval_tasksets.{number}.path']").fill(path)
    expect(sets.locator(".entry")).to_have_count(3)
    is_whole(page)
    expect(page.locator("#result")).to_contain_text("a run here refuses it")
    sets.get_by_role("button", name="Remove").first.click()
    expect(sets.locator(".entry")).to_have_count(2)
    sets.locator("[name$='.1.name']").fill("second")
    with page.expect_download() as loaded:
        page.get_by_role("button", name="Download").last.click()
    assert "- name: second\n        path: /b" in loaded.value.path().read_text()
