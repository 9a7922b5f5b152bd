"""The page Translate in a real browser: ten scripts of different releases and a hostile one."""

from pathlib import Path

import pytest
from browser import at_each_size, fits, is_whole, new_pages
from playwright.sync_api import expect
from translate_texts import HOSTILE, ROOT, command_lines, scripts

pytestmark = pytest.mark.browser
SCRIPT = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 \\
  actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
  actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 trainer.experiment_name=$RUN
"""
TOY = (ROOT / "examples/verl_scripts/run_toy_grpo.sh").read_text()
PPO = (ROOT / "tests/translate/published/run_ppo.sh").read_text()


@pytest.fixture
def opened(browser, listener):
    """Open the page; at its end nothing was refused by the policy or failed in it."""
    with new_pages(browser, listener) as new_page:

        def go(size="wide"):
            page = new_page(size, permissions=["clipboard-read", "clipboard-write"])
            page.goto(f"{listener.url}translate")
            page.wait_for_selector("#translate[data-ready]")
            return page

        yield go


def give(page, name, text):
    """Open a file, and wait for its translation."""
    payload = {"name": name, "mimeType": "text/plain", "buffer": text.encode()}
    page.set_input_files("#file", payload)
    expect(page.locator("#left-name")).to_have_text(name)
    settled(page)


def settled(page):
    """Wait until what is shown is the answer to what stands in the form."""
    page.wait_for_selector("#translate:not([data-waits])")


def taken(page):
    """Return the translation as the page's download."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    return Path(download.value.path()).read_bytes()


def test_ten_scripts_and_a_hostile_one_are_the_command_line_s_byte_for_byte(opened, tmp_path):
    page = opened()
    texts = {**scripts(), "hostile.sh": HOSTILE}
    assert len(texts) >= 11
    shown = {}
    for name, text in texts.items():
        give(page, name, text)
        offered = page.get_by_role("button", name="Download").is_enabled()
        shown[page.locator("#command").inner_text()] = taken(page) if offered else b""
    ran = command_lines(list(shown), texts, tmp_path)
    assert [out for _, out, _ in ran] == list(shown.values())
    assert sum(1 for code, out, _ in ran if code == 0 and out) >= 10
    assert page.evaluate("window.stolen") is None
    assert not (tmp_path / "ran").exists()


def test_the_page_is_whole_and_accessible_with_and_without_a_text(opened):
    page = opened()
    for text in ("", SCRIPT):
        if text:
            give(page, "run.sh", text)
        is_whole(page)


def test_a_line_lights_up_the_other_side_s_with_rule_status_and_reason(opened):
    page = opened()
    give(page, "run.sh", SCRIPT)
    page.locator("#left .cm-line").nth(2).click()
    lit = page.locator("#right .cm-line.cm-linked")
    expect(lit.filter(has_text="repeat_times: 8")).to_be_visible()
    expect(page.locator("#linked")).to_contain_text(
        "actor_rollout_ref.rollout.n mapped algorithm.repeat_times"
    )
    lit.filter(has_text="repeat_times: 8").click()
    expect(page.locator("#left .cm-line.cm-linked")).to_contain_text("rollout.n=8")


def test_what_is_typed_is_translated_and_the_nearest_key_taken(opened):
    page = opened()
    page.locator("#left .cm-content").click()
    page.keyboard.insert_text(SCRIPT.replace("optim.lr", "lr"))
    settled(page)
    wrong = page.locator("#left .cm-lintRange-error").first
    expect(wrong).to_have_text("actor_rollout_ref.actor.lr")
    expect(page.locator("#problem")).to_contain_text("did you mean actor_rollout_ref.actor.optim.lr?")
    wrong.hover()
    page.locator(".cm-diagnosticAction").click()
    settled(page)
    expect(page.locator("#left .cm-content")).to_contain_text("actor_rollout_ref.actor.optim.lr=1e-6")
    expect(page.locator("#left .cm-lintRange-error")).to_have_count(0)
    expect(page.locator("#right .cm-content")).to_contain_text("algorithm_type: grpo")


def test_keys_are_completed_in_scripts_and_in_yaml(opened):
    page = opened()
    page.locator("#left .cm-content").click()
    page.keyboard.type("python3 -m verl.trainer.main_ppo rollout.tensor_mod")
    offered = page.locator(".cm-tooltip-autocomplete li")
    expect(offered.first).to_have_text("actor_rollout_ref.rollout.tensor_model_parallel_size")
    offered.first.click()
    expect(page.locator("#left .cm-content")).to_contain_text(
        "main_ppo actor_rollout_ref.rollout.tensor_model"
    )
    give(page, "x.yaml", "actor_rollout_ref:\n  rollout:\n    n: 4\n    ")
    page.locator("#left .cm-line").last.click()
    page.keyboard.press("End")
    page.keyboard.type("temperat")
    expect(offered.first).to_have_text("temperature")


def test_an_open_value_is_a_field_and_the_controls_are_options_of_the_command(opened):
    page = opened()
    give(page, "run.sh", SCRIPT)
    page.get_by_label("RUN").fill("2")
    page.get_by_label("GPUs a node").fill("4")
    page.get_by_label("trinity-rft").select_option("0.4.1")
    settled(page)
    command = page.locator("#command")
    expect(command).to_contain_text("--env=RUN=2")
    for option in ("--target=0.4.1", "--set=trainer.n_gpus_per_node=4"):
        expect(command).to_contain_text(option)
    page.locator("#copy-command").click()
    assert page.evaluate("navigator.clipboard.readText()") == command.inner_text()


def tab(page, name):
    page.get_by_role("tab", name=name).click()
    page.wait_for_selector(f"#{name.split()[0].lower()}:not([hidden]):not([data-waits])")


def test_the_other_tabs_are_whole_and_accessible(opened):
    page = opened()
    give(page, "run.sh", SCRIPT)
    for name in ("Audit", "Upgrade", "Diff", "Ignored keys", "Advise"):
        tab(page, name)
        for _ in at_each_size(page):
            fits(page)
    page.evaluate("for (const panel of document.querySelectorAll('.panel')) panel.hidden = false")
    is_whole(page)  # once, since axe takes seconds


def test_the_audit_is_filtered_and_leads_to_the_lines(opened):
    page = opened()
    give(page, "run.sh", PPO)
    tab(page, "Audit")
    page.get_by_label("Filter").fill("line 46 TC061")
    rows = page.locator("#audit-table tbody tr:visible")
    expect(rows).to_have_count(1)
    rows.get_by_role("button", name="line 46").click()
    expect(page.locator("#left .cm-activeLine")).to_contain_text("reward_model.enable=True")
    page.get_by_label("Filter").fill("")
    page.get_by_label("Status").select_option("approximated")
    expect(rows).to_have_count(2)


def test_an_upgrade_is_a_diff_with_reasons_and_is_taken_over(opened):
    page = opened()
    give(page, "run.sh", PPO)
    tab(page, "Upgrade")
    expect(page.locator("#upgraded .cm-changedLine").first).to_contain_text("critic.fsdp.param_offload=False")
    expect(page.locator("#reasons")).to_contain_text("moved into the engine's section in 0.8")
    expect(page.locator("#command")).to_contain_text("trinity-compat upgrade run.sh")
    page.get_by_role("button", name="Take it over").click()
    settled(page)
    tab(page, "Upgrade")
    expect(page.locator("#upgrade-note")).to_contain_text("Nothing changes")


def test_a_diff_shows_both_values_and_the_line(opened):
    page = opened()
    give(page, "run.sh", SCRIPT)
    other = {"name": "old.sh", "mimeType": "text/plain", "buffer": SCRIPT.replace("n=8", "n=5", 1).encode()}
    tab(page, "Diff")
    page.set_input_files("#other", other)
    row = page.locator("#diff-table tbody tr", has_text="actor_rollout_ref.rollout.n").first
    expect(row.locator("td").first).to_have_text("5 old.sh:3")
    expect(row.locator("td").last).to_have_text("8 line 3")
    expect(page.locator("#diff-note")).to_have_text("1 setting differs in effect from old.sh.")


def test_ignored_keys_and_the_modes_are_tables(opened):
    page = opened()
    give(page, "run.sh", TOY.replace("in_reward=False", "in_reward=False reward_model.reward_manager=dapo"))
    tab(page, "Ignored keys")
    row = page.locator("#ignored-table tbody tr")
    expect(row).to_contain_text("reward_model.reward_manager = dapo line 18")
    row.get_by_role("button", name="line 18").click()
    expect(page.locator("#left .cm-activeLine")).to_contain_text("reward_manager=dapo")
    page.get_by_label("GPUs a node").fill("8")
    settled(page)
    tab(page, "Advise")
    modes = page.locator("#advise-table tbody tr")
    expect(modes.first).to_contain_text("stock veRL, lockstep")
    expect(modes.nth(1)).to_contain_text("trinity-compat run run.sh")
    expect(page.locator("#advise-note")).to_have_text("Predicted for 8 GPUs; not measured.")


def test_an_error_is_shown_at_its_line_and_the_last_translation_stays(opened):
    page = opened()
    give(page, "run.sh", SCRIPT)
    give(page, "run.sh", SCRIPT.replace("train_batch_size=64", "train_batch_size=ten"))
    expect(page.locator("#problem")).to_contain_text("run.sh:1: ")
    expect(page.locator("#right .cm-content")).to_contain_text("algorithm_type: grpo")
    page.locator("#messages").get_by_role("button", name="line 1").first.click()
    expect(page.locator("#left .cm-activeLine")).to_contain_text("train_batch_size=ten")
    assert page.get_by_role("button", name="Download").is_disabled()
